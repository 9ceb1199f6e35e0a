"""Capitals: "What is the capital of Peru?", in several wordings, looked up with one tool and given with another.

A small task to start from. EDIT marks what a task of your own changes. This checks what every task must fulfil:

    make check-task NAME=capitals
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import ClassVar

from environments import base
from environments.base import Component, Env, Message, Outcome, Scenario, Split, tool

REWARD = {  # EDIT: value, and why
    "correct": (1.0, "the answer is right"),
    "wrong": (-1.0, "a wrong answer misleads"),
    "no_answer": (-0.5, "the episode ended without an answer: better than a guess"),
    "error": (-0.1, "a malformed call, or a country that there is not: small, or no tool would be tried at all"),
}
QUESTIONS = (  # EDIT: what people ask, in as many ways as they do
    "What is the capital of {country}?",
    "Which city is {country} governed from?",
    "I am writing about {country} and need its capital.",
    "Tell me the capital that {country} has",
    "Where would I find the government of {country}?",
)
SHARES: dict[Split, float] = {"train": 0.6, "val": 0.2, "test": 0.2}  # of all countries

Facts = dict[str, str]  # EDIT: capitals by country


class CapitalsTask(Env):
    """One question."""

    max_turns = 4
    secret: ClassVar[tuple[str, ...]] = ("answer",)  # EDIT: fields of the hidden data that no tool may show …
    shown: ClassVar[tuple[str, ...]] = ("look_up",)  # … except these tools

    @classmethod
    def load(cls, folder: Path) -> Facts:
        facts: Facts = json.loads(base.read_text(folder / "capitals.json"))  # EDIT: your data
        return facts

    @classmethod
    def scenarios(cls, data: Facts, split: Split, count: int, seed: int) -> list[Scenario]:
        names = [country for country in data if base.split_of(country, SHARES) == split]
        if count > len(names):
            raise ValueError(f"{count} scenarios need as many countries, and {split} has {len(names)}: ask for fewer")
        rng, scenarios = Random(f"{split} {seed}"), []
        for country in rng.sample(names, count):
            asked = {"role": "user", "content": rng.choice(QUESTIONS).format(country=country)}  # what the policy sees
            hidden = {"country": country, "answer": data[country]}  # EDIT: what it never sees; "kind" groups results
            scenarios.append(Scenario.make("capitals", split, [asked], hidden))
        return scenarios

    @tool
    def look_up(self, country: str) -> str:  # EDIT: the tools. Type hints and docstrings are their schemas.
        """Look up the capital of a country.

        Args:
            country: the name of the country
        """
        if country not in self.data:  # an error for the policy; never raise
            return base.error("there is no country of this name; look up another")
        return f"The capital of {country} is {self.data[country]}."

    @tool
    def answer(self, capital: str) -> str:
        """Give the answer. This ends the task.

        Args:
            capital: the name of the capital
        """
        self.done = True
        return "The answer was given."

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:  # EDIT
        right = cls.success(scenario, messages)
        ending = "no_answer" if _answer(messages) is None else "correct" if right else "wrong"
        return base.weighed({ending: 1, "error": base.count_errors(messages)}, REWARD)

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:  # EDIT
        return _answer(messages) == str(scenario.data["answer"]).casefold()

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:  # EDIT, or leave out
        answer = _answer(messages)
        return Outcome(answer, scenario.data["answer"], optimal_turns=2, required={"answer": answer is not None})

    # EDIT, or leave out: the players. `scripted` can teach a policy before training; `gold` and `bad` show that the task can
    # be solved and that the reward separates right from wrong; the default of `random` makes any call that fits a schema.

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Looks up the country in the question and answers with the result, from the transcript alone."""
        if messages[-1]["role"] == "user":
            named = [country for country in self.data if country in messages[-1]["content"]]
            return base.use("look_up", country=max(named, key=len, default=""))  # Guinea is in Equatorial Guinea
        return base.use("answer", capital=messages[-1]["content"].partition(" is ")[2].rstrip("."))

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        country = rng.choice(list(self.data))
        if rng.random() < 0.6:
            return base.use("look_up", country=country)
        return base.use("answer", capital=self.data[country])

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        return base.use("answer", capital=self.scenario.data["answer"])

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Guesses."""
        wrong = [capital for capital in self.data.values() if capital != self.scenario.data["answer"]]
        return base.use("answer", capital=rng.choice(wrong))


def _answer(messages: Sequence[Message]) -> str | None:
    """The accepted answer in lower case, or None."""
    given = base.accepted(messages, "answer")
    return None if given is None else str(given["capital"]).strip().casefold()
