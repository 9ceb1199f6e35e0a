"""Scenarios before and after training: which it fixed, and which it broke."""

from __future__ import annotations

from typing import NamedTuple

from viewer.index import ListRow, TrajectoryFile, line

CHANGES = ("fixed", "broken", "solved", "unsolved", "unscored")


class ScenarioChange(NamedTuple):
    """A scenario before and after."""

    before: ListRow
    after: ListRow
    change: str  # fixed or broken: success rose or fell; solved or unsolved: it stayed above 0 or at 0; unscored


def pairs(before: TrajectoryFile, after: TrajectoryFile) -> list[ScenarioChange]:
    """The scenarios in both batches, in the order of the first."""
    later = {group.scenario: group for group in after.groups}
    changes = []
    for group in before.groups:
        if group.scenario in later:
            first, second = (line(side, side.attempts, ()) for side in (group, later[group.scenario]))
            changes.append(ScenarioChange(first, second, change(first.success, second.success)))
    return changes


def change(before: float | None, after: float | None) -> str:
    """What became of a scenario, by its success before and after."""
    if before is None or after is None:
        return "unscored"
    if before == after:
        return "solved" if after else "unsolved"
    return "fixed" if after > before else "broken"
