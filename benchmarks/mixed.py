"""Does one policy learn two tasks as well as each by itself? A mixed run beside single ones from the same base policy.

    python -m benchmarks.mixed              # multiplication and tic_tac_toe, seeds 1, 2 and 3
    python -m benchmarks.mixed --seeds 1    # one seed alone
    python -m benchmarks.mixed --jobs 2     # two seeds at a time
    python -m benchmarks.mixed --quick      # seed 1, two iterations of half the scenarios

For each seed, in a clone: a run of `tasks` with its preset, and then a run of each task alone with the same base policy and
settings, and as many scenarios an iteration as the task has in the mixed run, so that each task has the same number of
episodes, and of optimiser steps, in both. The scenarios are the same ones, too: a task draws its share of a mixed run as it
draws so many for itself. What is compared is success on the test split of the adapter that each run chose on validation, at
temperature 1, over `ATTEMPTS` attempts at each scenario. A row is a seed and a task: `ratio` is the mixed run's success /
the single run's, and `difference` the first minus the second. The point holds where every difference is -0.05 at least.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _common, _runs
from steps.core.params import Params, load

SEEDS = [1, 2, 3]
TASKS = "multiplication+tic_tac_toe"
ITERATIONS, QUICK = 6, 2
ATTEMPTS = 4  # at each scenario of val and test, at temperature 1


def train(root: Path, task: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A run; the content of run/summary.json."""
    words = [*_runs.training(settings), "--task", task, "--name", task.replace("+", "-and-")]
    _runs.show(root, words)
    return dict(json.loads((root / "run/summary.json").read_text()))


def settings_of(preset: Params, seed: int, iterations: int, parts: int) -> dict[str, Any]:
    """The preset's settings, with 1 / `parts` of its scenarios."""
    counts = preset.scenarios
    return {
        "seed": seed,
        "policy.base_model": preset.policy.base_model,
        "policy.context": preset.policy.context,
        "scenarios.train": counts.train // parts,
        "scenarios.val": counts.val // 2 // parts,  # with several attempts at each
        "scenarios.test": counts.test // parts,
        "rollout.scenarios": preset.rollout.scenarios // parts,
        "rollout.max_tokens": preset.rollout.max_tokens,
        "update.learning_rate": preset.update.learning_rate,
        "update.truncated_completions": preset.update.truncated_completions,
        "evaluate.temperature": preset.evaluate.temperature,
        "evaluate.max_tokens": preset.evaluate.max_tokens,
        "evaluate.sampled_attempts": ATTEMPTS,
        "train.iterations": iterations,
        "train.patience": iterations,
    }


class Both(NamedTuple):
    """A seed's mixed run, in its clone."""

    root: Path
    preset: Params
    summary: dict[str, Any]
    seed: int
    iterations: int
    share: int  # of the scenarios of an iteration, 1 / share are played


def both(seed: int, folder: Path, iterations: int, share: int) -> Both:
    """The mixed run of a seed, in a new clone."""
    root = _runs.clone(folder / f"seed{seed}")
    preset = load(root / f"tasks_data/{TASKS}.yaml", Params)
    settings = settings_of(preset, seed, iterations, 1) | {"rollout.scenarios": preset.rollout.scenarios // share}
    return Both(root, preset, train(root, TASKS, settings), seed, iterations, share)


def compare(mixed: Both, task: str) -> dict[str, Any]:
    """The row of a task, which is trained on alone."""
    parts = len(TASKS.split("+"))
    scenarios = mixed.preset.rollout.scenarios // mixed.share // parts
    settings = settings_of(mixed.preset, mixed.seed, mixed.iterations, parts) | {"rollout.scenarios": scenarios}
    alone = train(mixed.root, task, settings)
    tested = mixed.summary["trained"]["by_task"][task]
    success, own = tested["sampled_success"], alone["trained"]["sampled_success"]
    return {
        "name": f"{task} seed {mixed.seed}",
        "ratio": round(success / own, 3) if own else None,
        "base": round(alone["base"]["sampled_success"], 3),
        "mixed": round(success, 3),
        "alone": round(own, 3),
        "difference": round(success - own, 3),
        "scenarios": tested["n"],
        "episodes": mixed.iterations * scenarios * mixed.preset.rollout.attempts,
        "iterations": mixed.iterations,
        "mixed_iteration": mixed.summary["trained"]["iteration"],
        "alone_iteration": alone["trained"]["iteration"],
        "mixed_curve": [round(row["by_task"][task], 3) for row in mixed.summary["iterations"]],
        "alone_curve": [round(row["success"], 3) for row in alone["iterations"]],
        "mixed_seconds": round(mixed.summary["wall_seconds"]),
        "alone_seconds": round(alone["wall_seconds"]),
    }


def main() -> None:
    quick = f"seed 1, {QUICK} iterations of half the scenarios in place of {ITERATIONS}"
    parser = _common.parser("mixed", __doc__, quick)
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {' '.join(map(str, SEEDS))}; quick: 1")
    parser.add_argument("--iterations", type=int, help=f"of each run (default: {ITERATIONS}; quick: {QUICK})")
    parser.add_argument("--folder", type=Path, help="keep the clones here; they are deleted by default")
    _runs.jobs(parser)
    options = parser.parse_args()
    usual = SEEDS[:1] if options.quick else SEEDS
    seeds = options.seeds or usual
    iterations = options.iterations or (QUICK if options.quick else ITERATIONS)
    rows = _common.begin("mixed", options, len(seeds) / len(usual) if not options.iterations else None)
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with tempfile.TemporaryDirectory(prefix="mixed-") as temporary:
        folder, share = options.folder or Path(temporary), 2 if options.quick else 1

        def measure(seed: int) -> list[dict[str, Any]]:
            mixed = both(seed, folder, iterations, share)
            return [compare(mixed, task) for task in TASKS.split("+")]

        for seed_rows in _runs.side_by_side(options.jobs, measure, seeds):
            for row in seed_rows:
                rows.add(row)


if __name__ == "__main__":
    _common.command(main)
