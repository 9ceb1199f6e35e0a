"""Small statistics, and slices of scenarios, that stages, gate and tables share; tests compare the former with scipy's.

Wilson's interval is not scipy's own because outputs hold it unrounded, so that other last digits would change every run's
files, and because of time. Measured on 2 shared cores: importing scipy.stats takes 1.0 s of CPU, and its Wilson interval
1,480 µs against 1.3 µs here. How two policies are compared is in steps/registry/paired.py.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.base import Scenario

Z_95 = 1.959964  # standard errors from the middle of a 95 % interval to its ends
SLICED_BY = ("kind", "difficulty", "language")  # keys of a scenario's data; it need not have them


def added(values: Iterable[float]) -> float:
    """The sum from left to right. sum() rounds floats in another way since Python 3.12, and outputs hold them unrounded."""
    return reduce(operator.add, values, 0)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; 0 of no values."""
    return added(values) / len(values) if values else 0.0


def wilson(successes: float, n: float, z: float = Z_95) -> tuple[float, float]:
    """The interval of a share by Wilson (1927), of 95 % unless `z` is another quantile. It stays within 0 and 1."""
    share = successes / n
    centre = share + z * z / (2 * n)
    spread = z * ((share * (1 - share) + z * z / (4 * n)) / n) ** 0.5
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def counted(n: int, clusters: int | None, what: str = "scenarios") -> str:
    """How many scenarios an interval rests on, in words. `clusters`: of how many groups of alike ones; None: the task does
    not say which are alike, and the interval takes each for independent of the others."""
    if clusters is None:
        return f"{n} {what}, taken as independent"
    return f"{n} independent {what}" if clusters == n else f"{n} {what} in {clusters} group{'s' * (clusters > 1)}"


def slices_of(scenarios: Sequence[Scenario]) -> dict[str, list[int]]:
    """Name of a slice ("key=value") -> positions of the scenarios with that value in their hidden data. Where scenarios are
    of several tasks, each task is a slice, too."""
    slices: dict[tuple[int, str], list[int]] = {}
    several = len({scenario.task for scenario in scenarios}) > 1
    for place, scenario in enumerate(scenarios):
        if several:
            slices.setdefault((-1, scenario.task), []).append(place)
        for order, key in enumerate(SLICED_BY):
            if isinstance(value := scenario.data.get(key), str | int):
                slices.setdefault((order, str(value)), []).append(place)
    names = (*SLICED_BY, "task")  # the last at -1, which comes first
    return {f"{names[order]}={value}": places for (order, value), places in sorted(slices.items())}
