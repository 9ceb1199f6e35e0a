"""Whole runs against TRL's GRPOTrainer: the same task, policy, scenarios, recipe and episodes; success against seconds.

    python -m benchmarks.end_to_end                             # multiplication, tic_tac_toe and email_search, seed 1
    python -m benchmarks.end_to_end --tasks email_search --seeds 1 2 3
    python -m benchmarks.end_to_end --quick                     # multiplication, two iterations, few scenarios

Ours is `python -m flows.train` with the task's preset, in a clone of the committed tree that has bytecode and Prefect's
database already, as after a machine's first run. TRL's side is one process with stock GRPOTrainer, Hugging Face generate and
no dynamo: the same scenarios for train, val and test, the first adapter, loss, learning rate, optimiser steps and number of
episodes. It plays several turns through `rollout_func`, in step (benchmarks/_trl_play.py), and both sides play the
validation scenarios after each iteration and the test scenarios with the best adapter. Left out on TRL's side: everything
that our pipeline does beside (hashes, tracking, checkpoints), the curriculum, and the penalty of truncated episodes.

`goal` is the lower of both sides' best success on validation. `seconds_ours` and `seconds_trl` are those from the start of
each side's process until the evaluation that first reaches it has ended. `ratio` is TRL's / ours. `training_ratio` is the
same for a mean iteration without its evaluation. `whole_ours` and `whole_trl` are all seconds of both sides: their tests
included, and ours with the registration of the model. A row is a task and a seed.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from benchmarks import _common, _runs
from benchmarks._trl import set_weights, train_with_trl
from benchmarks._trl_play import TrlTask

ITERATIONS = {"multiplication": 8, "tic_tac_toe": 20, "email_search": 8}
SHARED = {  # settings that have the same names as GRPOConfig's
    "loss_type",
    "scale_rewards",
    "steps_per_generation",
    "num_iterations",
    "learning_rate",
    "beta",
    "epsilon",
    "epsilon_high",
}
LEFT_BY_A_RUN = [  # so that it is not the first on its machine: bytecode, and Prefect's database
    ["-m", "compileall", "-q", "flows", "steps", "addons", "environments"],
    ["-m", "prefect", "server", "database", "upgrade", "--yes"],
]
QUICK = {"train.iterations": 2, "rollout.scenarios": 4, "scenarios.val": 16, "scenarios.test": 16}


def ours(task: str, seed: int, root: Path, more: dict[str, Any]) -> dict[str, Any]:
    """A run of the flow in a clone: {"val": success by iteration, "reached": seconds until each is known, "test", "base",
    "training": seconds of each iteration without its evaluation, "whole": seconds in all}."""
    _runs.clone(root)
    for words in LEFT_BY_A_RUN:
        _runs.show(root, words)
    count = more.get("train.iterations", ITERATIONS[task])
    chosen = {"seed": seed, "train.iterations": count, "train.patience": count} | more
    began = time.time()
    seconds, _ = _runs.show(root, [*_runs.training(chosen), "--task", task])
    summary = json.loads((root / "run/summary.json").read_text())
    rows = summary["iterations"]
    written = [(root / f"run/{number:03d}/evaluation/summary.json").stat().st_mtime for number in range(1, count + 1)]
    return {
        "val": [row["success"] for row in rows],
        "reached": [moment - began for moment in written],
        "test": summary["trained"]["success"],
        "base": summary["base"]["success"],
        "training": [
            sum(row["seconds"].values()) + row["overhead_seconds"] - row["seconds"]["evaluate"] for row in rows
        ],
        "whole": seconds,
    }


class Validation:
    """Measures TRL's side after each of its iterations: success on validation, and at the end, with the weights that were
    best, on the test split."""

    def __init__(self, side: TrlTask) -> None:
        self.side = side
        self.steps = side.steps
        self.curve: list[float] = []
        self.reached: list[float] = []  # when each is known, in seconds since 1970
        self.weights: dict[str, Any] = {}
        self.test = 0.0

    def __call__(self, model: Any, tokenizer: Any, step: int) -> None:
        if step % self.steps:
            return
        self.curve.append(self.side.success(model, tokenizer, "val"))
        self.reached.append(time.time())
        if self.curve[-1] > max(self.curve[:-1], default=-1.0):
            trained = ((name, value) for name, value in model.named_parameters() if value.requires_grad)
            self.weights = {name: value.detach().clone() for name, value in trained}
        if len(self.curve) == self.side.params.train.iterations:
            set_weights(model, self.weights)
            self.test = self.side.success(model, tokenizer, "test")


def run_trl(task: str, folder: str) -> dict[str, Any]:
    """TRL's side, on the scenarios and from the first adapter of our run in folder/ours; the same keys as of `ours`, but for
    "base" and "whole", and "reached" in seconds since 1970. `compare` runs this in a process of its own."""
    from steps.policy.loading import local

    side = TrlTask(task, Path(folder, "ours"))
    params, train, order = side.params, side.scenarios("train"), Random(side.params.seed)
    update = params.update
    needed = params.train.iterations * params.rollout.scenarios
    drawn = [scenario for _ in range(-(-needed // len(train))) for scenario in order.sample(train, len(train))]
    validation = Validation(side)
    seconds = train_with_trl(
        local(params.policy).base_model,
        side.own / "run/000/checkpoint",
        [list(scenario.messages) for scenario in drawn],
        side.reward,
        params.train.iterations * side.steps,
        params.rollout.scenarios * params.rollout.attempts // update.steps_per_generation,
        Path(folder),
        side.rollout_func(),
        attempts=params.rollout.attempts,
        after_step=validation,
        seed=params.seed,
        gradient_accumulation_steps=1,
        **update.model_dump(include=SHARED),
        **side.settings(),
    )
    return {
        "val": validation.curve,
        "reached": validation.reached,
        "test": validation.test,
        "training": [sum(seconds[place : place + side.steps]) for place in range(0, len(seconds), side.steps)],
    }


def until(side: dict[str, Any], goal: float) -> float:
    """Seconds until a side's success on validation is first known to reach the goal."""
    return next(seconds for seconds, success in zip(side["reached"], side["val"], strict=True) if success >= goal)


