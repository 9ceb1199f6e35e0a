"""What does a user's own task reach, with the preset that `make new-task` writes? Ten small tasks, trained as users would.

    python -m benchmarks.own_tasks                              # all ten, seed 1
    python -m benchmarks.own_tasks --tasks parcels buses --seeds 1 2 3 --jobs 2
    python -m benchmarks.own_tasks --quick                      # one task, one iteration, few scenarios

The tasks are in benchmarks/_own_tasks/, of ten trades and in as many styles; neither they nor any setting was tuned. Five
have a scripted player, the others 30 demonstrations. Each is made in a clone as docs/tasks.md says: `python -m
environments._new NAME`, then the module and the data are replaced by the task's own, and `python -m flows.train --task NAME`
runs with the preset as it was written.

A row is a task and a seed: `base`, `taught` and `trained` are test successes on `n` scenarios, before training, after
supervised training and of the best policy; `way` is how the run chose to train, `policy` what it ended with, `last` the
validation success of what the iterations began with and of the last one, and `minutes` those of the whole command. Where a
run ends without a trained policy, `reason` is the last line that it printed. `ratio` is the gain / 0.3, and the row `all`
says how many tasks gained as much within 15 minutes, and how many ended below their start.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _common, _runs
from benchmarks._common import ROOT

FOLDER = ROOT / "benchmarks" / "_own_tasks"
TASKS = sorted(path.name for path in FOLDER.iterdir() if (path / f"{path.name}.py").is_file())
DEMONSTRATIONS = "demonstrations.jsonl"
GAIN, MINUTES = 0.3, 15.0  # what a task is to reach
QUICK: dict[str, object] = {"train.iterations": 1, "scenarios.val": 10, "scenarios.test": 10}
# Of a row.
SHOWN = ("name", "ratio", "shown_by", "base", "taught", "trained", "n", "way", "policy", "last", "minutes", "reason")


def make(root: Path, task: str) -> None:
    """Make a task in a clone, as a user does: the template's files, replaced by the task's own."""
    _runs.show(root, ["-m", "environments._new", task])
    (root / "tasks_data" / task / "capitals.json").unlink()  # the template's data
    for path in (FOLDER / task).iterdir():
        if path.is_file():
            shutil.copy(path, root / ("environments" if path.suffix == ".py" else f"tasks_data/{task}"))


def shown_by(task: str) -> str:
    """Who shows how the task is done."""
    path = FOLDER / task / DEMONSTRATIONS
    return f"{len(path.read_text().splitlines())} demonstrations" if path.is_file() else "player"


def measure(task: str, seed: int, folder: Path, more: Mapping[str, object]) -> dict[str, Any]:
    """The row of a task and a seed."""
    root = _runs.clone(folder / f"{task}-{seed}")
    make(root, task)
    words = [*_runs.training({"seed": seed, **more}), "--task", task]
    try:
        seconds, _ = _runs.show(root, words)
    except _runs.Failed as failed:
        return row(task, seed, {}, failed.seconds, failed.last_line)
    return row(task, seed, json.loads((root / "run" / "summary.json").read_text()), seconds, "")


def row(task: str, seed: int, summary: Mapping[str, Any], seconds: float, reason: str) -> dict[str, Any]:
    """The numbers of a run from its summary; what a summary does not have is "-"."""
    base, trained = summary.get("base") or {}, summary.get("trained") or {}
    before, after = base.get("success"), trained.get("success")
    taught = trained if trained.get("policy") == "sft" else summary.get("begun") or {}
    values = {
        "name": f"{task} seed {seed}",
        "ratio": None if before is None or after is None else round((after - before) / GAIN, 2),
        "shown_by": shown_by(task),
        "base": before if before is None else round(before, 3),
        "taught": None if taught.get("success") is None else round(taught["success"], 3),
        "trained": after if after is None else round(after, 3),
        "n": trained.get("n", base.get("n")),
        "way": summary.get("way"),
        "policy": trained.get("policy"),
        "last": last(summary),
        "minutes": round(seconds / 60, 1),
        "reason": reason,
    }
    return {name: "-" if values[name] is None and name != "ratio" else values[name] for name in SHOWN}


def last(summary: Mapping[str, Any]) -> str | None:
    """Validation success of what the iterations began with, and of the last of them."""
    if not (iterations := summary.get("iterations")):
        return None
    before = summary.get("before") or {}
    begun = before.get("sft") or before.get("base") or {}
    start = f"{begun['success']:.3f} to " if begun.get("success") is not None else ""
    return f"{start}{iterations[-1]['success']:.3f}" if "success" in iterations[-1] else None


def total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many tasks gained enough in time, and how many ended below their start."""
    trained = [each for each in rows if each["ratio"] is not None]
    gained = sum(each["ratio"] >= 1 and each["minutes"] <= MINUTES for each in trained)
    return {
        "name": "all",
        "ratio": round(gained / len(rows), 2),
        f"gained_{GAIN}_in_{MINUTES:.0f}_minutes": gained,
        "below_their_start": sum(each["ratio"] < 0 for each in trained),
        "without_a_trained_policy": len(rows) - len(trained),
        "runs": len(rows),
    }


def main() -> None:
    first, *_ = TASKS
    parser = _common.parser("own_tasks", __doc__, f"{first}, one iteration, 10 validation and test scenarios")
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, metavar="NAME", help=f"of {', '.join(TASKS)} (default: all)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="default: 1")
    parser.add_argument("--folder", type=Path, help="keep the clones here; they are deleted by default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every run")
    _runs.jobs(parser)
    options = parser.parse_args()
    usual = [first] if options.quick else TASKS
    cases = [(task, seed) for task in options.tasks or usual for seed in options.seeds]
    rows = _common.begin("own_tasks", options, len(cases) / len(usual))
    measured = []
    with tempfile.TemporaryDirectory(prefix="own_tasks-") as temporary:
        folder = options.folder or Path(temporary)

        def run(case: tuple[str, int]) -> dict[str, Any]:
            chosen = dict(assignment.partition("=")[::2] for assignment in options.set)
            return measure(*case, folder, (QUICK if options.quick else {}) | chosen)

        for each in _runs.side_by_side(options.jobs, run, cases):
            measured.append(each)
            rows.add(each)
    rows.add(total(measured))


if __name__ == "__main__":
    _common.command(main)
