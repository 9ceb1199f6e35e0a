"""Do environments of other packages train? Three of them, each with a small policy built from the package's own players.

    python -m benchmarks.packages              # each of `TRAINED`, seeds 1, 2 and 3
    python -m benchmarks.packages --tasks pettingzoo:tictactoe_v3 --seeds 1
    python -m benchmarks.packages --jobs 2     # two tasks at a time
    python -m benchmarks.packages --quick      # the first one, seed 1, one iteration, with a policy of 20 steps

For each task, in a clone: the task's data are written, a policy is built once (`addons.supervised.small_policy`, whole
episodes by the gold player and by one that acts at random), and each seed trains an adapter of its own from it. Success is
that of the adapter chosen on validation, on the test split and at temperature 1, as the policy samples while it learns. A
row is a task and a seed: `ratio` is the success trained / base, `difference` the first minus the second, `seconds` the run's
and `build_seconds` the policy's. The goal is a `difference` of `GAIN` for every seed, in less than `LIMIT` seconds of a run.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _common, _runs

SEEDS = [1, 2, 3]
GAIN, LIMIT = 0.15, 600
QUICK = 1  # iteration
QUICK_STEPS = 20  # of building a policy


class Job(NamedTuple):
    """How a task's policy is built and trained."""

    players: str
    steps: int  # of building it
    counts: tuple[int, int, int]  # scenarios of train, val and test
    max_tokens: int
    iterations: int


TRAINED = {
    "pettingzoo:tictactoe_v3": Job("gold=0.4 random=0.6", 4000, (512, 120, 240), 32, 8),
    "gymnasium:FrozenLake-v1": Job("gold=0.4 random=0.6", 1500, (512, 120, 200), 32, 8),
    "reasoning_gym:chain_sum?levels=2": Job("gold=0.5 random=0.4 bad=0.1", 8000, (512, 120, 240), 24, 16),
}


def build(root: Path, task: str, steps: int) -> float:
    """A clone with the task's data and its policy; the seconds that these took."""
    _runs.clone(root)
    data, _ = _runs.show(root, ["-m", "environments.bridges.packages", task])
    words = ["--task", task, "--task-data", f"tasks_data/{task}", "--players", TRAINED[task].players, "--digits", "one"]
    words += ["--drawn", "episode", "--observations", "yes", "--batch-tokens", "2048", "--threads", "1"]
    words += ["--steps", str(steps), "--policy", "policy"]
    made, _ = _runs.show(root, ["-m", "addons.supervised.small_policy", *words])
    return data + made


def train(root: Path, task: str, seed: int, iterations: int, share: int) -> dict[str, Any]:
    """A run in the clone; the content of run/summary.json. 1 / `share` of the usual scenarios."""
    job = TRAINED[task]
    train_count, val, test = (count // share for count in job.counts)
    settings: dict[str, Any] = {
        "seed": seed,
        "policy.base_model": "policy",
        "policy.context": 1024,
        "scenarios.train": train_count,
        "scenarios.val": val,
        "scenarios.test": test,
        "rollout.scenarios": 32 // share,
        "rollout.max_tokens": job.max_tokens,
        "update.learning_rate": 0.001,
        "update.truncated_completions": "penalise",
        "evaluate.temperature": 1.0,
        "evaluate.max_tokens": job.max_tokens,
        "train.iterations": iterations,
        "train.patience": iterations,
    }
    _runs.show(root, [*_runs.training(settings), "--task", task, "--name", f"seed-{seed}"])
    return dict(json.loads((root / "run/summary.json").read_text()))


def measure(root: Path, task: str, seed: int, iterations: int, share: int, build_seconds: float) -> dict[str, Any]:
    """The row of a task and a seed."""
    summary = train(root, task, seed, iterations, share)
    row = _runs.gain(f"{task} seed {seed}", summary, GAIN)
    return row | {"iterations": iterations, "limit": LIMIT, "build_seconds": round(build_seconds)}


def main() -> None:
    quick = f"the first task, seed 1, {QUICK} iteration of a quarter of the scenarios, a policy of {QUICK_STEPS} steps"
    parser = _common.parser("packages", __doc__, quick)
    parser.add_argument("--tasks", nargs="+", choices=TRAINED, help="default: all; quick: the first")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {' '.join(map(str, SEEDS))}; quick: 1")
    parser.add_argument("--iterations", type=int, help=f"of each run (default: 8 or 16, by the task; quick: {QUICK})")
    parser.add_argument("--folder", type=Path, help="keep the clones here; they are deleted by default")
    _runs.jobs(parser)
    options = parser.parse_args()
    tasks = options.tasks or list(TRAINED)[: 1 if options.quick else None]
    seeds = options.seeds or SEEDS[: 1 if options.quick else None]
    chosen = options.iterations or (QUICK if options.quick else None)
    usual = 1 if options.quick else len(TRAINED) * len(SEEDS)
    rows = _common.begin("packages", options, len(tasks) * len(seeds) / usual if not options.iterations else None)
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with tempfile.TemporaryDirectory(prefix="packages-") as temporary:
        folder, share = options.folder or Path(temporary), 4 if options.quick else 1

        def measure_task(number: int) -> None:
            root, task = folder / f"task{number}", tasks[number]
            seconds = build(root, task, QUICK_STEPS if options.quick else TRAINED[task].steps)
            for seed in seeds:  # each row at once: a later seed may fail
                rows.add(measure(root, task, seed, chosen or TRAINED[task].iterations, share, seconds))

        for _ in _runs.side_by_side(options.jobs, measure_task, range(len(tasks))):
            pass


if __name__ == "__main__":
    _common.command(main)
