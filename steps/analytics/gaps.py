"""How much better one policy of a run is than another on validation, scenario by scenario.

Both were asked the same scenarios, so their difference is known better than either's success; scenarios that are alike count
as they do at the gate (steps/registry/paired.py). What ends a run, what it ends with, and the tripwires go by this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from steps.core.alike import Groups
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.files import json_lines
from steps.core.records import PAIRS, Pair, Reward, read_records
from steps.registry import paired

ONE_ERROR = 0.1587  # on each side of an interval that goes one standard error to each side
SURELY = 0.0025  # likewise, of a fall that ends a run: as rare as two independent 95 % intervals that do not overlap


def scores_of(folder: Path) -> dict[str, float]:
    """Scenario id -> 1 for a success, else 0, of an evaluation; without a rule a judge's 1, 0.5 or 0 against the base
    policy."""
    summary = Evaluation.model_validate_json((folder / "summary.json").read_text(encoding="utf-8"))
    if summary.judged is not None:
        return {pair.scenario_id: pair.score for pair in map(Pair.model_validate_json, json_lines(folder / PAIRS))}
    rewards = read_records(Reward, folder / "rewards.parquet")
    return {reward.scenario_id: float(bool(reward.success)) for reward in rewards}


def difference(
    now: Mapping[str, float], before: Mapping[str, float], groups: Groups, tail: float
) -> tuple[float, float, float]:
    """(difference, low, high) of two policies by `scores_of`; `tail` is the probability on each side of the interval.
    UserError where the two were asked other scenarios."""
    import numpy as np

    if now.keys() != before.keys():
        raise UserError(
            "two validations of the run are of other scenarios, so that they cannot be compared: `.venv/bin/dvc repro`"
        )
    now_N, before_N = (np.array([side[name] for name in now]) for side in (now, before))
    return paired.paired_interval(now_N, before_N, paired.numbered(groups.of(now)), tail)
