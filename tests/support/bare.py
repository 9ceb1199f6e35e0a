"""A task as small as the contract allows: scenarios, one rule and a tool, and no players."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from environments import base
from environments.base import Env, Message, Scenario, Split, tool


class Bare(Env):
    """Which number follows?"""

    sources = ("number",)
    openings_repeat = True

    @classmethod
    def load(cls, folder: Path) -> range:
        return range(300)

    @classmethod
    def scenarios(cls, data: range, split: Split, count: int, seed: int) -> list[Scenario]:
        numbers = [number for number in data if base.split_of(str(number)) == split]
        if count > len(numbers):
            raise ValueError(f"{split} has {len(numbers)} numbers, not {count}")
        return [
            Scenario.make("bare", split, [{"role": "user", "content": f"What follows {number}?"}], {"number": number})
            for number in Random(f"{split} {seed}").sample(numbers, count)
        ]

    @tool
    def say(self, number: int) -> str:
        """Say the number. This ends the task.

        Args:
            number: the next one
        """
        self.done = True
        return "It was said."

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        said = base.accepted(messages, "say")
        return said is not None and said["number"] == scenario.data["number"] + 1
