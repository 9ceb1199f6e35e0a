"""Update: one GRPO update of the LoRA adapter on a scored batch.

Counts what comes in and what goes out: collected = trained + quarantined (with a reason) + without signal. Optimiser state
and step count are carried on in the checkpoint. On several GPUs, or several processes of one machine:
`accelerate launch --multi_gpu --num_processes 2 -m steps.update …` with the options of dvc.yaml (--multi_gpu is what
accelerate calls several processes, without a GPU too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.progress import say
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from steps.core.params import Update, UpdateParams
    from steps.core.records import Reward, Row, Trajectory


def update(
    trajectories: Input,
    rewards: Input,
    previous: Input,
    adapter: Output,
    checkpoint: Output,
    metrics: Output,
    params: UpdateParams,
) -> None:
    """Train from the `previous` checkpoint; write adapter, checkpoint and metrics.json."""
    import json
    from statistics import fmean, pstdev

    from steps.core.records import Reward, Trajectory, read_records
    from steps.policy.machine import prepare_training
    from steps.training import batches, contract, grpo

    batch = read_records(Trajectory, trajectories)
    scores = {reward.trajectory_id: reward for reward in read_records(Reward, rewards)}
    missing = [trajectory.id for trajectory in batch if trajectory.id not in scores]
    if missing or len(scores) != len(batch):
        raise UserError(
            f"{rewards} does not fit {trajectories}: {len(missing)} trajectories have no reward, and there are "
            f"{len(scores)} rewards for {len(batch)} trajectories; score the batch again"
        )
    prepare_training()
    trainer = grpo.Trainer(params.policy, checkpoint=previous)
    contract.check_adapter(batch, trainer.adapter_hash, previous)
    end = contract.end_of_turn(batch)
    rows: dict[str, list[Row]] = {}
    quarantine: dict[str, list[str]] = {}
    for one in batch:
        rows[one.id], reason = flattened(one)
        if reason := reason or contract.breach(one, rows[one.id], end, trainer.vocabulary):
            quarantine.setdefault(reason, []).append(one.id)
    bad = {name for names in quarantine.values() for name in names}
    cut = {one.id for one in batch if one.stop_reason in contract.TRUNCATED and one.id not in bad}
    usable = [None if one.id in bad else reward(scores[one.id], one.id in cut, params.update) for one in batch]
    gained, flat = batches.advantages(usable, [one.scenario_id for one in batch], params.update.scale_rewards)
    masked = cut if params.update.truncated_completions == "mask" else set()
    trained = [
        (one, gain) for one, gain in zip(batch, gained, strict=True) if gain is not None and one.id not in masked
    ]
    examples = [batches.Example(row, gain, one.scenario_id) for one, gain in trained for row in rows[one.id]]

    measured = {}
    if examples:
        measured = trainer.update(examples, params.update, params.rollout.temperature, params.seed)
    trainer.save_checkpoint(checkpoint, trainer.save_adapter(adapter))

    known = [score for score in usable if score is not None]
    counts = {
        "collected": len(batch),
        "trained": len(trained),
        "quarantined": len(bad),
        "without_signal": sum(gain is None or one.id in masked for one, gain in zip(batch, gained, strict=True))
        - len(bad),
    }
    if counts["collected"] != counts["trained"] + counts["quarantined"] + counts["without_signal"]:
        raise AssertionError(f"trajectories were lost: {counts}")
    measured |= counts | {
        "truncated": len(cut),
        "rows": len(examples),
        "zero_variance_groups": flat,
        "groups": len({one.scenario_id for one in batch}),
        "reward_mean": fmean(known) if known else 0.0,
        "reward_std": pstdev(known) if known else 0.0,
        "success": fmean(scores[one.id].success for one in batch),
        "turns": fmean(len(one.turns) for one in batch),
        "tokens": fmean(sum(len(turn.completion_ids) for turn in one.turns) for one in batch),
        "optimizer_steps": trainer.steps,
    }
    metrics.write_text(json.dumps(dict(sorted(measured.items())) | {"quarantine": quarantine}, indent=2) + "\n")
    for reason, names in quarantine.items():
        say(
            f"{len(names)} trajectories quarantined: {reason} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        )
    say(f"{len(trained)} of {len(batch)} trajectories trained on, {flat} groups without signal")


def flattened(trajectory: Trajectory) -> tuple[list[Row], str | None]:
    """The training rows, or why there are none."""
    try:
        return trajectory.flatten(), None
    except ValueError:
        return [], "not as many logprobs as sampled tokens"


def reward(judged: Reward, is_cut: bool, update: Update) -> float | None:
    """What is compared within a group: the score, less where a truncated episode is penalised."""
    if judged.score is None or not is_cut or update.truncation_penalty is None:
        return judged.score
    return judged.score - update.truncation_penalty


if __name__ == "__main__":
    main(update)
