"""A whole iteration against TRL's own loop: 128 episodes sampled, scored and trained on with the task's own small policy.

    python -m benchmarks.iteration              # about 8 minutes on 2 cores
    python -m benchmarks.iteration --quick      # one timed iteration of 64 episodes, TRL at one batch size

Ours is `flows.train` itself, in a clone of the committed tree: the median seconds of rollout, score and update, and beside
them what DVC, MLflow and Prefect add. TRL's is one GRPOTrainer that samples with Hugging Face generate, without dynamo, at
the fastest of several batch sizes. Same task, reward, first adapter, temperature, lengths, loss (dapo, no KL term) and one
optimiser step an iteration. How TRL plays several turns is in benchmarks/_trl_play.py.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import _common, _runs
from benchmarks._common import tell
from benchmarks._trl import train_with_trl
from benchmarks._trl_play import TrlTask
from benchmarks._update import LEARNING_RATE

MAX_TOKENS = {"multiplication": 64, "email_search": 64, "json_records": 48}  # of a turn
BATCHES = {"multiplication": (32, 128), "email_search": (16, 32), "json_records": (16, 32)}  # for TRL
TASKS = ("multiplication", "email_search")  # with small policies; benchmarks.pretrained has the other


class Size(NamedTuple):
    """How much of both sides is done."""

    warm: int  # iterations before those that count
    timed: int  # iterations that count
    scenarios: int  # of an iteration, with 8 attempts each
    batches: int  # sizes that TRL is tried with, of BATCHES


FULL, QUICK = Size(2, 5, 16, 2), Size(1, 1, 8, 1)


def ours(task: str, root: Path, size: Size, more: Sequence[str] = ()) -> dict[str, Any]:
    """Medians over iterations of a run of the flow in a clone, in seconds: its stages' own work, and the rest. `more`: words
    of its command."""
    _runs.clone(root)
    chosen = {
        "rollout.max_tokens": MAX_TOKENS[task],
        "rollout.scenarios": size.scenarios,
        "update.loss_type": "dapo",
        "update.scale_rewards": "group",
        "update.beta": 0,
        "update.num_iterations": 1,
        "update.steps_per_generation": 1,
        "update.learning_rate": LEARNING_RATE,
        "train.iterations": size.warm + size.timed,
        "train.patience": size.warm + size.timed,
        "scenarios.val": 16,
        "scenarios.test": 16,
    }
    _runs.show(root, [*_runs.training(chosen), "--task", task, *more])
    rows = json.loads((root / "run" / "summary.json").read_text())["iterations"][size.warm :]
    stages = ("rollout", "score", "update")
    seconds = {stage: median(row["seconds"][stage] for row in rows) for stage in stages}
    return seconds | {
        "compute": median(sum(row["seconds"][stage] for stage in stages) for row in rows),
        "overhead": median(row["overhead_seconds"] for row in rows),
    }


def run_trl(task: str, folder: str, steps: int, batch: int) -> list[float]:
    """Seconds of each of TRL's iterations, on the scenarios and from the first adapter of our side's run in folder/ours.

    `compare` runs this in a process of its own.
    """
    from steps.policy.loading import local

    side = TrlTask(task, Path(folder, "ours"))
    scenarios = side.scenarios("train")[: side.params.rollout.scenarios]
    return train_with_trl(
        local(side.params.policy).base_model,
        side.own / "run/000/checkpoint",
        [list(scenario.messages) for scenario in scenarios],
        side.reward,
        steps,
        batch,
        Path(folder),
        side.rollout_func(),
        attempts=side.params.rollout.attempts,
        **side.settings(),
    )


def compare(task: str, folder: Path, size: Size, more: Sequence[str] = ()) -> dict[str, Any]:
    """Both sides of a task: its row. `more`: further words of the flow's command."""
    tell(f"{task}: the flow")
    own = ours(task, folder / "ours", size, more)
    trials = {}
    for batch in BATCHES[task][: size.batches]:
        steps = size.warm + size.timed
        seconds = _common.call("iteration.run_trl", task=task, folder=folder, steps=steps, batch=batch)
        trials[batch] = median(seconds[size.warm :])
        tell(f"{task}: TRL with batches of {batch}: {trials[batch]:.2f} s an iteration")
    best = min(trials, key=lambda batch: trials[batch])
    return {
        "name": task,
        "ratio": round(trials[best] / own["compute"], 2),
        "seconds_ours": round(own["compute"], 3),
        "seconds_trl": round(trials[best], 3),
        "overhead_seconds": round(own["overhead"], 3),
        "seconds": {stage: round(own[stage], 3) for stage in ("rollout", "score", "update")},
        "batch_trl": best,
    }


def main() -> None:
    quick = f"{QUICK.timed} timed iteration of {8 * QUICK.scenarios} episodes in place of {FULL.timed} of "
    quick += f"{8 * FULL.scenarios}, and TRL at the first of its batch sizes alone, which need not be its fastest"
    parser = _common.parser("iteration", __doc__, quick)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--count", type=int, help=f"timed iterations (default: {FULL.timed}; quick: {QUICK.timed})")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    size = size._replace(timed=options.count or size.timed)
    rows = _common.begin("iteration", options, len(options.tasks) / len(TASKS))
    for task in options.tasks:
        with tempfile.TemporaryDirectory(prefix="iteration-") as folder:
            rows.add(compare(task, Path(folder), size))


if __name__ == "__main__":
    _common.command(main)
