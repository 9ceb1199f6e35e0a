"""What params.yaml holds for serving, and for scenarios from production."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from steps.core.section import AddOnSection, MoreFields, OptionalSection, for_one_task

if TYPE_CHECKING:
    from steps.core.params import Params


class Ingested(OptionalSection):
    """Scenarios from production among the task's own (addons/production/scenarios.py, docs/flywheel.md)."""

    share: float = Field(0.5, gt=0, le=1)
    """Share of the scenarios of train and val that they replace, where there are so many of them."""
    version: str | None = Field(None, pattern=r"^[0-9a-f]{32}$")
    """The md5 of the version of ingested/<task>/scenarios.jsonl. null: the present one, whose md5 `make train` then sets."""

    def check_with(self, params: Params) -> None:
        for_one_task(params, "scenarios.ingested")


class Serve(AddOnSection):
    """What `make serve` and the gate do with a version that is to become champion (docs/flywheel.md); no stage reads it."""

    canary: float = Field(0.0, ge=0, le=0.5)
    """Share of the conversations that a version gets which passed the gate, before what people say of its answers makes it
    champion. 0: the gate makes it champion at once."""
    min_feedback: int = Field(30, ge=5)
    """Conversations with feedback, of each version, from which on they are compared; then at twice as many, and so on."""
    max_drop: float = Field(0.05, ge=0, lt=1)
    """By how much the canary's mean score may be lower, at the lower end of the interval, for it to become champion."""
    rollback: float | None = Field(None, ge=0, lt=1)
    """A champion goes back to the version before it where its mean score is surely lower by more than this. null: never by
    itself."""


class Decided(MoreFields):
    """Of the section `promote`."""

    decides: Literal["test", "regression"] = "test"
    """The scenarios on which the gain must be shown: the test split, or the regression set that `python -m
    addons.production.ingest` makes of what went wrong in production. With the second, success on the test split may not
    fall by more than max_slice_drop."""
