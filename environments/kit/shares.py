"""How many scenarios of a batch each of several tasks gets: its share by weight, exact up to rounding.

    shares({"a": 2, "b": 1}, 240)        -> {"a": 160, "b": 80}
    by_batch({"a": 2, "b": 1}, 16, 3)    -> [{"a": 11, "b": 5}, {"a": 10, "b": 6}, {"a": 11, "b": 5}]

Shares are whole numbers, so a batch has a task's exact share rounded down or up. Which of the two is decided by what the
task has had in the batches before, so that over many batches its share is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

PLUS = "+"  # between the names of several tasks
T = TypeVar("T")


def by_batch(weights: Mapping[str, int], count: int, batches: int) -> list[dict[str, int]]:
    """Task -> scenarios, for each of `batches` batches of `count`. What rounding down leaves goes to the tasks that have had
    the least of their exact share so far; among equals to those that come first in `weights`."""
    whole = sum(weights.values())
    exact = {task: Fraction(count * weight, whole) for task, weight in weights.items()}
    given, made = dict.fromkeys(weights, 0), list[dict[str, int]]()
    for number in range(1, batches + 1):
        batch = {task: int(share) for task, share in exact.items()}
        lacking = {task: number * exact[task] - given[task] - batch[task] for task in weights}
        divided = [task for task in weights if exact[task] != batch[task]]  # the others get their share as it is
        for task in sorted(divided, key=lambda task: -lacking[task])[: count - sum(batch.values())]:
            batch[task] += 1
        given = {task: given[task] + batch[task] for task in weights}
        made.append(batch)
    return made


def shares(weights: Mapping[str, int], count: int) -> dict[str, int]:
    """Task -> scenarios, of a single batch of `count`."""
    return by_batch(weights, count, 1)[0]


def interleaved(groups: Mapping[str, Sequence[T]]) -> list[T]:
    """The items of all groups in one list, in which each group is spread evenly, in its own order: whatever is cut out of
    the list has each task's share, too."""
    places = [
        ((place + 0.5) / len(items), order, place)
        for order, items in enumerate(groups.values())
        for place in range(len(items))
    ]
    lists = list(groups.values())
    return [lists[order][place] for _, order, place in sorted(places)]
