"""Capitals: "What is the capital of Peru?", in several wordings, looked up with one tool and given with another."""

import json
from collections.abc import Sequence
from pathlib import Path

from environments.base import Env, Message, Scenario, Split, accepted, draw, error, read_text, tool

WORDINGS = ("What is the capital of {}?", "Which city is {} governed from?", "Tell me the capital that {} has")  # EDIT


class Template(Env):
    max_turns = 4  # EDIT: of the policy, in an episode
    shown = ("look_up",)  # EDIT: the tools that may show the answer; no other may

    @classmethod
    def load(cls, folder: Path) -> dict[str, str]:  # EDIT: your data, read once for all episodes
        return dict(json.loads(read_text(folder / "capitals.json")))

    @classmethod
    def scenarios(cls, data: dict[str, str], split: Split, count: int, seed: int) -> list[Scenario]:  # EDIT
        scenarios = []
        for number, country in enumerate(draw(data, split, count, seed, train=0.6)):  # each is of one split
            shown = {"role": "user", "content": WORDINGS[number % len(WORDINGS)].format(country)}  # to the policy
            scenarios.append(Scenario.make("_template", split, [shown], {"answer": data[country]}))  # hidden from it
        return scenarios

    @tool
    def look_up(self, country: str) -> str:  # EDIT: tools, whose type hints and docstrings the policy sees
        """Look up the capital of a country.

        Args:
            country: the name of the country
        """
        return self.data.get(country) or error("there is no country of this name; look up another")

    @tool
    def answer(self, capital: str) -> str:
        """Give the answer. This ends the task.

        Args:
            capital: the name of the capital
        """
        self.done = True
        return "The answer was given."

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:  # EDIT; or `reward`, a number
        given = accepted(messages, "answer")
        return given is not None and str(given["capital"]).casefold() == scenario.data["answer"].casefold()
