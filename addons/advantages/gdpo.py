"""Advantages by the parts of a reward: GDPO (Liu et al. 2026, arXiv:2601.05242), TRL's normalize_then_sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from steps.core.stats import added
from steps.training.batches import STD_FLOOR, advantages

if TYPE_CHECKING:
    from steps.core.params import Judges, UpdateParams
    from steps.core.records import Reward, Trajectory


def by_parts(
    batch: Sequence[Trajectory],
    judged: Mapping[str, Reward],
    scores: Sequence[float | None],
    deducted: Sequence[float],
    params: UpdateParams,
) -> tuple[list[float | None], int]:
    """The advantages of a batch, and how many groups had no signal. `scores`: None where a trajectory is left out, else the
    score without what is `deducted` from it."""
    weighed = [
        {} if score is None else objectives(judged[trajectory.id], -penalty, params.score.judges)
        for trajectory, score, penalty in zip(batch, scores, deducted, strict=True)
    ]
    parts = [{name: value for name, (value, _) in each.items()} or None for each in weighed]
    weights = {name: weight for each in weighed for name, (_, weight) in each.items()}
    return aggregated(parts, [trajectory.scenario_id for trajectory in batch], weights)


def aggregated(
    parts: Sequence[Mapping[str, float] | None], groups: Sequence[str], weights: Mapping[str, float]
) -> tuple[list[float | None], int]:
    """The same from the named parts of each attempt's reward, or None where it is unscored. `weights`: of each part."""
    from statistics import fmean, stdev

    names = sorted({name for each in parts if each is not None for name in each})
    normalised: list[dict[str, float]] = [{} for _ in parts]
    for name in names:
        values = [None if each is None else each.get(name, 0.0) for each in parts]
        gains, _ = advantages(values, groups)
        for each, gain in zip(normalised, gains, strict=True):
            if gain is not None:
                each[name] = gain
    scored = [each is not None for each in parts]
    sums = [added(weights[name] * gain for name, gain in each.items()) for each in normalised]
    compared = [total for total, is_scored in zip(sums, scored, strict=True) if is_scored]
    mean, std = (fmean(compared), stdev(compared)) if len(compared) > 1 else (0.0, 0.0)
    with_signal = {group for group, each in zip(groups, normalised, strict=True) if each}
    result = [
        (total - mean) / (std + STD_FLOOR) if is_scored and group in with_signal else None
        for total, is_scored, group in zip(sums, scored, groups, strict=True)
    ]
    return result, len(set(groups) - with_signal)


def objectives(reward: Reward, punishment: float, judges: Judges) -> dict[str, tuple[float, float]]:
    """The parts of a scored reward by name, as (value, weight): a part has its judge's weight. What the parts leave of the
    score, such as all of it where there are none, is a part of the rule's, and what a truncated episode loses is one."""
    weight = {name: value for name, value in judges.model_dump().items() if value}
    names = reward.name.split("+")
    parts = {}
    for name, value in reward.components.items():
        judge = name.partition("/")[0] if len(names) > 1 else reward.name
        parts[name] = (value / weight[judge], weight[judge])
    rest = (reward.score or 0.0) - added(reward.components.values())
    if abs(rest) > 1e-9 or not parts:
        own = weight.get("rule", weight[names[0]])
        parts["rest"] = (rest / own, own)
    return parts | {"truncation": (punishment, 1.0)}
