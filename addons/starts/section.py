"""What the section `policy` of params.yaml holds for where training begins."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import Field

from steps.core.section import MoreFields

if TYPE_CHECKING:
    from steps.core.params import Params


class Started(MoreFields):
    """Of the section `policy`."""

    start_from: str | None = Field(None, min_length=1)
    """The adapter that training begins with (docs/start.md): models:/<name>@<alias> or models:/<name>/<number> of the
    registry, run:<name>/<iteration> of a kept run (without an iteration its best one), a folder that holds an adapter or
    a checkpoint, or a PEFT adapter on the Hugging Face Hub (<owner>/<name>, or with @<commit>). null: a fresh one."""
    start_optimizer: bool = False
    """Carry on Adam's moments and the count of optimiser steps, too. Read with start_from of a run or a folder that holds a
    checkpoint; a registered version and an adapter on the Hub have none."""

    def check_with(self, params: Params) -> None:
        """ValueError for a start that nothing would read, and for one whose form says already that it cannot be."""
        if self.start_from is None:
            if self.start_optimizer:
                raise ValueError("policy.start_optimizer would have no effect without policy.start_from; take it out")
            return
        if not params.policy.has_adapter:
            raise ValueError(
                f"policy.start_from would have no effect with policy.kind: {params.policy.kind}; take it out"
            )
        is_version, is_run = self.start_from.startswith("models:"), self.start_from.startswith("run:")
        if is_version and not re.fullmatch(r"models:/[^/@]+(@[^/@]+|/[0-9]+)", self.start_from):
            raise ValueError(
                f"policy.start_from: {self.start_from} is no version of a registered model: write models:/<name>@<alias> "
                "or models:/<name>/<number>"
            )
        if is_run and not re.fullmatch(r"run:[^/\s]+(/\d{3})?", self.start_from):
            raise ValueError(
                f"policy.start_from: {self.start_from} is no iteration of a run: write run:<name>/<three digits>, such as "
                "run:nightly-7/003, or run:<name> for its best one"
            )
        if is_version and self.start_optimizer:
            raise ValueError(
                "policy.start_optimizer would have no effect: a registered version holds no optimiser state. Start from the "
                "run that made it (policy.start_from: run:<name>/<iteration>), or take start_optimizer out"
            )
