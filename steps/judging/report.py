"""What is known of a judge from what it judged: how many it scored, its faults, and whether it agrees with the rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from steps.core.records import Judgement, Reward


def report(judgements: Sequence[Judgement], rewards: Sequence[Reward]) -> dict[str, float]:
    """Numbers for judge.json and MLflow: counts, costs, means over groups. What cannot be measured is left out."""
    orders = [order for one in judgements for order in one.orders]
    probes = [one.probe for one in judgements if one.probe is not None]
    rule = {one.trajectory_id: one.rule for one in rewards}
    taus = [found for one in judgements if (found := tau(one.scores, rule)) is not None]
    means = {
        "tau_rule": taus,
        "position_bias": [found for one in judgements if (found := position_bias(one)) is not None],
        "retest_spread": [probe.retest for probe in probes if probe.retest is not None],
        "canary_gain": [probe.canary_gain for probe in probes if probe.canary_gain is not None],
    }
    return {
        "groups": len(judgements),
        "groups_unscored": sum(None in one.scores.values() for one in judgements),
        "groups_shortened": sum(one.shortened_to is not None for one in judgements),
        "groups_probed": len(probes),
        "groups_with_tau": len(taus),
        "answers": sum(len(order.calls) for order in orders) + sum(len(probe.calls) for probe in probes),
        "answers_corrected": sum(len(order.calls) > 1 for order in orders),
        "orders_unusable": sum(None in order.scores for order in orders),
        "input_tokens": sum(one.input_tokens for one in judgements),
        "output_tokens": sum(one.output_tokens for one in judgements),
        "cost": sum(one.cost for one in judgements),
        **{name: fmean(values) for name, values in means.items() if values},
    }


def tau(scores: Mapping[str, float | None], others: Mapping[str, float | None]) -> float | None:
    """Kendall's tau-b of two scores of a group's attempts; None where either tells no two of them apart."""
    from scipy.stats import kendalltau

    pairs = [
        (score, others[name]) for name, score in scores.items() if score is not None and others.get(name) is not None
    ]
    if any(len({pair[side] for pair in pairs}) < 2 for side in (0, 1)):
        return None
    return float(kendalltau(*zip(*pairs, strict=True)).statistic)


def position_bias(judgement: Judgement) -> float | None:
    """What an attempt scores more in the first place than in the last, by a line through all orders (least squares).

    Each score is taken against the attempt's own mean over the orders, so that how good it is does not count, and places run
    from 0 to 1. None with fewer than two whole orders.
    """
    whole = [order for order in judgement.orders if None not in order.scores]
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)  # attempt: (place, score)
    for order in whole:
        for place, (name, score) in enumerate(zip(order.attempts, order.scores, strict=True)):
            seen[name].append((place / max(1, len(order.attempts) - 1), score or 0.0))
    up = down = 0.0
    for points in seen.values():
        middle, mean = fmean(place for place, _ in points), fmean(score for _, score in points)
        up += sum((place - middle) * (score - mean) for place, score in points)
        down += sum((place - middle) ** 2 for place, _ in points)
    return -up / down if down else None


def components(rewards: Sequence[Reward]) -> dict[str, float]:
    """The mean of each component over the scored trajectories: one that a trajectory lacks counts 0."""
    scored = [one for one in rewards if one.score is not None]
    names = dict.fromkeys(name for one in scored for name in one.components)
    return {f"reward_{name}": fmean(one.components.get(name, 0.0) for one in scored) for name in sorted(names)}


def compare(before: Sequence[Reward], after: Sequence[Reward]) -> Comparison:
    """Two judges on the same trajectories, group by group. ValueError where they are not the same."""
    if {one.trajectory_id for one in before} != {one.trajectory_id for one in after}:
        raise ValueError("the rewards are not of the same trajectories")
    old = {one.trajectory_id: one.score for one in before}
    groups: dict[str, dict[str, float | None]] = defaultdict(dict)
    for one in after:
        groups[one.scenario_id][one.trajectory_id] = one.score
    both = [(old[name], score) for scores in groups.values() for name, score in scores.items()]
    shifts = [new - was for was, new in both if was is not None and new is not None]
    taus = [found for scores in groups.values() if (found := tau(scores, old)) is not None]
    flipped = {}
    for name, scores in groups.items():
        was, now = best({one: old[one] for one in scores}), best(scores)
        if was and now and not set(was) & set(now):
            flipped[name] = (was, now)
    return Comparison(
        len(groups), len(shifts), fmean(taus) if taus else None, fmean(shifts) if shifts else None, flipped
    )


class Comparison(NamedTuple):
    """How two judges differ."""

    groups: int
    trajectories: int  # that both scored
    tau: float | None  # mean Kendall's tau-b of the groups in which both tell attempts apart
    mean_shift: float | None  # of the scores, the later judge's less the earlier's
    flipped: dict[str, tuple[list[str], list[str]]]  # by scenario: the best attempts of each, where none is the same


def best(scores: Mapping[str, float | None]) -> list[str]:
    """The attempts with the highest score; none where all are alike."""
    known = {name: score for name, score in scores.items() if score is not None}
    if len(set(known.values())) < 2:
        return []
    return [name for name, score in known.items() if score == max(known.values())]
