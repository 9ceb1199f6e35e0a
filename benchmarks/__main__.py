"""The quick forms of all benchmarks, one after another, and one table of their rows.

    python -m benchmarks                    # all: see `--help` for how long
    python -m benchmarks gate judge         # these only

Each runs in a process of its own, in a process group of its own, and its rows are printed as they come. All of it goes to
.flywheel/bench: rows.jsonl (a row as soon as it is measured), table.md (written after each benchmark), and for each
benchmark a log of what it said beside its rows. Ctrl-C ends the one that runs; the rows that were measured stay.
What fails is said, with its log, and the others run; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._common import BENCHMARKS, ROOT, announcement, duration, line, slowness, tell, text

FOLDER = ROOT / ".flywheel" / "bench"
GRACE = 60.0  # seconds in which a benchmark that is stopped may end its own processes
BESIDE = (
    "benchmark",
    "name",
    "host",
    "ratio",
    "load",
    "load_before",
    "quick",
    "second",
    "measured",
)  # not among a row's numbers
HEADINGS = ("benchmark", "row", "ratio", "which is", "also measured", "load", "after, s")
HEADING = (line(HEADINGS), line(["---"] * len(HEADINGS)))


class Outcome(NamedTuple):
    """How a benchmark ended."""

    name: str
    seconds: float
    code: int


def quick(name: str) -> list[str]:
    """The command of a benchmark's quick form."""
    return [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json"]


@contextlib.contextmanager
def group(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, none of which is left afterwards; `log` has its standard error."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            for number in (signal.SIGINT, signal.SIGKILL):  # Ctrl-C lets a flow end its worker
                with contextlib.suppress(ProcessLookupError):  # all of the group is gone
                    os.killpg(process.pid, number)
                    until = time.monotonic() + GRACE
                    while time.monotonic() < until:
                        process.poll()
                        os.killpg(process.pid, 0)
                        time.sleep(0.05)
            process.wait()


def run(name: str, command: Sequence[str], folder: Path, take: Callable[[dict[str, Any]], None]) -> Outcome:
    """Run a benchmark and hand over each of its rows as soon as it is printed."""
    began = time.perf_counter()
    with group(command, folder / f"{name}.log") as process:
        assert process.stdout is not None
        for printed in process.stdout:
            if printed.startswith("{"):
                take({"benchmark": name, "second": round(time.perf_counter() - began, 1)} | json.loads(printed))
        process.wait()
    return Outcome(name, time.perf_counter() - began, process.returncode)


def cells(row: dict[str, Any]) -> list[str]:
    """A row's cells in the table: benchmark, row, ratio, what the ratio is of, other numbers, load, seconds."""
    benchmark = BENCHMARKS.get(row["benchmark"])
    label = " ".join(str(row[key]) for key in ("name", "host") if key in row)
    numbers = {name: value for name, value in row.items() if name not in BESIDE and not isinstance(value, dict | list)}
    return [
        row["benchmark"],
        label,
        text(row.get("ratio")) + ("" if row.get("measured", True) else " (not measured)"),
        benchmark.ratio if benchmark else "",
        ", ".join(f"{name} {text(value)}" for name, value in numbers.items()),
        text(row.get("load")),
        text(row["second"]),
    ]


def table(rows: list[dict[str, Any]], outcomes: list[Outcome]) -> str:
    """Markdown of all rows, and of how each benchmark ended."""
    revision = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    endings = [
        f"- {name}: {seconds:.0f} s" + (f", failed with exit code {code}" if code else "")
        for name, seconds, code in outcomes
    ]
    lines = [
        f"Quick forms, {time.strftime('%Y-%m-%d %H:%M')}, revision {revision.stdout.strip() or 'unknown'}, "
        f"{len(os.sched_getaffinity(0))} cores. Load: mean number of processes at work in the minute before the row.",
        "",
        *HEADING,
        *(line(cells(row)) for row in rows),
        "",
        *endings,
    ]
    return "\n".join(lines) + "\n"


def run_all(names: Sequence[str], folder: Path, command: Callable[[str], Sequence[str]]) -> list[Outcome]:
    """Run the benchmarks one after another; their rows go to standard output and to files in `folder` as they come."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    outcomes: list[Outcome] = []
    print(*HEADING, sep="\n", flush=True)
    with (folder / "rows.jsonl").open("w") as file:

        def take(row: dict[str, Any]) -> None:
            rows.append(row)
            print(json.dumps(row), file=file, flush=True)
            print(line(cells(row)), flush=True)

        for name in names:
            tell(announcement(f"benchmarks.{name} --quick", BENCHMARKS[name].quick, slowness()))
            try:
                outcomes.append(run(name, command(name), folder, take))
            finally:
                (folder / "table.md").write_text(table(rows, outcomes))
            if outcomes[-1].code:
                tell(f"{name} failed with exit code {outcomes[-1].code}: see {folder / name}.log")
    return outcomes


def stop(*_: object) -> None:
    """SIGTERM is as Ctrl-C, and a second one does not disturb the end, which takes `GRACE` at most."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    factor = slowness()
    total = sum(benchmark.quick for benchmark in BENCHMARKS.values())
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(BENCHMARKS)}")
    parser.epilog = f"All of them: {announcement('an estimate', total, factor).partition(': ')[2]}."
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := sorted(set(names) - set(BENCHMARKS)):
        parser.error(f"there is no benchmark {unknown[0]}: choose from {', '.join(BENCHMARKS)}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    tell(announcement("all", sum(BENCHMARKS[name].quick for name in names), factor))
    try:
        outcomes = run_all(names, FOLDER, quick)
    except KeyboardInterrupt:
        tell(f"Stopped; the rows so far are in {FOLDER}.")
        return 130
    seconds = sum(outcome.seconds for outcome in outcomes)
    tell(f"{duration(seconds)}; the table: {FOLDER / 'table.md'}")
    return int(any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
