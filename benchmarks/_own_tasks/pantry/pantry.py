"""A cook's shopping list: how much of an ingredient does a dish need for so many people?"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

from environments import base
from environments.base import Env, Message, Scenario, Split, tool

QUESTIONS = [
    "How much of the {item} do I need for {dish} for {people}?",
    "I am cooking {dish} for {people} people. What amount of {item} goes in?",
    "{dish}, {people} guests: how many or how much {item}?",
    "Shopping for {people}: we make {dish}. Tell me the {item}.",
    "What quantity of {item} belongs in {dish} when {people} people eat?",
    "If {people} come to eat {dish}, how much {item} must I buy?",
]
LARGEST = 12


class Pantry(Env):
    """A question about one ingredient."""

    max_turns = 4
    sources = ("dish",)
    openings_repeat = True

    @classmethod
    def load(cls, folder: Path) -> dict[str, list[dict[str, Any]]]:
        recipes: dict[str, list[dict[str, Any]]] = json.loads(base.read_text(folder / "recipes.json"))
        return recipes

    @classmethod
    def scenarios(cls, data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        shares: dict[Split, float] = {"train": 0.5, "val": 0.2, "test": 0.3}
        needs = [
            (dish, need, people)
            for dish, recipe in data.items()
            if base.split_of(f"dish {dish}", shares) == split
            for need in recipe
            for people in range(2, LARGEST + 1)
        ]
        if count > len(needs):
            raise ValueError(f"there are {len(needs)} questions for {split}, fewer than {count}")
        random = Random(f"{split}{seed}")
        return [
            Scenario.make(
                "pantry",
                split,
                [
                    {
                        "role": "user",
                        "content": random.choice(QUESTIONS).format(dish=dish, people=people, item=need["item"]),
                    }
                ],
                {"dish": dish, "amount": need["per_person"] * people, "unit": need["unit"], "kind": need["unit"]},
            )
            for dish, need, people in random.sample(needs, count)
        ]

    @tool
    def recipe(self, dish: str, people: int) -> str:
        """The ingredients of a dish, worked out for a number of people.

        Args:
            dish: the name of the dish
            people: how many eat, from 1 to 12
        """
        if dish.lower() not in self.data:
            return base.error("this dish is in no book of mine")
        if not 1 <= people <= LARGEST:
            return base.error(f"I can scale it for 1 to {LARGEST} people")
        needs = self.data[dish.lower()]
        return "; ".join(f"{need['item']} {need['per_person'] * people} {need['unit']}" for need in needs)

    @tool
    def need(self, amount: int, unit: Literal["g", "ml", "pieces"]) -> str:
        """Answer with the amount that is needed.

        Args:
            amount: the number
            unit: what is counted
        """
        self.done = True
        return "Noted on the list."

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        given = base.accepted(messages, "need")
        return given == {"amount": scenario.data["amount"], "unit": scenario.data["unit"]}

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> float:
        """Half a point for the unit alone would be given away: only the whole answer counts. A look at the recipe is worth a
        little, so that looking is tried."""
        if cls.success(scenario, messages):
            return 1.0
        looked = base.accepted(messages, "recipe")
        return 0.1 if looked and looked["dish"].lower() == scenario.data["dish"] else 0.0

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        question = str(messages[0]["content"]).lower()
        dish = max([str(dish) for dish in self.data if dish in question], key=len)
        if messages[-1]["role"] == "user":
            people = re.findall(r"\d+", question)[0]
            return base.use("recipe", dish=dish, people=int(people))
        rest = question.replace(dish, "")
        lines = [line.rsplit(" ", 2) for line in str(messages[-1]["content"]).split("; ")]
        _, amount, unit = max((line for line in lines if line[0] in rest), key=lambda line: len(line[0]))
        return base.use("need", amount=int(amount), unit=unit)
