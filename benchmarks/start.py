"""Does starting from the champion pay? Iterations to a fresh run's final success on a task that has changed.

    python -m benchmarks.start --jobs 2               # email_search, seeds 1, 2 and 3: about 25 minutes on 2 cores
    python -m benchmarks.start --task multiplication  # a smaller one
    python -m benchmarks.start --quick                # multiplication, seed 1, fewer iterations

For each seed, in a clone: a champion is trained on the task as it was; then the task changes, and two runs are made on it
with the same settings, a fresh one and one with policy.start_from: run:champion. email_search as it was asks for a mail of a
sender; changed, for one of a month and for the latest one, which no training question asked for before. multiplication as it
was has factors up to 49, changed from 50 on. `final` is the fresh run's success on validation in its last iteration, and
`needed` the first iteration from the champion that reaches it (0: the champion itself did). `ratio` is the fresh run's
iterations / `needed`, at least 1; null where it was not reached. The point holds where every ratio is 2 at least. Names with
`sampled_` are the same by the success of attempts at temperature 1, where a habit that is tipped over does not make a jump.
The test split is small, because its results are not used here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _common, _runs

SEEDS = [1, 2, 3]
ITERATIONS, QUICK = 8, 3
SETTINGS: dict[str, dict[str, Any]] = {
    "email_search": {"scenarios.train": 144, "scenarios.val": 100, "scenarios.test": 60},  # as many as the kinds have
    "multiplication": {"scenarios.train": 512, "scenarios.val": 200, "scenarios.test": 60},
}


def ask_only(root: Path, *kinds: str) -> None:
    """Leave in email_search's data only the questions of these kinds."""
    path = root / "tasks_data/email_search/questions.jsonl"
    original = path.with_suffix(".all")  # beside it, for the next change
    if not original.exists():
        path.rename(original)
    lines = original.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in lines if json.loads(line)["kind"] in kinds))


def multiply(root: Path, low: int, high: int) -> None:
    """Set the range of multiplication's first factor."""
    path = root / "tasks_data/multiplication/ranges.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"a": [low, high]}) + "\n")


# By task: how it is, and how it is when it has changed.
CHANGES: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "email_search": (lambda root: ask_only(root, "sender"), lambda root: ask_only(root, "month", "latest")),
    "multiplication": (lambda root: multiply(root, 2, 49), lambda root: multiply(root, 50, 99)),
}


Curve = dict[int, float]  # success on validation by iteration, 0 being what the first iteration continued


def train(root: Path, task: str, name: str, settings: dict[str, Any]) -> tuple[Curve, Curve]:
    """A run: its greedy curve and its sampled one."""
    words = [*_runs.training(SETTINGS[task] | settings), "--task", task, "--name", name]
    _runs.show(root, words)
    summary = json.loads((root / "run/summary.json").read_text())
    base = json.loads((root / "run/000/evaluation/summary.json").read_text())
    rows = {0: summary.get("before", {}).get("start", base)} | {row["iteration"]: row for row in summary["iterations"]}
    greedy, sampled = (
        {place: row.get(key, 0.0) for place, row in rows.items()} for key in ("success", "sampled_success")
    )
    return greedy, sampled


def compared(fresh: Curve, begun: Curve, iterations: int) -> dict[str, Any]:
    """After how many iterations the second curve first reaches the end of the first."""
    final = fresh[iterations]
    needed = next((place for place, success in begun.items() if success >= final), None)
    return {
        "ratio": None if needed is None else round(iterations / max(needed, 1), 2),
        "final": round(final, 3),
        "needed": needed,
        "fresh": {place: round(success, 3) for place, success in fresh.items()},
        "begun": {place: round(success, 3) for place, success in begun.items()},
    }


def measure(task: str, seed: int, folder: Path, iterations: int) -> dict[str, Any]:
    """The three runs of a seed, in a clone."""
    root = _runs.clone(folder / f"{task}-seed{seed}")
    settings = {"seed": seed, "train.iterations": iterations, "train.patience": iterations}
    settings["evaluate.sampled_attempts"] = 1  # settings stay in params.yaml, and the champion's has none
    was, is_now = CHANGES[task]
    was(root)
    champion = train(root, task, "champion", settings | {"evaluate.sampled_attempts": 0})
    is_now(root)
    fresh = train(root, task, "fresh", settings)
    begun = train(root, task, "begun", settings | {"policy.start_from": "run:champion"})
    sampled = compared(fresh[1], begun[1], iterations)
    return {
        "name": f"{task} seed {seed}",
        **compared(fresh[0], begun[0], iterations),
        **{f"sampled_{key}": value for key, value in sampled.items()},
        "iterations": iterations,
        "champion_on_its_own": round(max(champion[0].values()), 3),
    }


def main() -> None:
    quick = f"multiplication alone, seed 1, {QUICK} iterations in place of {ITERATIONS}"
    parser = _common.parser("start", __doc__, quick)
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {' '.join(map(str, SEEDS))}; quick: 1")
    parser.add_argument("--task", choices=list(CHANGES), help="default: email_search; quick: multiplication")
    parser.add_argument("--iterations", type=int, help=f"of each run (default: {ITERATIONS}; quick: {QUICK})")
    _runs.jobs(parser)
    options = parser.parse_args()
    usual = SEEDS[:1] if options.quick else SEEDS
    seeds, task = options.seeds or usual, options.task or ("multiplication" if options.quick else "email_search")
    iterations = options.iterations or (QUICK if options.quick else ITERATIONS)
    is_usual = not options.task and not options.iterations
    rows = _common.begin("start", options, len(seeds) / len(usual) if is_usual else None)
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        for row in _runs.side_by_side(options.jobs, lambda seed: measure(task, seed, Path(folder), iterations), seeds):
            rows.add(row)


if __name__ == "__main__":
    _common.command(main)
