"""The city's museum line: opening hours and tickets, answered in plain words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

from environments import base
from environments.base import Component, Env, Message, Scenario, Split, tool

Day = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HOURS = (
    "Is the {museum} open on {day}? From when to when?",
    "We want to see the {museum} on {day}. What are the hours?",
    "{museum}, opening times on a {day}?",
    "Hello, when can I visit the {museum} on {day}s?",
)
TICKETS = (
    "What does the {museum} cost for {visitor}?",
    "How much is a ticket to the {museum} for {visitor}?",
    "{museum}: what does {visitor} pay?",
)
VISITORS = {"adult": "an adult", "child": "a child", "senior": "a senior"}
REWARD = {
    "right": (1.0, "the hours or the price are in the answer"),
    "wrong": (-0.5, "the answer says something else"),
    "none": (-0.3, "the caller heard no answer"),
    "error": (-0.05, "a call that failed"),
}
LONGEST = 60  # characters of an answer: who lists everything has answered nothing


class Museums(Env):
    """One caller."""

    max_turns = 4
    sources = ("museum",)
    openings_repeat = True
    shown = ("hours", "ticket")

    @classmethod
    def load(cls, folder: Path) -> dict[str, dict[str, Any]]:
        return {entry["museum"]: entry for entry in json.loads(base.read_text(folder / "museums.json"))}

    @classmethod
    def scenarios(cls, data: dict[str, dict[str, Any]], split: Split, count: int, seed: int) -> list[Scenario]:
        museums = [name for name in data if base.split_of(name, {"train": 0.5, "val": 0.22, "test": 0.28}) == split]
        pool = [(name, day, "") for name in museums for day in DAYS]
        pool += [(name, "", visitor) for name in museums for visitor in VISITORS]
        if count > len(pool):
            raise ValueError(f"{split} has {len(pool)} questions")
        rng = Random(f"museums {seed} {split}")
        made = []
        for name, day, visitor in rng.sample(pool, count):
            if day:
                text = rng.choice(HOURS).format(museum=name, day=day)
                answer = said_hours(data[name]["hours"][day])
            else:
                text = rng.choice(TICKETS).format(museum=name, visitor=VISITORS[visitor])
                answer = data[name]["tickets"][visitor]
            hidden = {"museum": name, "answer": answer, "kind": "hours" if day else "ticket"}
            made.append(Scenario.make("museums", split, [{"role": "user", "content": text}], hidden))
        return made

    @tool
    def hours(self, museum: str, day: Day) -> str:
        """When a museum is open on a day of the week.

        Args:
            museum: its name
            day: the day
        """
        if museum not in self.data:
            return base.error("there is no museum of this name")
        return said_hours(self.data[museum]["hours"][day])

    @tool
    def ticket(self, museum: str, visitor: Literal["adult", "child", "senior"]) -> str:
        """What a ticket costs.

        Args:
            museum: the name of the museum
            visitor: who comes
        """
        if museum not in self.data:
            return base.error("there is no museum of this name")
        return str(self.data[museum]["tickets"][visitor])

    def hear(self, text: str) -> list[Message]:
        """What is said without a tool is the answer to the caller."""
        self.done = True
        return []

    @classmethod
    def answer_of(cls, messages: Sequence[Message]) -> str | None:
        last = messages[-1]
        is_answer = last["role"] == "assistant" and not last.get("tool_calls")
        return str(last["content"]) if is_answer else None

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        answer = cls.answer_of(messages)
        if answer is None or len(answer) > LONGEST:
            return False
        return f" {base.normalise(scenario.data['answer'])} " in f" {base.normalise(answer)} "

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        answer = cls.answer_of(messages)
        end = "none" if answer is None else "right" if cls.success(scenario, messages) else "wrong"
        return base.weighed({end: 1, "error": base.count_errors(messages)}, REWARD)


def said_hours(hours: list[str] | None) -> str:
    return "closed" if hours is None else f"{hours[0]} to {hours[1]}"
