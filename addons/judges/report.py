"""A judge measured by its judgements: how many attempts it scored, its faults, and how far it agrees with the rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from addons.judges import places
from addons.judges.prompts import ALIKE
from steps.core.stats import added
from steps.judging.agreement import tau

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
