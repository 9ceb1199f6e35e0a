"""The interval of a policy's success, for all that shows one: each number has the same interval wherever it stands."""

from __future__ import annotations

from collections.abc import Iterable

from steps.core.alike import Groups
from steps.registry import paired


def interval(values: Iterable[tuple[str, float]], groups: Groups) -> tuple[float, float]:
    """The 95 % interval of the mean of values that are 0 or 1, each with the id of its scenario; of several attempts at a
    scenario, all are of its group. At least one value."""
    import numpy as np

    ids, successes = zip(*values, strict=True)
    return paired.share_interval(np.array(successes, dtype=float), paired.numbered(groups.of(ids)))
