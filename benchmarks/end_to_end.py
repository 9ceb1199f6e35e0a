"""Whole runs against TRL's GRPOTrainer: the same task, policy, scenarios, recipe and episodes; success against seconds.

    python -m benchmarks.end_to_end                             # multiplication, tic_tac_toe and email_search, seed 1
    python -m benchmarks.end_to_end --tasks email_search --seeds 1 2 3
    python -m benchmarks.end_to_end --quick                     # multiplication, two iterations, few scenarios

Ours is `python -m flows.train` with the task's preset, in a clone of the committed tree: all of it counts, from the start of
Python to the registered model. TRL's side is one process with stock GRPOTrainer, Hugging Face generate and no dynamo: the
same scenarios for train, val and test, the first adapter, loss, learning rate, optimiser steps and number of episodes. It
plays several turns through `rollout_func`, in step (benchmarks/iteration.py), and both sides play the validation scenarios
after each iteration and the test scenarios with the best adapter. Left out on TRL's side: everything that our pipeline
does beside (hashes, tracking, checkpoints), the curriculum, and the penalty of truncated episodes.

`goal` is the lower of both sides' best success on validation. `seconds_ours` and `seconds_trl` are those until each first
reaches it: all of the time outside iterations, and the iterations so far with their evaluations. `ratio` is TRL's / ours.
`training_ratio` is the same for a mean iteration without its evaluation. A row is a task and a seed.
"""

from __future__ import annotations

import json
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from benchmarks import _common, _runs
from benchmarks._trl import train_with_trl
from benchmarks.iteration import Lockstep, in_step

ITERATIONS = {"multiplication": 8, "tic_tac_toe": 12, "email_search": 14}
QUICK = {"train.iterations": 2, "rollout.scenarios": 4, "scenarios.val": 16, "scenarios.test": 16}


def ours(task: str, seed: int, root: Path, more: dict[str, Any]) -> dict[str, Any]:
    """A run of the flow in a clone: {"val": success by iteration, "test", "base", "before": seconds outside iterations,
    "seconds": of each iteration with its evaluation, "training": without}."""
    _runs.clone(root)
    count = more.get("train.iterations", ITERATIONS[task])
    chosen = {"seed": seed, "train.iterations": count, "train.patience": count, "evaluate.sampled_attempts": 0} | more
    seconds, _ = _runs.show(root, [*_runs.training(chosen), "--task", task])
    summary = json.loads((root / "run/summary.json").read_text())
    rows = summary["iterations"]
    whole = [sum(row["seconds"].values()) + row["overhead_seconds"] for row in rows]
    return {
        "val": [row["success"] for row in rows],
        "test": summary["trained"]["success"],
        "base": summary["base"]["success"],
        "before": seconds - sum(whole),
        "seconds": whole,
        "training": [total - row["seconds"]["evaluate"] for total, row in zip(whole, rows, strict=True)],
    }


