"""A long run with the embedded policy: what its processes hold and what it writes, iteration by iteration.

    python -m tests.support.soak                       # 100 iterations, on small numbers
    python -m tests.support.soak --iterations 22 --folder DIR

While `flows.train` runs in a copy of the project, its processes (flow, worker with trainer and engine, Prefect's server)
are looked at several times a second. Each iteration gets the highest memory, number of open files and of threads of all
of them together and of each kind, and what the folder has grown by. One line of JSON compares the medians of the last ten
iterations with those of the first ten after the first; a ratio of 1 is flat. Exit code 1 where one is above 1.03, or the
run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.conftest import SMALL, change_params, copy_project, end, python, start
from tests.support.kills import processes

PAUSE = 0.3  # seconds between looks
AT_MOST = 1.03  # the last ten against the first ten
TEN = 10


def size(folder: Path) -> int:
    """Bytes on the disk in a folder; what DVC links from its cache counts once."""
    seen: dict[tuple[int, int], int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                status = Path(place, name).lstat()
            except FileNotFoundError:
                continue
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def held(folder: Path) -> dict[str, float]:
    """What the run's processes hold: resident memory in MiB, open files and threads, in all and by kind."""
    total: defaultdict[str, float] = defaultdict(float)
    for kind, group in processes(folder).items():
        for process in group:
            try:
                with process.oneshot():
                    holds = {
                        "memory": process.memory_info().rss / 2**20,
                        "files": process.num_fds(),
                        "threads": process.num_threads(),
                    }
            except psutil.Error:
                continue
            for name, value in holds.items():
                total[name] += value
                total[f"{name} of {kind}"] += value
    return dict(total)


def watch(folder: Path, process: subprocess.Popen[str]) -> list[dict[str, float]]:
    """A row for each iteration that has ended, in order."""
    rows: list[dict[str, float]] = []
    most: dict[str, float] = {}
    before, began = size(folder), time.monotonic()
    while process.poll() is None:
        for name, value in held(folder).items():
            most[name] = max(most.get(name, 0), value)
        if (folder / f"run/{len(rows) + 1:03}/evaluation").exists():
            now = size(folder)
            rows.append(most | {"disk": (now - before) / 2**20, "seconds": time.monotonic() - began})
            most, before, began = {}, now, time.monotonic()
            print(f"iteration {len(rows)}: {rows[-1]}", file=sys.stderr, flush=True)
        time.sleep(PAUSE)
    return rows


def compared(rows: Sequence[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """The medians of the first ten iterations after the first, of the last ten, and their ratio."""
    first, last = rows[1 : 1 + TEN], rows[-TEN:]
    table = {}
    for name in first[0]:
        early, late = (statistics.median(row.get(name, 0.0) for row in part) for part in (first, last))
        table[name] = {
            "first": round(early, 2),
            "last": round(late, 2),
            "ratio": round(late / early, 4) if early else None,
        }
    return table


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where the run is made and stays (default: a temporary folder)")
    options = parser.parse_args(words)
    if options.iterations < 2 * TEN + 1:
        parser.error(f"--iterations: {2 * TEN + 1} at least, so that the first ten and the last ten are others")
    with tempfile.TemporaryDirectory(prefix="soak") as place:
        folder = copy_project((options.folder or Path(place)).resolve() / "project")
        train = {"iterations": options.iterations, "patience": options.iterations}
        change_params(folder, SMALL | {"train": train})
        log = folder / ".flywheel" / "soak.log"
        log.parent.mkdir(exist_ok=True)
        process = start(python("flows.train"), folder, log, OMP_WAIT_POLICY="passive")
        try:
            rows = watch(folder, process)
        finally:
            end(process)
        if process.returncode or len(rows) < options.iterations:
            print(log.read_text()[-2000:], file=sys.stderr)
            return 1
        table = compared(rows)
    print(json.dumps({"iterations": len(rows), "compared": table}))
    return int(any((table[name]["ratio"] or 0) > AT_MOST for name in ("memory", "files", "threads", "disk")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
