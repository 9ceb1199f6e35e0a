"""What do demonstrations alone bring? Supervised training on scripted play, judged on the test split, for each task.

    python -m benchmarks.demonstrations                         # every task with a policy and a player that can show it
    python -m benchmarks.demonstrations --tasks tic_tac_toe --seeds 1 2 3
    python -m benchmarks.demonstrations --quick                 # multiplication, few demonstrations and scenarios

For each task, in a clone: the scripted player plays training scenarios (`addons.supervised.teach`), and the preset's
run learns from the attempts with a reward of half a point or more before its first iteration (`sft`). There is one
iteration, with a learning rate of `STILL`, which changes no decision: what is tested is the adapter of supervised
training. The figures stand beside those of training by rewards in docs/results.md. A row is a task and a seed: `ratio` is
the test success after supervised training / that of the base policy; `sampled` is the same success at temperature 1,
where the preset judges greedily.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from addons.supervised.teach import FILE
from benchmarks import _common, _runs

TASKS = [
    "multiplication",
    "tic_tac_toe",
    "email_search",
    "email_search_plus",
    "support_dialogue",
    "game_2048",
    "knowledge_search",
    "code_repair",
]
COUNT = 500  # training scenarios to demonstrate, or all where there are fewer
STILL = 1e-12
QUICK = {"scenarios.val": 16, "scenarios.test": 32}


def measure(task: str, seed: int, count: int, folder: Path, more: dict[str, Any]) -> dict[str, Any]:
    """The row of a task and a seed."""
    root = _runs.clone(folder / f"{task}-{seed}")
    words = ["--task", task, "--count", str(count), "--min-reward", "0.5"]
    teaching, _ = _runs.show(root, ["-m", "addons.supervised.teach", *words, "--scripted"])
    settings = {
        "seed": seed,
        "train.iterations": 1,
        "train.patience": 1,
        "rollout.scenarios": 4,
        "update.learning_rate": STILL,
        "sft": json.dumps({"demonstrations": [FILE]}),
    }
    _runs.show(root, [*_runs.training(settings | more), "--task", task])
    summary = json.loads((root / "run/summary.json").read_text())
    learnt = json.loads((root / "run/sft/metrics.json").read_text())
    base, trained = summary["base"], summary["trained"]
    sampled = trained.get("sampled_success")
    return {
        "name": f"{task} seed {seed}",
        "ratio": round(trained["success"] / base["success"], 2) if base["success"] else None,
        "base": round(base["success"], 3),
        "demonstrations": round(trained["success"], 3),
        "sampled": None if sampled is None else round(sampled, 3),
        "scenarios": trained["n"],
        "conversations": learnt["trained"],
        "teaching_seconds": round(teaching),
        "seconds": round(summary["wall_seconds"]),
    }


def main() -> None:
    first, *_ = TASKS
    parser = _common.parser("demonstrations", __doc__, f"{first}, seed 1, 40 demonstrations, few scenarios")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help=f"default: all; quick: {first}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="default: 1")
    _runs.jobs(parser)
    options = parser.parse_args()
    usual = [first] if options.quick else TASKS
    cases = [(task, seed) for task in options.tasks or usual for seed in options.seeds]
    rows = _common.begin("demonstrations", options, len(cases) / len(usual))
    with tempfile.TemporaryDirectory(prefix="demonstrations-") as folder:

        def row(case: tuple[str, int]) -> dict[str, Any]:
            task, seed = case
            count = 40 if options.quick else COUNT
            return measure(task, seed, count, Path(folder), dict(QUICK) if options.quick else {})

        for measured in _runs.side_by_side(options.jobs, row, cases):
            rows.add(measured)


if __name__ == "__main__":
    _common.command(main)
