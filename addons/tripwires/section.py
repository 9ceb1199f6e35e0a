"""What the section `train` of params.yaml holds for tripwires."""

from __future__ import annotations

from typing import Literal

from steps.core.section import MoreFields


class Tripped(MoreFields):
    """Of the section `train`."""

    tripwires: Literal["warn", "stop"] = "warn"
    """What follows where a tripwire sees something wrong that is no error (docs/operate.md#tripwires): a line, or the end of
    the run with exit code 2."""
