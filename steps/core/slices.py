"""Slices: parts of a set of scenarios that share a kind, a difficulty or a language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.base import Scenario

SLICED_BY = ("kind", "difficulty", "language")  # keys of a scenario's data; it need not have them


def slices_of(scenarios: Sequence[Scenario]) -> dict[str, list[int]]:
    """Name of a slice ("key=value") -> positions of the scenarios with that value in their hidden data."""
    slices: dict[tuple[int, str], list[int]] = {}
    for place, scenario in enumerate(scenarios):
        for order, key in enumerate(SLICED_BY):
            if isinstance(value := scenario.data.get(key), str | int):
                slices.setdefault((order, str(value)), []).append(place)
    return {f"{SLICED_BY[order]}={value}": places for (order, value), places in sorted(slices.items())}
