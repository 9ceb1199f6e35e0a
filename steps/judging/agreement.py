"""How far two judges agree about the same attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from steps.core.records import Reward


def tau(scores: Mapping[str, float | None], others: Mapping[str, float | None]) -> float | None:
    """Kendall's tau-b of two sets of scores of a group's attempts; None where either gives all the same score."""
    from scipy.stats import kendalltau

    names = [name for name, score in scores.items() if score is not None and others.get(name) is not None]
    pairs = [(scores[name], others[name]) for name in names]
    if any(len({pair[side] for pair in pairs}) < 2 for side in (0, 1)):
        return None
    return float(kendalltau(*zip(*pairs, strict=True)).statistic)


def compare(before: Sequence[Reward], after: Sequence[Reward]) -> Comparison:
    """Compare two judges' rewards group by group. ValueError where they are not of the same trajectories."""
    if {reward.trajectory_id for reward in before} != {reward.trajectory_id for reward in after}:
        raise ValueError("the rewards are not of the same trajectories")
    earlier = {reward.trajectory_id: reward.score for reward in before}
    groups: dict[str, dict[str, float | None]] = defaultdict(dict)
    for reward in after:
        groups[reward.scenario_id][reward.trajectory_id] = reward.score
    both = [(earlier[name], score) for scores in groups.values() for name, score in scores.items()]
    shifts = [new - old for old, new in both if old is not None and new is not None]
    taus = [value for scores in groups.values() if (value := tau(scores, earlier)) is not None]
    flipped = {}
    for scenario, scores in groups.items():
        old_best, new_best = best({name: earlier[name] for name in scores}), best(scores)
        if old_best and new_best and not set(old_best) & set(new_best):
            flipped[scenario] = (old_best, new_best)
    mean_tau, mean_shift = (fmean(values) if values else None for values in (taus, shifts))
    return Comparison(len(groups), len(shifts), mean_tau, mean_shift, flipped)


class Comparison(NamedTuple):
    """How two judges differ."""

    groups: int
    trajectories: int  # that both judges scored
    tau: float | None  # mean of Kendall's tau-b over the groups in which neither gives all attempts the same score
    mean_shift: float | None  # mean of the later judge's score minus the earlier's
    flipped: dict[str, tuple[list[str], list[str]]]  # scenario -> each judge's best attempts, where none is in both


def best(scores: Mapping[str, float | None]) -> list[str]:
    """The attempts with the highest score; none where all have the same."""
    scored = {name: score for name, score in scores.items() if score is not None}
    if len(set(scored.values())) < 2:
        return []
    return [name for name, score in scored.items() if score == max(scored.values())]
