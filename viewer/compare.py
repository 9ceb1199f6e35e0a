"""Two batches beside each other, for `viewer.app`: what became of each scenario that both hold."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from steps.core.errors import UserError
from viewer.index import Batch, Row, line

Batches = dict[str, Batch]  # by key
CHANGES = ("fixed", "broken", "solved", "unsolved", "unscored")


class Pair(NamedTuple):
    before: Row
    after: Row
    change: str  # fixed, broken: success rose or fell; solved, unsolved: it stayed, above 0 or at 0


def pairs(before: Batch, after: Batch) -> list[Pair]:
    """The scenarios of both, in the order of the first."""
    later = {group.scenario: group for group in after.groups}
    found = []
    for group in before.groups:
        if group.scenario in later:
            first, second = (line(one, one.attempts, ()) for one in (group, later[group.scenario]))
            found.append(Pair(first, second, change(first.success, second.success)))
    return found


def change(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return "unscored"
    if before == after:
        return "solved" if after else "unsolved"
    return "fixed" if after > before else "broken"


def chosen(batches: Batches, others: Batches | None, before: str, after: str) -> tuple[Batch, Batch]:
    """The batches of these names, the second of another run (`others`) or of the same (None).

    Where none is given: within a run the base's evaluation and the best other one on its split, else each run's best.
    """
    later = batches if others is None else others
    for key, known in ((before, batches), (after, later)):
        if key and key not in known:
            raise UserError(f"there is no batch {key[:80]}: one of {', '.join(known) or 'none'}")
    if not later:
        raise UserError("the other run has no trajectories yet")
    evaluations = [batch for batch in batches.values() if batch.kind == "evaluation"] or list(batches.values())
    first = batches[before] if before else evaluations[0] if others is None else max(evaluations, key=rates)
    if after:
        return first, later[after]
    same = [batch for batch in later.values() if batch.kind == first.kind and batch is not first]
    return first, max(same or ([first] if others is None else later.values()), key=rates)


def rates(batch: Batch) -> tuple[float, float, int]:
    """By which flows.train chooses: mean success, mean reward, the earliest. Below all others where nothing is scored."""
    attempts = [one for group in batch.groups for one in group.attempts]
    rewards = [one.reward for one in attempts if one.reward is not None]
    if not rewards:
        return -1.0, 0.0, 0
    return (
        sum(bool(one.success) for one in attempts) / len(attempts),
        sum(rewards) / len(rewards),
        -int(batch.iteration),
    )


def counts(found: list[Pair]) -> dict[str, int]:
    """Scenarios by change, in a fixed order, those that occur."""
    by = Counter(pair.change for pair in found)
    return {name: by[name] for name in CHANGES if by[name]}
