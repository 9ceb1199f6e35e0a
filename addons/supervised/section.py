"""What params.yaml holds for supervised training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from steps.core.section import MoreFields, OptionalSection, at, for_one_task

if TYPE_CHECKING:
    from steps.core.params import Params

ENOUGH = 240  # demonstrations, of which no variations are made unless sft.variations asks for them


class Generated(MoreFields):
    """Of the section `scenarios`."""

    generated: str | None = Field(None, pattern=r"^[\w-][\w.-]*$")
    """A file in tasks_data/<task>/ with further scenarios, written by addons/supervised/generate.py. null: none."""

    def check_with(self, params: Params) -> None:
        for_one_task(params, "scenarios.generated")


class Sft(OptionalSection):
    """Supervised training on demonstrations before iteration 001: the stage sft (addons/supervised/sft.py,
    docs/start.md)."""

    demonstrations: tuple[str, ...] = ()
    """Files of demonstrations, each in tasks_data/<task>/ or a path: JSON lines with `messages` in OpenAI's chat format.
    player:scripted in place of a file is what the task's own player does at 240 training scenarios."""
    from_runs: tuple[str, ...] = ()
    """Kept runs whose good training trajectories are demonstrations, too: <name>, or <name>/<iteration> for one of them."""
    min_reward: float | None = None
    """Least reward of such a trajectory. Default: 1; read with from_runs."""
    epochs: int | None = Field(None, ge=1, le=1000)
    """Passes over the demonstrations. null: as many as make 300 optimiser steps, and one at least, of which those are kept
    that are best on a tenth of the demonstrations, which is then held out (addons/supervised/fine_tuning.py)."""
    variations: int | None = Field(None, ge=0, le=50)
    """Copies of each demonstration in which names and numbers that the assistant copied are replaced by others
    (addons/supervised/variations.py). null: as many as bring few demonstrations near 240, and none where epochs is set."""
    batch: int = Field(16, ge=1, le=4096)
    """Demonstrations of an optimiser step."""
    learning_rate: float = Field(1e-3, gt=0)
    """Step size of AdamW, which rises over the first 10 optimiser steps, or half of them where there are
    fewer than 20, and then falls to 0 as a cosine."""

    @model_validator(mode="after")
    def check(self) -> Sft:
        if not self.demonstrations and not self.from_runs:
            raise ValueError("sft needs demonstrations: name files in sft.demonstrations, or runs in sft.from_runs")
        if self.from_runs and self.min_reward is None:
            object.__setattr__(self, "min_reward", 1.0)  # the section is frozen for everybody else
        if self.min_reward is not None and not self.from_runs:
            raise ValueError("sft.min_reward would have no effect: it is read with sft.from_runs; take it out")
        return self

    def copies(self, demonstrations: int) -> int:
        """How many variations are made of each of so many demonstrations."""
        if self.variations is not None:
            return self.variations
        return 0 if self.epochs is not None else min(50, max(0, ENOUGH // max(demonstrations, 1) - 1))

    def check_with(self, params: Params) -> None:
        for_one_task(params, "sft")
        if at(params, "policy.start_optimizer"):
            raise ValueError(
                "policy.start_optimizer would have no effect with sft, which trains in between; take one of the two out"
            )
