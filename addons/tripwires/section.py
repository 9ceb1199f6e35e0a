"""What params.yaml holds for tripwires and the alarm."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steps.core.section import MoreFields


class Tripped(MoreFields):
    """Of the section `train`."""

    tripwires: Literal["warn", "stop"] = "warn"
    """What follows where a tripwire sees something wrong that is no error (docs/operate.md#tripwires): a line, or the end of
    the run with exit code 2."""


class Alarmed(MoreFields):
    """Of the section `promote`."""

    false_alarms: float | None = Field(0.05, gt=0, le=0.5)
    """Largest probability that a run is stopped, or its adapter refused, because its reward seems to rise while success
    falls, and it is not so (addons/tripwires/watch.py). null: nothing is watched."""
