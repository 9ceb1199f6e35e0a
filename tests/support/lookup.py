"""A small task with one tool, for tests that play episodes in the form of a model family."""

from __future__ import annotations

from typing import Any

from environments.base import Env, Scenario, Split, tool
from environments.multiplication import Multiplication


class Lookup(Multiplication):
    """Looks words up; it never ends by itself. Its players and its reward are those of multiplication, and are not used."""

    max_turns = 3
    hear = Env.hear

    @tool
    def look(self, text: str, words: list[str]) -> str:
        """Look up words in a text.

        Args:
            text: where to look
            words: what to look for
        """
        return f"looked for {len(words)} words"

    @classmethod
    def load(cls, folder: Any) -> Any:
        return None

    @classmethod
    def scenarios(cls, data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        return [Scenario.make("lookup", split, [{"role": "user", "content": f"Look {n}."}], {}) for n in range(count)]
