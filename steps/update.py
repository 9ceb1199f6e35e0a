"""Update: one GRPO update of the LoRA adapter on a scored batch.

Decides once what becomes of each trajectory (steps/training/fates.py), makes TRL's optimiser steps on all that are not
quarantined, or with update.without_signal: drop on those that have a signal, and writes every fate to fates.json. Optimiser
state and step count are carried on in the checkpoint. Where an older adapter sampled the batch (train.overlap), the loss is
corrected by importance sampling, and the check of the sampler computes with that adapter. With update.launcher it starts
update.processes processes, on a GPU each where there are any, that share the optimiser steps: on this machine
(addons/accelerate/ranks.py) or on a Ray cluster (addons/fleet/ray_train.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from steps.core.errors import UserError
from steps.core.ports import bring
from steps.core.progress import say
from steps.core.section import at
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from steps.core.params import Update, UpdateParams
    from steps.core.records import Reward, Row, Trajectory
    from steps.training.batches import Example
    from steps.training.fates import Fate


def update(
    trajectories: Input,
    rewards: Input,
    previous: Input,
    adapter: Output,
    checkpoint: Output,
    metrics: Output,
    params: UpdateParams,
    fates: Output | None = None,
    behaviour: Input | None = None,
    scenarios: Input | None = None,
) -> None:
    """Train from the `previous` checkpoint; write adapter, checkpoint, metrics.json, and each trajectory's fate. `behaviour`
    is the adapter that sampled, where that may be an older one (train.overlap); `scenarios` are read with
    update.advantages: gigpo alone."""
    import json

    from steps.policy.adapter import adapter_hash
    from steps.policy.machine import prepare_sampling, prepare_training
    from steps.training import contract, grpo
    from steps.training.fates import account
    from steps.training.processes import is_launched, process

    if not is_launched(params.update):
        read = {"trajectories": trajectories, "rewards": rewards, "previous": previous, "behaviour": behaviour}
        written = {"adapter": adapter, "checkpoint": checkpoint, "metrics": metrics, "fates": fates}
        launch(params, **read, **written, scenarios=scenarios)
        return
    batch, judged = read_batch(trajectories, rewards)
    prepare_training(params.policy.threads, at(params, "policy.deterministic"))
    trainer = grpo.Trainer(params.policy, checkpoint=previous, is_sharded=bool(at(params, "update.shard")))
    if params.update.reference != "start":
        trainer.start = None  # which later iterations will not read
    elif trainer.start is None:
        raise UserError(
            f"update.reference is start, and {previous} does not say what that is: neither the stage start nor sft made its "
            "beginning; train again with policy.start_from or sft (.venv/bin/python -m flows.train), or take "
            "update.reference out"
        )
    # With train.overlap the batch may be of an older adapter; where it is, the loss has the correction for that.
    older = behaviour if behaviour and adapter_hash(behaviour) != trainer.adapter_hash else None
    contract.check_adapter(batch, adapter_hash(older) if older else trainer.adapter_hash, older or previous)
    plan = planned(batch, judged, trainer.vocabulary, scenarios, params)

    measured: dict[str, float] = {}
    settings = params.update.model_copy(update={"steps_per_generation": plan.steps})
    if plan.examples and plan.steps:
        measured = trainer.train(plan.examples, settings, params.rollout.temperature, params.seed, older)
    tokens = account(batch, plan.rows, plan.fates)
    trainer.save_checkpoint(checkpoint, trainer.save_adapter(adapter))
    if process()[1] > 1:
        prepare_sampling()  # the engine is in another process, and cannot ask for the GPU

    measured |= of_batch(batch, judged, plan.scores) | tokens | plan.metrics | {"optimizer_steps": trainer.steps}
    quarantine = plan.quarantine
    metrics.write_text(json.dumps(dict(sorted(measured.items())) | {"quarantine": quarantine}, indent=2) + "\n")
    if fates is not None:
        fates.write_text(json.dumps(plan.fates, indent=2) + "\n")
    for reason, names in quarantine.items():
        first = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        say(f"{len(names)} trajectories quarantined: {reason} ({first})")
    without = plan.metrics["zero_variance_groups"]
    say(f"{plan.metrics['trained']} of {len(batch)} trajectories trained on, {without} groups without signal")


def launch(params: UpdateParams, **files: Input | Output | None) -> None:
    """Run `update` on these files in several processes, as the add-on does that `update.launcher` names."""
    from steps.policy.machine import make_room

    make_room()
    bring("launcher", at(params, "update.launcher"), "update.launcher")(update, params, **files)


class Plan(NamedTuple):
    """What becomes of each trajectory of a batch."""

    examples: list[Example]  # what enters the loss, also without a signal where update.without_signal is count
    fates: dict[str, Fate]  # by trajectory id
    rows: dict[str, list[Row]]  # by trajectory id
    scores: list[float | None]  # [B] what is compared in a group; None: unscored or quarantined
    quarantine: dict[str, list[str]]  # trajectory ids by reason
    steps: int  # optimiser steps of a pass
    metrics: dict[str, float]


def planned(
    batch: list[Trajectory], judged: dict[str, Reward], vocabulary: int, scenarios: Input | None, params: UpdateParams
) -> Plan:
    """Check every trajectory, compare those of a scenario with each other, and choose the examples."""
    from steps.training import batches, contract
    from steps.training.fates import TRAINED, WITHOUT_SIGNAL, fate

    rows, quarantine = checked(batch, vocabulary)
    quarantined = {name for names in quarantine.values() for name in names}
    truncated = {trajectory.id for trajectory in batch if contract.is_truncated(trajectory)} - quarantined
    masked = truncated if params.update.truncated_completions == "mask" else set()
    deducted = penalties(batch, truncated, params.update)
    scores = [
        None if trajectory.id in quarantined or (score := judged[trajectory.id].score) is None else score - penalty
        for trajectory, penalty in zip(batch, deducted, strict=True)
    ]
    group_of = [trajectory.scenario_id for trajectory in batch]
    if (way := at(params, "update.multi_objective_aggregation") or "sum_then_normalize") == "sum_then_normalize":
        advantages, flat_count = batches.advantages(scores, group_of, params.update.scale_rewards or "group")
    else:
        aggregate = bring("parts", way, "update.multi_objective_aggregation")
        advantages, flat_count = aggregate(batch, judged, scores, deducted, params)
    by_turn: list[list[float]] = [[] for _ in batch]
    turn_metrics: dict[str, float] = {}
    if (name := at(params, "update.advantages") or "grpo") != "grpo":
        credit_turns = bring("advantages", name, "update.advantages")
        advantages, by_turn, flat_count, turn_metrics = credit_turns(batch, scores, advantages, scenarios, params)
    fates = {
        trajectory.id: fate(
            trajectory.id in quarantined,
            score,
            advantage,
            trajectory.id in masked,
            any(1 in row.mask for row in rows[trajectory.id]),
        )
        for trajectory, score, advantage in zip(batch, scores, advantages, strict=True)
    }
    if len(fates) != len(batch):
        raise AssertionError(f"{len(batch)} trajectories have {len(fates)} ids: some would be lost")
    counted = TRAINED if params.update.without_signal == "drop" else (*TRAINED, *WITHOUT_SIGNAL)
    examples = [
        batches.Example(
            rows[trajectory.id],
            advantage or 0.0,
            trajectory.scenario_id,
            trajectory.id in masked,
            batches.of_tokens(trajectory, turns),
        )
        for trajectory, advantage, turns in zip(batch, advantages, by_turn, strict=True)
        if fates[trajectory.id] in counted
    ]
    trained = sum(kind in TRAINED for kind in fates.values())
    metrics = turn_metrics | {
        "trained": trained,
        "quarantined": len(quarantined),
        "without_signal": len(fates) - trained - len(quarantined),
        "truncated": len(truncated),
        "rows": sum(len(rows[name]) for name, kind in fates.items() if kind in TRAINED),
        "zero_variance_groups": flat_count,  # those without a score, too
    }
    with_signal = {trajectory.scenario_id for trajectory in batch if fates[trajectory.id] == "gradient"}
    steps = batches.steps_of(len(with_signal), len(set(group_of)), params.update)
    return Plan(examples, fates, rows, scores, quarantine, steps, metrics)


def read_batch(trajectories: Input, rewards: Input) -> tuple[list[Trajectory], dict[str, Reward]]:
    """The trajectories, and their rewards by trajectory id. UserError where the two files do not fit each other."""
    from steps.core.records import Reward, Trajectory, read_records

    batch = read_records(Trajectory, trajectories)
    judged = {reward.trajectory_id: reward for reward in read_records(Reward, rewards)}
    missing = [trajectory.id for trajectory in batch if trajectory.id not in judged]
    if missing or len(judged) != len(batch):
        raise UserError(
            f"{rewards} does not fit {trajectories}: {len(missing)} trajectories have no reward, and there are "
            f"{len(judged)} rewards for {len(batch)} trajectories; score the batch again"
        )
    return batch, judged


def checked(batch: list[Trajectory], vocabulary: int) -> tuple[dict[str, list[Row]], dict[str, list[str]]]:
    """The training rows by trajectory id, and the ids that break the token contract by the reason."""
    from steps.training import contract

    end = contract.end_of_turn(batch)
    rows: dict[str, list[Row]] = {}
    quarantine: dict[str, list[str]] = {}
    for trajectory in batch:
        try:
            rows[trajectory.id] = trajectory.flatten()
        except ValueError:  # tokens without logprobs, which are a breach
            rows[trajectory.id] = []
        if reason := contract.breach(trajectory, rows[trajectory.id], end, vocabulary):
            quarantine.setdefault(reason, []).append(trajectory.id)
    return rows, quarantine


def of_batch(batch: list[Trajectory], judged: dict[str, Reward], scores: list[float | None]) -> dict[str, float]:
    """Metrics of the batch as it was sampled and scored: `scores` are those that are compared."""
    from statistics import fmean, pstdev

    scored = [score for score in scores if score is not None]
    outcomes = [success for trajectory in batch if (success := judged[trajectory.id].success) is not None]
    return {
        "collected": len(batch),
        "groups": len({trajectory.scenario_id for trajectory in batch}),
        "reward_mean": fmean(scored) if scored else 0.0,
        "reward_std": pstdev(scored) if scored else 0.0,
        **({"success": fmean(outcomes)} if outcomes else {}),  # a task without a rule has none
        "turns": fmean(len(trajectory.turns) for trajectory in batch),
        "tokens": fmean(sum(len(turn.completion_ids) for turn in trajectory.turns) for trajectory in batch),
    }


def penalties(batch: list[Trajectory], cut: set[str], settings: Update) -> list[float]:
    """What is taken from the score of each trajectory: of those that were cut off, whose ids are `cut`, or by length."""
    if (kind := settings.truncated_completions) == "soft_overlong":
        punished: list[float] = bring("punishment", kind, "update.truncated_completions")(batch, settings)
        return punished
    return [settings.truncation_penalty or 0.0 if trajectory.id in cut else 0.0 for trajectory in batch]


if __name__ == "__main__":
    main(update)
