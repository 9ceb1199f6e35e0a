"""A plant nursery puts plants aside for its customers, as many as there are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

from environments import base
from environments.base import Component, Env, Message, Scenario, Split, tool

SHARES: dict[Split, float] = {"train": 0.5, "val": 0.2, "test": 0.3}
ORDERS = (
    "Please put {count} {plant} in {pot} pots aside for {name}.",
    "{name} rang: {count} x {plant}, {pot}.",
    "Order from {name}. {plant}, the {pot} size, {count} of them.",
    "Can {name} have {count} of the {pot} {plant}?",
    "{count} {plant} ({pot}) to be kept for {name} until Saturday",
)
NAMES = ("Mrs Ames", "Mr Bell", "the Cole family", "Dr Dunn", "Ms Ellis", "the school", "St Mary's", "Mr Gray")
SYSTEM = "Put aside what was ordered. If there are fewer, put aside all that there are."


class Nursery(Env):
    """An order."""

    max_turns = 5
    sources = ("plant",)
    openings_repeat = True
    secret = ("bed",)
    shown = ("stock",)

    @classmethod
    def load(cls, folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
        stock: dict[str, dict[str, dict[str, Any]]] = json.loads(base.read_text(folder / "stock.json"))
        return stock

    @classmethod
    def scenarios(cls, data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        lines = [
            (plant, pot) for plant in data if base.split_of(f"plant: {plant}", SHARES) == split for pot in data[plant]
        ]
        orders = [(plant, pot, ordered) for plant, pot in lines for ordered in range(1, 13)]
        if count > len(orders):
            raise ValueError(f"no more than {len(orders)} orders can be made of what is for {split}")
        random = Random(f"nursery/{split}/{seed}")
        made = []
        for plant, pot, ordered in random.sample(orders, count):
            entry = data[plant][pot]
            text = random.choice(ORDERS).format(plant=plant, pot=pot, count=ordered, name=random.choice(NAMES))
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
            hidden = {"plant": plant, "bed": entry["bed"], "count": min(ordered, entry["left"])}
            hidden["kind"] = "enough" if ordered <= entry["left"] else "too few"
            made.append(Scenario.make("nursery", split, messages, hidden))
        return made

    @tool
    def stock(self, plant: str, pot: Literal["9 cm", "2 litre", "5 litre"]) -> dict[str, Any] | str:
        """What there is of a plant: in which bed, how many are left, and the price of each.

        Args:
            plant: the name of the plant
            pot: the size of the pot
        """
        entry = self.data.get(plant, {}).get(pot)
        return dict(entry) if entry else base.error("we do not have it in this size")

    @tool
    def put_aside(self, bed: str, count: int) -> str:
        """Put plants of a bed aside for the customer.

        Args:
            bed: the bed, as the stock list names it
            count: how many
        """
        if count < 1:
            return base.error("put at least one plant aside")
        self.done = True
        return "Done."

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        put = base.accepted(messages, "put_aside")
        if put is None:
            return [Component("nothing put aside", -0.5, "the customer gets nothing")]
        return [
            Component("bed", 0.5 if put["bed"] == scenario.data["bed"] else -0.5, "the plants of the right bed"),
            Component("count", 0.5 if put["count"] == scenario.data["count"] else 0.0, "the right number of plants"),
        ]

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        put = base.accepted(messages, "put_aside")
        return put == {"bed": scenario.data["bed"], "count": scenario.data["count"]}
