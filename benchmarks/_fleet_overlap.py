"""The rows `overlap` and `learning` of benchmarks.fleet: rollouts that run ahead of the updates.

The task of `overlap` is email_search with tools that sleep (a simulation of slow ones), written into a clone of the
committed tree. A rollout then takes about as long as score, update and evaluate together. Seconds are those between the ends
of evaluations, after the iterations in which packages load. A replay is `dvc repro --force` of the overlapped run, without
sleeping: of each stage one after another, in one worker. Its dvc.lock must be the run's, with the hash of every output.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _runs
from benchmarks._common import tell

TASK = "slow_search"
DELAY = "SLOW_SEARCH_SECONDS"
MODULE = f'''"""email_search with tools that sleep: a simulation of slow ones, for benchmarks."""

import os
import time

from environments.email_search import EmailSearch


class SlowSearch(EmailSearch):
    """The same questions; each answer takes {DELAY} seconds."""

    overlap = 1

    def call(self, name, arguments):
        time.sleep(float(os.environ.get("{DELAY}", "0")))
        return super().call(name, arguments)
'''


class Size(NamedTuple):
    """How much is done."""

    warm: int  # iterations before those that count
    timed: int
    seconds: float  # of a tool's answer
    replays: int


SEEDS = (1, 2, 3)
FULL, QUICK = Size(2, 5, 1.0, 5), Size(2, 2, 0.5, 1)
SETTINGS: dict[str, object] = {
    "scenarios.train": 24,
    "scenarios.val": 12,
    "scenarios.test": 12,
    "rollout.scenarios": 4,
    "rollout.attempts": 4,
    "update.beta": 0,
    "update.steps_per_generation": 2,
}


def make_clone(root: Path) -> Path:
    """A clone of the committed tree with the slow task in it."""
    _runs.clone(root)
    (root / "environments" / f"{TASK}.py").write_text(MODULE)
    shutil.copytree(root / "tasks_data/email_search", root / "tasks_data" / TASK)
    return root


def trained(root: Path, overlap: int, size: Size) -> dict[str, Any]:
    """Run the flow in a clone: seconds of an iteration, and the median seconds of each stage's own work."""
    iterations = size.warm + size.timed + 1  # beside the last one nothing runs ahead: it does not count
    chosen = SETTINGS | {"train.iterations": iterations, "train.patience": iterations, "train.overlap": overlap}
    variables = _runs.environment(root) | {DELAY: str(size.seconds)}
    _runs.show(root, [*_runs.training(chosen), "--task", TASK], variables)
    ended = [(root / "run" / f"{number:03d}" / "timings" / "evaluation.json") for number in (size.warm, iterations - 1)]
    first, last = (path.stat().st_mtime for path in ended)
    rows = json.loads((root / "run/summary.json").read_text())["iterations"][size.warm : -1]
    stages = {stage: round(sum(row["seconds"][stage] for row in rows) / len(rows), 2) for stage in rows[0]["seconds"]}
    return {"seconds": (last - first) / size.timed, "stages": stages}


def replayed(root: Path) -> bool:
    """Whether `dvc repro --force` gives the dvc.lock of the run again."""
    path = root / "dvc.lock"
    before = path.read_bytes()
    variables = _runs.environment(root) | {DELAY: "0"}
    variables["PATH"] = os.pathsep.join([os.fspath(Path(sys.executable).parent), variables.get("PATH", "")])
    _runs.show(root, ["-m", "dvc", "repro", "--force", "--no-run-cache"], variables)
    return path.read_bytes() == before


def measure(quick: bool) -> dict[str, Any]:
    """The row: `ratio` of iterations an hour with overlap 1 and without, and how many replays were the same."""
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="overlap-") as folder:
        runs = {}
        for overlap in (0, 1):
            runs[overlap] = trained(make_clone(Path(folder, f"overlap{overlap}")), overlap, size)
            tell(f"overlap {overlap}: {runs[overlap]}")
        same = sum(replayed(Path(folder, "overlap1")) for _ in range(size.replays))
    return {
        "name": "overlap",
        "ratio": round(runs[0]["seconds"] / runs[1]["seconds"], 2),
        "iterations_an_hour": {f"overlap {k}": round(3600 / run["seconds"]) for k, run in runs.items()},
        "seconds_of_stages": {f"overlap {k}": run["stages"] for k, run in runs.items()},
        "replays_the_same": f"{same} of {size.replays}",
    }


def learning(quick: bool) -> list[dict[str, Any]]:
    """The rows `learning`: email_search with overlap 1, for each seed beside the recorded serial run. `ratio`: test success
    / the serial run's; `within`: whether it lies in that one's 95 % interval."""
    recorded = Path(__file__).with_name("learning.json").read_text().splitlines()
    serial = {run["seed"]: run["summary"]["trained"] for run in map(json.loads, recorded)}
    rows = []
    for seed in SEEDS[:1] if quick else SEEDS:
        with tempfile.TemporaryDirectory(prefix="overlap-") as folder:
            root = _runs.clone(Path(folder, f"seed{seed}"))
            _runs.show(root, _runs.training({"seed": seed, "train.overlap": 1}))
            summary = json.loads((root / "run/summary.json").read_text())
        low, high = serial[seed]["ci95"]
        success = summary["trained"]["success"]
        rows.append({
            "name": "learning",
            "ratio": round(success / serial[seed]["success"], 3),
            "seed": seed,
            "success": success,
            "ci95": summary["trained"]["ci95"],
            "serial": serial[seed]["success"],
            "serial_ci95": [low, high],
            "within": low <= success <= high,
        })  # fmt: skip
        tell(json.dumps(rows[-1]))
    return rows