def run_trl(task: str, folder: str) -> dict[str, Any]:
    """TRL's side, on the scenarios and from the first adapter of our run in folder/ours; the same keys as of `ours`, but for
    "base" and "before". `compare` runs this in a process of its own."""
    import environments
    from environments.base import Scenario
    from steps.core.params import Params, load
    from steps.core.records import read_records
    from steps.policy.chat import Chat
    from steps.policy.loading import local

    own = Path(folder, "ours")
    params = load(own / "params.yaml", Params)
    env = environments.load(task)
    data = env.load(own / "tasks_data" / task)
    train, val, test = (
        read_records(Scenario, own / f"run/scenarios/{split}.parquet") for split in ("train", "val", "test")
    )
    count, attempts, parts = params.rollout.scenarios, params.rollout.attempts, params.update.steps_per_generation
    order = Random(params.seed)
    drawn: list[Scenario] = []
    while len(drawn) < params.train.iterations * count:
        drawn += order.sample(train, len(train))
    by_prompt = {json.dumps(list(scenario.messages)): scenario for scenario in train}

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        scenarios = [by_prompt[json.dumps(prompt)] for prompt in prompts]
        return [
            sum(part.value for part in env.components(scenario, [*scenario.messages, *answers]))
            for scenario, answers in zip(scenarios, columns.get("transcript", completions), strict=True)
        ]

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        return in_step(env, data, [by_prompt[json.dumps(prompt)] for prompt in prompts], trainer, params)

    def success(model: Any, tokenizer: Any, scenarios: list[Scenario]) -> float:
        """As the stage evaluate has it: one attempt each, at its temperature."""
        from steps.sampling import episodes

        chat = Chat(tokenizer, [tool.schema for tool in env.tools().values()])
        limits = params.evaluate
        longest = limits.max_tokens or params.rollout.max_tokens or 64
        played = episodes.play(
            Lockstep(model, chat.end, tokenizer.pad_token_id, longest, limits.temperature),
            chat,
            env,
            data,
            [(scenario, 0) for scenario in scenarios],
            prefix="trl",
            seed=params.seed,
            adapter_hash="",
            context=params.policy.context,
            max_tokens=longest,
        )
        transcripts = (
            [message for turn in trajectory.turns for message in (turn.message, *turn.observations)]
            for trajectory in played
        )
        return fmean(
            env.success(scenario, [*scenario.messages, *messages])
            for scenario, messages in zip(scenarios, transcripts, strict=True)
        )

    curve: list[float] = []
    spent: list[float] = []  # on evaluations
    best: dict[str, Any] = {}

    def evaluate(model: Any, tokenizer: Any, step: int) -> None:
        """After each generation's optimiser steps; the weights that are best on validation are kept."""
        if step % parts:
            return
        began = time.perf_counter()
        curve.append(success(model, tokenizer, val))
        if curve[-1] > max(curve[:-1], default=-1.0):
            trained = ((name, value) for name, value in model.named_parameters() if value.requires_grad)
            best.update({name: value.detach().clone() for name, value in trained})
        spent.append(time.perf_counter() - began)

    several = task != "multiplication"  # turns
    seconds = train_with_trl(
        local(params.policy).base_model,
        own / "run/000/checkpoint",
        [list(scenario.messages) for scenario in drawn],
        reward,
        params.train.iterations * parts,
        count * attempts // parts,
        Path(folder),
        rollout if several else None,
        attempts=attempts,
        accumulate=1,
        after_step=evaluate,
        steps_per_generation=parts,
        num_iterations=params.update.num_iterations,
        learning_rate=params.update.learning_rate,
        beta=params.update.beta,
        epsilon=params.update.epsilon,
        epsilon_high=params.update.epsilon_high,
        temperature=params.rollout.temperature,
        max_completion_length=params.policy.context if several else params.rollout.max_tokens or 64,
        seed=params.seed,
        at_end=lambda model, tokenizer: best.update(test=success(with_weights(model, best), tokenizer, test)),
    )
    training = [sum(seconds[place : place + parts]) for place in range(0, len(seconds), parts)]
    return {
        "val": curve,
        "test": best["test"],
        "seconds": [sum(both) for both in zip(training, spent, strict=True)],
        "training": training,
    }


def with_weights(model: Any, weights: dict[str, Any]) -> Any:
    """The model with these weights."""
    import torch

    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad:
                value.copy_(weights[name])
    return model


def until(side: dict[str, Any], goal: float) -> float:
    """Seconds from the start of a side until its success on validation first reaches the goal."""
    sums = accumulate(side["seconds"], initial=side["before"])
    next(sums)
    return next(total for total, success in zip(sums, side["val"], strict=True) if success >= goal)


def compare(task: str, seed: int, folder: Path, more: dict[str, Any]) -> dict[str, Any]:
    """Both sides: the row of a task and a seed."""
    own = ours(task, seed, folder / "ours", more)
    began = time.perf_counter()
    trl = _common.call("end_to_end.run_trl", task=task, folder=folder)
    trl["before"] = time.perf_counter() - began - sum(trl["seconds"])
    goal = min(max(own["val"]), max(trl["val"]))
    seconds = {"seconds_ours": until(own, goal), "seconds_trl": until(trl, goal)}
    return {
        "name": f"{task} seed {seed}",
        "ratio": round(seconds["seconds_trl"] / seconds["seconds_ours"], 2),
        "goal": round(goal, 3),
        **{name: round(value) for name, value in seconds.items()},
        "training_ratio": round(fmean(trl["training"]) / fmean(own["training"]), 2),
        "whole_ours": round(own["before"] + sum(own["seconds"])),
        "whole_trl": round(trl["before"] + sum(trl["seconds"])),
        "base": round(own["base"], 3),
        "test_ours": round(own["test"], 3),
        "test_trl": round(trl["test"], 3),
        "val_ours": [round(value, 3) for value in own["val"]],
        "val_trl": [round(value, 3) for value in trl["val"]],
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
