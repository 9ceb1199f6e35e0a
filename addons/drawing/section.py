"""What the section `rollout` of params.yaml holds for which scenarios a batch has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from steps.core.section import MoreFields, Section

if TYPE_CHECKING:
    from steps.core.params import Params


class Curriculum(Section):
    """Draws scenarios less often that were too easy or too hard in the last iterations (addons/drawing/curriculum.py)."""

    low: float = Field(0.1, ge=0, le=1)
    """Share of successes below which a scenario was too hard."""
    high: float = Field(0.9, ge=0, le=1)
    """Share of successes above which a scenario was too easy."""

    @model_validator(mode="after")
    def check(self) -> Curriculum:
        if self.low >= self.high:
            raise ValueError(
                f"rollout.curriculum.low ({self.low}) must be less than rollout.curriculum.high ({self.high})"
            )
        return self


class Drawn(MoreFields):
    """Of the section `rollout`."""

    curriculum: Curriculum | None = None
    """null: each scenario comes once before any comes again. {}: a curriculum with its defaults."""
    resample: int = Field(0, ge=0, le=8)
    """How often groups whose attempts all earned the same by the rule are replaced by groups at other scenarios, as in DAPO
    (addons/drawing/resample.py). 0: never."""

    def check_with(self, params: Params) -> None:
        if self.resample and not params.score.judges.rule:
            raise ValueError(
                "rollout.resample reads the rule's reward, and score.judges.rule is 0: give it a weight, or take it out"
            )
