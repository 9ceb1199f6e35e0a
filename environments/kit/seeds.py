"""Scenarios that are numbers: games that a seed decides, of which many cannot be won."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from environments.base import Scenario, Split


def by_seed(
    task: str, split: Split, count: int, seed: int, seeds: int, made: Callable[[int], list[Scenario]]
) -> list[Scenario]:
    """`count` scenarios of the numbers below `seeds`, in an order that split and seed decide. `made`: that of a number, in a
    list; none where it is of another split, or cannot be won. ValueError where the split has too few."""
    scenarios: list[Scenario] = []
    for number in shuffled(Random(f"{split} {seed}"), seeds if count <= seeds else 0):
        if len(scenarios) == count:
            break
        scenarios += made(number)
    if len(scenarios) < count:
        held = f"the split {split} has {len(scenarios)} that can be won" if scenarios else f"there are {seeds}"
        raise ValueError(f"{count} scenarios of {task} need as many seeds, and {held}")
    return scenarios


def shuffled(rng: Random, count: int) -> Iterator[int]:
    """The numbers below `count` in the order of rng.sample(range(count), count), each drawn when it is asked for."""
    moved = dict[int, int]()
    for last in range(count - 1, -1, -1):
        place = rng.randrange(last + 1)
        yield moved.get(place, place)
        moved[place] = moved.pop(last, last)
