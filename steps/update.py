"""Update: one GRPO update of the LoRA adapter on a scored batch.

Counts what comes in and what goes out: collected = trained + quarantined (with a reason) + without signal. Optimiser state
and step count are carried on in the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.stage import Input, Output, UserError, main, say

if TYPE_CHECKING:
    from steps.params import UpdateParams
    from steps.types import Trajectory


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

    from steps import grpo
    from steps.types import Reward, Trajectory, read_records

    batch = read_records(Trajectory, trajectories)
    scores = {reward.trajectory_id: reward for reward in read_records(Reward, rewards)}
    missing = [trajectory.id for trajectory in batch if trajectory.id not in scores]
    if missing or len(scores) != len(batch):
        raise UserError(
            f"{rewards} does not fit {trajectories}: {len(missing)} trajectories have no reward, and there are "
            f"{len(scores)} rewards for {len(batch)} trajectories; score the batch again"
        )
    quarantined = {trajectory.id: reason for trajectory in batch if (reason := contract_breach(trajectory))}
    usable = [None if one.id in quarantined else scores[one.id].score for one in batch]
    gained, flat = grpo.advantages(usable, [one.scenario_id for one in batch], params.update.scale_rewards)
    trained = [(one, gain) for one, gain in zip(batch, gained, strict=True) if gain is not None]
    examples = [grpo.Example(row, gain) for one, gain in trained for row in one.flatten()]

    trainer = grpo.Trainer(params.policy, checkpoint=previous)
    measured = {}
    if examples:
        measured = trainer.update(examples, params.update, params.rollout.temperature, params.seed)
    trainer.save_adapter(adapter)
    trainer.save_checkpoint(checkpoint)

    known = [score for score in usable if score is not None]
    measured |= {
        "collected": len(batch),
        "trained": len(trained),
        "quarantined": len(quarantined),
        "without_signal": len(batch) - len(trained) - len(quarantined),
        "zero_variance_groups": flat,
        "groups": len({one.scenario_id for one in batch}),
        "reward_mean": fmean(known) if known else 0.0,
        "reward_std": pstdev(known) if known else 0.0,
        "success": fmean(scores[one.id].success for one in batch),
        "turns": fmean(len(one.turns) for one in batch),
        "tokens": fmean(sum(len(turn.completion_ids) for turn in one.turns) for one in batch),
        "optimizer_steps": trainer.steps,
    }
    metrics.write_text(json.dumps(dict(sorted(measured.items())), indent=2) + "\n")
    for reason in sorted(set(quarantined.values())):
        say(f"{sum(found == reason for found in quarantined.values())} trajectories quarantined: {reason}")
    say(f"{len(trained)} of {len(batch)} trajectories trained on, {flat} groups without signal")


def contract_breach(trajectory: Trajectory) -> str | None:
    """Why a trajectory must not be trained on, or None."""
    import math

    if trajectory.stop_reason == "error":
        return "the episode failed"
    if not trajectory.turns:
        return "no turn was sampled"
    for turn in trajectory.turns:
        if not turn.completion_ids:
            return "a turn without sampled tokens"
        if len(turn.completion_ids) != len(turn.logprobs):
            return "as many logprobs as sampled tokens are needed"
        if not all(math.isfinite(logprob) and logprob <= 1e-6 for logprob in turn.logprobs):
            return "a logprob that is not finite or above zero"
    return None


if __name__ == "__main__":
    main(update)
