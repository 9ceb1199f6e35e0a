"""Judges beside the rule, which add-ons bring by their names in `score.judges` (the port `judge`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from steps.core.ports import bring
from steps.core.section import at

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import Score
    from steps.core.records import Judgement, Reward, Trajectory


class Batch(NamedTuple):
    """What a judge is asked about."""

    env: type[Env]
    scenarios: Mapping[str, Scenario]  # by id
    played: Sequence[Trajectory]
    rules: Sequence[Reward]  # by the rule, in the attempts' order
    score: Score
    rubric: Path | None = None  # the task's rubric.md
    spent: float = 0.0  # what the run's earlier judgements cost


class Judge(ABC):
    """A judge of one batch."""

    # True: its scores say how the attempts of one batch compare, and nothing else. False: the watch also asks it about each
    # validation (addons/tripwires/watch.py), without `rubric` and `spent`.
    is_comparing = False
    answers: Sequence[Judgement] = ()  # of a model, which judgements.jsonl keeps

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    @abstractmethod
    def rewards(self) -> list[Reward]:
        """A reward for each trajectory, in the same order, with the judge's key in score.judges as its name; None with a
        reason for what cannot be scored."""

    def measured(self, scored: Sequence[Reward]) -> dict[str, float]:
        """What judge.json says of the judge; `scored` are the final rewards."""
        return {}

    def lines(self, measured: Mapping[str, float]) -> list[str]:
        """What is printed of the judge."""
        return []


def asked(score: Score) -> list[str]:
    """The judges beside the rule that have a weight."""
    return [name for name, weight in score.judges.model_dump().items() if weight and name != "rule"]


def weighed(score: Score) -> str:
    """The judges with their weights, such as "rule 0.5, ruler 1 (gpt-5-mini)"."""
    weights, ruler = score.judges.model_dump(), at(score, "ruler")
    asked = ", ".join(f"{name} {weight:g}" for name, weight in weights.items() if weight)
    return f"{asked} ({ruler.endpoint.model})" if ruler else asked


def kind_of(name: str) -> type[Judge]:
    """The judge of this name. UserError where no add-on brings it."""
    kind: type[Judge] = bring("judge", name, "score.judges")
    return kind
