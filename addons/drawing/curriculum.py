"""Curriculum: scenarios that were too easy or too hard lately are sampled less often.

Where all attempts at a scenario end in the same way, comparing them teaches nothing. The weights follow from this run: the
stage score writes run/NNN/successes.json, the attempts and successes by scenario for each iteration so far (initialise
writes the first, empty one), and the next iteration's rollout reads it. A scenario that was attempted in the last WINDOW
iterations is judged by its own share of successes. Any other is judged by its slice: the scenarios of the same kind and
difficulty, where the data has them. Without either its weight is 1. No weight is 0, so that scenarios that were too hard
come back.

Left out: attempts that could not be scored, which say nothing about the scenario. And unlike rollout without a curriculum,
this does not promise that every scenario is played before any is played again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from steps.sampling.successes import Counts

if TYPE_CHECKING:
    from addons.drawing.section import Curriculum
    from environments.base import Scenario

WINDOW = 4  # iterations that are looked back
FLOOR = 0.2  # weight with which what was too easy or too hard is drawn; all others have weight 1


class Standing(NamedTuple):
    """A scenario's attempts and successes within the window, and the weight with which it is drawn."""

    id: str
    slice: str | None
    attempts: int
    successes: int
    judged_by: str | None  # "scenario" or "slice": whose attempts these are
    weight: float


def described(settings: Curriculum) -> dict[str, float]:
    """By what scenarios were weighed, for drawn.json."""
    return {"window": WINDOW, **settings.model_dump(), "floor": FLOOR}


def weigh(scenarios: Sequence[Scenario], history: Sequence[Counts], settings: Curriculum) -> list[Standing]:
    """A standing for each scenario, in the same order."""
    own: dict[str, list[int]] = {}
    for iteration in history[-WINDOW:]:
        for name, counts in iteration.items():
            _add(own, name, counts)
    slices: dict[str, list[int]] = {}
    for scenario in scenarios:
        if (part := slice_of(scenario)) is not None and scenario.id in own:
            _add(slices, part, own[scenario.id])
    standings = []
    for scenario in scenarios:
        part = slice_of(scenario)
        judged_by = "scenario" if scenario.id in own else "slice" if part in slices else None
        attempts, successes = own[scenario.id] if judged_by == "scenario" else slices.get(part or "", [0, 0])
        extreme = judged_by is not None and not settings.low <= successes / attempts <= settings.high
        weight = FLOOR if extreme else 1.0
        standings.append(Standing(scenario.id, part, attempts, successes, judged_by, weight))
    return standings


def slice_of(scenario: Scenario) -> str | None:
    """Kind and difficulty of a scenario, where its data has them."""
    parts = [f"{key} {scenario.data[key]}" for key in ("kind", "difficulty") if key in scenario.data]
    return ", ".join(parts) or None


def _add(totals: dict[str, list[int]], name: str, counts: Sequence[int]) -> None:
    attempts, successes = totals.get(name, (0, 0))
    totals[name] = [attempts + counts[0], successes + counts[1]]


def draw(standings: Sequence[Standing], count: int, iteration: int, seed: int) -> list[int]:
    """Places of `count` different scenarios, drawn by weight without replacement. The same seed and iteration give the same
    places. (Each scenario has an exponential clock whose rate is its weight; the first `count` to ring are drawn.)"""
    rng = random.Random(f"curriculum {seed} {iteration}")
    rings = [rng.expovariate(standing.weight) for standing in standings]
    return sorted(range(len(standings)), key=rings.__getitem__)[:count]
