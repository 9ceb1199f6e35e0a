"""Healthy runs of several tasks and seeds, and how many tripwires they set off: none is right.

    python -m tests.support.clean_runs                          # 30 runs of three iterations
    python -m tests.support.clean_runs --runs 3
    python -m tests.support.clean_runs --first 24               # the last seven of the 30
    python -m tests.support.clean_runs --look DIR/*/run         # runs that are there

The tasks take turns, each time with another seed, in copies of the project. One line of JSON: `runs`, `iterations`, and
`findings`, which must be empty. Exit code 1 where it is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from addons.tripwires import tripwires
from steps.project.chain import iteration_folders
from tests.conftest import copy_project, python, run

TASKS = ("multiplication", "tic_tac_toe", "email_search")
SIZES = {"scenarios.val": 40, "scenarios.test": 40, "train.iterations": 3, "train.patience": 3}


def look(folder: Path) -> tuple[int, list[str]]:
    """(iterations, what the tripwires see in them) of a finished run."""
    numbers = [int(path.name) for path in iteration_folders(folder) if path.name != "000"]
    seen = [f"{folder}/{number:03d} {each.name}" for number in numbers for each in tripwires.findings(folder, number)]
    return len(numbers), seen


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--first", type=int, default=1, help="the number of the run to begin with (default: 1)")
    parser.add_argument("--look", type=Path, nargs="+", metavar="RUN", help="look at these finished runs instead")
    options = parser.parse_args(words)
    if not 1 <= options.first <= options.runs:
        parser.error(f"--first: 1 to {options.runs}, the number of runs, not {options.first}")
    counts, seen = list[int](), list[str]()
    if options.look:
        for folder in options.look:
            count, names = look(folder)
            counts.append(count)
            seen += names
    for number in range(options.first - 1, 0 if options.look else options.runs):
        with tempfile.TemporaryDirectory(prefix="clean") as place:
            folder = copy_project(Path(place).resolve())
            settings = [word for name, value in SIZES.items() for word in ("--set", f"{name}={value}")]
            task = TASKS[number % len(TASKS)]
            command = python("flows.train", "--task", task, *settings, "--set", f"seed={1 + number // len(TASKS)}")
            done = run(command, folder, seconds=900, OMP_WAIT_POLICY="passive")
            if done.returncode:
                raise SystemExit(f"{task}: {done.stderr}")
            count, names = look(folder / "run")
            run(python("steps.runner.handover", "--stop"), folder)
        counts.append(count)
        seen += names
        print(f"{task}: {count} iterations, {names or 'nothing seen'}", file=sys.stderr, flush=True)
    print(json.dumps({"runs": len(counts), "iterations": sum(counts), "findings": seen}))
    return int(bool(seen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
