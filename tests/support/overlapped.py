"""Stops a run with train.overlap: 1 at random moments, lets it go on, and compares it with one that nobody stopped.

    python -m tests.support.overlapped --stops 6        # about 10 minutes on 2 idle cores; exit code 0: the same

Ctrl-C, SIGTERM and SIGKILL in turn reach the flow; every other time SIGKILL reaches one of its two workers. Each time the
same command goes on. In the end dvc.lock and chain.yaml must be those of the whole run, and no worker may be left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from steps.runner.handover import worker_pids
from tests.conftest import SMALL, copy_project, end, python, run, start

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
SETTINGS = {
    "train.iterations": 3,
    "train.way": "grpo",
    "train.overlap": 1,
    "update.beta": 0,
}


def words() -> list[str]:
    small = {f"{section}.{name}": value for section, values in SMALL.items() for name, value in values.items()}
    pairs = [f"{name}={value}" for name, value in (small | SETTINGS).items()]
    return python("flows.train", *(word for pair in pairs for word in ("--set", pair)))


def stop(folder: Path, moment: float, turn: int) -> str:
    """Start the run, stop it after so many seconds, and return what was done; empty where it had ended before."""
    process = start(words(), folder, folder / ".flywheel/stopped.log")
    try:
        deadline = time.monotonic() + moment
        while time.monotonic() < deadline:
            if process.poll() is not None:
                return ""
            time.sleep(0.1)
        number, workers = SIGNALS[turn // 2 % 3], worker_pids(folder)
        if turn % 2 and workers:
            path, pid = random.choice(sorted(workers.items()))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            process.wait(300)
            return f"SIGKILL of the worker {path.stem.rpartition('-')[2]}: exit code {process.returncode}"
        process.send_signal(number)
        process.wait(300)
        return f"{number.name} of the flow: exit code {process.returncode}"
    finally:
        end(process, signal.SIGKILL)


def kept(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "dvc.lock").read_bytes(), (folder / "chain.yaml").read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.overlapped")
    parser.add_argument("--stops", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=60, help="seconds after which a run is stopped at most")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="overlapped-") as place:
        whole, stopped = (copy_project(Path(place, name)) for name in ("whole", "stopped"))
        for turn in range(options.stops):
            print(stop(stopped, rng.uniform(1, options.longest), turn) or "it had ended", flush=True)
        for folder in (stopped, whole):
            ended = run(words(), folder, 3000)
            print(f"{folder.name}: exit code {ended.returncode}", ended.stderr[-500:], flush=True)
        left = [*worker_pids(whole), *worker_pids(stopped)]
        same = kept(whole) == kept(stopped)
    print(f"the same: {same}; workers left: {len(left)}")
    return int(not same or bool(left))


if __name__ == "__main__":
    sys.exit(main())
