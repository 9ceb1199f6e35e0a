"""Compares two batches: how the result of each scenario in both has changed."""

from __future__ import annotations

from typing import NamedTuple

from steps.core.errors import UserError
from viewer.index import ListRow, TrajectoryFile, line

Batches = dict[str, TrajectoryFile]  # by key
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
    if before is None or after is None:
        return "unscored"
    if before == after:
        return "solved" if after else "unsolved"
    return "fixed" if after > before else "broken"


def chosen(batches: Batches, others: Batches | None, before: str, after: str) -> tuple[TrajectoryFile, TrajectoryFile]:
    """The batches with these names; the second belongs to another run (`others`) or to the same (None).

    Without names: within a run its first evaluation (of the base policy) and the best other batch of that kind; between
    two runs the best batch of each. UserError for a name that does not exist.
    """
    later = batches if others is None else others
    for key, available in ((before, batches), (after, later)):
        if key and key not in available:
            raise UserError(f"there is no batch {key[:80]}: one of {', '.join(available) or 'none'}")
    if not later:
        raise UserError("the other run has no trajectories yet")
    evaluations = [batch for batch in batches.values() if batch.kind == "evaluation"] or list(batches.values())
    first = batches[before] if before else evaluations[0] if others is None else max(evaluations, key=rates)
    if after:
        return first, later[after]
    same = [batch for batch in later.values() if batch.kind == first.kind and batch is not first]
    return first, max(same or ([first] if others is None else later.values()), key=rates)


def rates(batch: TrajectoryFile) -> tuple[float, float, int]:
    """The criteria of flows.train: mean success, mean reward, then the earliest. Lowest of all if nothing is scored."""
    attempts = [attempt for group in batch.groups for attempt in group.attempts]
    rewards = [attempt.reward for attempt in attempts if attempt.reward is not None]
    if not rewards:
        return -1.0, 0.0, 0
    success = sum(bool(attempt.success) for attempt in attempts) / len(attempts)
    return success, sum(rewards) / len(rewards), -int(batch.iteration)
