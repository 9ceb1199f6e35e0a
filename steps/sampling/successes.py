"""The attempts and successes by scenario so far, for a curriculum (run/NNN/successes.json)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steps.core.records import Reward

KEPT = 50  # most iterations in the file, and therefore the widest window
Counts = Mapping[str, Sequence[int]]  # scenario id -> (attempts, successes)


def extend(history: Sequence[Counts], rewards: Iterable[Reward]) -> list[Counts]:
    """The history, oldest first, with one more iteration."""
    counts: dict[str, list[int]] = {}
    for reward in rewards:
        if reward.score is not None:
            attempts, successes = counts.get(reward.scenario_id, (0, 0))
            counts[reward.scenario_id] = [attempts + 1, successes + bool(reward.success)]
    return [*history, dict(sorted(counts.items()))][-KEPT:]
