"""A judge measured by its judgements: how many attempts it scored, its faults, and how far it agrees with the rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from steps.core.stats import added
from steps.judging import places
from steps.judging.prompts import ALIKE

if TYPE_CHECKING:
    from steps.core.records import Judgement, Reward


def report(judgements: Sequence[Judgement], rewards: Sequence[Reward]) -> dict[str, float]:
    """Numbers for judge.json and MLflow: counts, costs and means over groups. A mean of no values is left out."""
    orders = [order for judgement in judgements for order in judgement.orders]
    probes = [judgement.probe for judgement in judgements if judgement.probe is not None]
    rule = {reward.trajectory_id: reward.rule for reward in rewards}
    taus = [value for judgement in judgements if (value := tau(judgement.scores, rule)) is not None]
    fits = [fitted for judgement in judgements if (fitted := _fit(judgement)) is not None]
    means = {
        "tau_rule": taus,
        "position_bias": [fitted.first_to_last for fitted in fits if fitted.first_to_last is not None],
        "length_gain": [judgement.length_gain for judgement in judgements if judgement.length_gain is not None],
        "retest_spread": [probe.retest for probe in probes if probe.retest is not None],
        "canary_gain": [probe.canary_gain for probe in probes if probe.canary_gain is not None],
    }
    return {
        "groups": len(judgements),
        "groups_unscored": sum(None in judgement.scores.values() for judgement in judgements),
        "groups_alike": sum(judgement.problem.startswith(ALIKE) for judgement in judgements),
        "groups_shortened": sum(judgement.shortened_to is not None for judgement in judgements),
        "groups_probed": len(probes),
        "groups_with_tau": len(taus),
        "answers": sum(len(order.calls) for order in orders) + sum(len(probe.calls) for probe in probes),
        "answers_corrected": sum(len(order.calls) > 1 for order in orders),
        "orders_unusable": sum(None in order.scores for order in orders),
        "input_tokens": sum(judgement.input_tokens for judgement in judgements),
        "output_tokens": sum(judgement.output_tokens for judgement in judgements),
        "cost": added(judgement.cost for judgement in judgements),
        **{name: fmean(values) for name, values in means.items() if values},
        **by_place(fits),
    }


def tau(scores: Mapping[str, float | None], others: Mapping[str, float | None]) -> float | None:
    """Kendall's tau-b of two sets of scores of a group's attempts; None where either gives all the same score."""
    from scipy.stats import kendalltau

    names = [name for name, score in scores.items() if score is not None and others.get(name) is not None]
    pairs = [(scores[name], others[name]) for name in names]
    if any(len({pair[side] for pair in pairs}) < 2 for side in (0, 1)):
        return None
    return float(kendalltau(*zip(*pairs, strict=True)).statistic)


def position_bias(judgement: Judgement) -> float | None:
    """What an attempt gains in the first place over the last, by least squares through all orders (steps/judging/places.py);
    None where they do not tell, such as a single order."""
    fitted = _fit(judgement)
    return None if fitted is None else fitted.first_to_last


def by_place(fits: Sequence[places.Fit]) -> dict[str, float]:
    """What an attempt gains at each place, counted from 1, over the mean place: the mean over the groups of the commonest
    number of attempts (of two as common, the larger) whose orders tell it. Nothing where none does."""
    effects: dict[int, list[list[float]]] = defaultdict(list)
    for fitted in fits:
        if fitted.effects is not None:
            effects[len(fitted.effects)].append(fitted.effects)
    if not effects:
        return {}
    most = max(effects, key=lambda size: (len(effects[size]), size))
    return {f"place_{number}": fmean(gains) for number, gains in enumerate(zip(*effects[most], strict=True), 1)}


def _fit(judgement: Judgement) -> places.Fit | None:
    return places.fit([order.attempts for order in judgement.orders], [order.scores for order in judgement.orders])


def components(rewards: Sequence[Reward]) -> dict[str, float]:
    """The mean of each component over the scored trajectories; a component that a trajectory lacks counts as 0."""
    scored = [reward.components for reward in rewards if reward.score is not None]
    names = sorted({name for parts in scored for name in parts})
    return {f"reward_{name}": fmean(parts.get(name, 0.0) for parts in scored) for name in names}


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