def compare(task: str, seed: int, folder: Path, more: dict[str, Any]) -> dict[str, Any]:
    """Both sides: the row of a task and a seed."""
    own = ours(task, seed, folder / "ours", more)
    began = time.time()
    trl = _common.call("end_to_end.run_trl", task=task, folder=folder)
    trl |= {"whole": time.time() - began, "reached": [moment - began for moment in trl["reached"]]}
    goal = min(max(own["val"]), max(trl["val"]))
    seconds = {"seconds_ours": until(own, goal), "seconds_trl": until(trl, goal)}
    return {
        "name": f"{task} seed {seed}",
        "ratio": round(seconds["seconds_trl"] / seconds["seconds_ours"], 2),
        "goal": round(goal, 3),
        **{name: round(value, 1) for name, value in seconds.items()},
        "training_ratio": round(fmean(trl["training"]) / fmean(own["training"]), 2),
        "whole_ours": round(own["whole"]),
        "whole_trl": round(trl["whole"]),
        "base": round(own["base"], 3),
        "test_ours": round(own["test"], 3),
        "test_trl": round(trl["test"], 3),
        "val_ours": [round(value, 3) for value in own["val"]],
        "val_trl": [round(value, 3) for value in trl["val"]],
        "reached_ours": [round(value, 1) for value in own["reached"]],
        "reached_trl": [round(value, 1) for value in trl["reached"]],
    }


def main() -> None:
    first, *_ = ITERATIONS
    quick = f"{first}, seed 1, {QUICK['train.iterations']} iterations of {QUICK['rollout.scenarios']} scenarios"
    parser = _common.parser("end_to_end", __doc__, quick)
    parser.add_argument("--tasks", nargs="+", choices=ITERATIONS, help=f"default: all; quick: {first}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="default: 1")
    options = parser.parse_args()
    usual = [first] if options.quick else list(ITERATIONS)
    tasks = options.tasks or usual
    rows = _common.begin("end_to_end", options, len(tasks) * len(options.seeds) / len(usual))
    for task in tasks:
        for seed in options.seeds:
            with tempfile.TemporaryDirectory(prefix="end-to-end-") as folder:
                rows.add(compare(task, seed, Path(folder), dict(QUICK) if options.quick else {}))


if __name__ == "__main__":
    _common.command(main)
