"""What the stage sft reads of params.yaml."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from addons.supervised.section import Sft
from steps.core.params import Learning


class SftParams(Learning):
    task: str
    seed: int
    sft: Sft | None

    @model_validator(mode="after")
    def check_sft(self) -> Self:
        if self.sft is None:
            raise ValueError("sft: params.yaml says nothing of it, so there are no demonstrations to learn from")
        return self
