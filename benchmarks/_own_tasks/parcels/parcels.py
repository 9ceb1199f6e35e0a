"""A carrier's help desk: customers ask where a parcel is, or when it comes.

The desk looks a parcel up by its number and the postcode that it goes to, and tells the customer.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from random import Random

from environments import base
from environments.base import Component, Env, Message, Scenario, Split, tool

WHERE = (
    "Where is parcel {number} at the moment? It goes to {postcode}.",
    "Can you find {number} for me? My postcode is {postcode}. I would like to know where it is.",
    "I sent {number} to {postcode} last week. Where was it last scanned?",
    "{postcode} here, waiting for {number}. Which place is it at?",
)
WHEN = (
    "When does parcel {number} arrive? It goes to {postcode}.",
    "What day can I expect {number}? My postcode is {postcode}.",
    "I have to be at home for {number}, to {postcode}. On which date does it come?",
    "{postcode} here, waiting for {number}. When will you bring it?",
)
SHARES: dict[Split, float] = {"train": 0.5, "val": 0.22, "test": 0.28}
REWARD = {
    "right": (1.0, "the customer was told what the parcel's record says"),
    "wrong": (-1.0, "the customer was told something else"),
    "silent": (-0.5, "the customer was told nothing"),
    "error": (-0.1, "a call that failed"),
}

Parcels = dict[str, dict[str, str]]  # by number


class Tracker(Env):
    """One customer."""

    max_turns = 5
    sources = ("number",)
    openings_repeat = True
    shown = ("track",)

    @classmethod
    def load(cls, folder: Path) -> Parcels:
        return {row["number"]: row for row in csv.DictReader(StringIO(base.read_text(folder / "parcels.csv")))}

    @classmethod
    def scenarios(cls, data: Parcels, split: Split, count: int, seed: int) -> list[Scenario]:
        numbers = [number for number in data if base.split_of(number, SHARES) == split]
        if count > len(numbers):
            raise ValueError(f"there are {len(numbers)} parcels in {split}, and {count} scenarios were asked for")
        rng = Random(f"parcels {split} {seed}")
        made = []
        for number in rng.sample(numbers, count):
            kind = rng.choice(("where", "when"))
            text = rng.choice(WHERE if kind == "where" else WHEN).format(**data[number])
            hidden = {"number": number, "kind": kind, "answer": data[number]["place" if kind == "where" else "arrives"]}
            made.append(Scenario.make("parcels", split, [{"role": "user", "content": text}], hidden))
        return made

    @tool
    def track(self, number: str, postcode: str) -> str:
        """Look a parcel up.

        Args:
            number: the number of the parcel
            postcode: the postcode that it goes to, as a check
        """
        parcel = self.data.get(number.strip().upper())
        if parcel is None:
            return base.error("there is no parcel with this number")
        if parcel["postcode"].replace(" ", "") != postcode.upper().replace(" ", ""):
            return base.error("the postcode is not the one on the parcel")
        return f"{parcel['status']}, last scanned at {parcel['place']}, arrives on {parcel['arrives']}"

    @tool
    def tell(self, text: str) -> str:
        """Tell the customer the place or the date that was asked for, and nothing else.

        Args:
            text: the place or the date
        """
        self.done = True
        return "The customer was told."

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        given = base.accepted(messages, "tell")
        return given is not None and base.normalise(given["text"]) == base.normalise(scenario.data["answer"])

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        right, given = cls.success(scenario, messages), base.accepted(messages, "tell")
        end = "right" if right else "silent" if given is None else "wrong"
        return base.weighed({end: 1, "error": base.count_errors(messages)}, REWARD)

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        question = str(messages[0]["content"])
        if messages[-1]["role"] == "user":
            words = question.replace(",", " ").replace(".", " ").replace("?", " ").split()
            number = next(word for word in words if len(word) == 7 and word[2:].isdigit())
            first = next(
                place for place, word in enumerate(words) if word[-1].isdigit() and word.isupper() and word != number
            )
            return base.use("track", number=number, postcode=f"{words[first]} {words[first + 1]}")
        where, _, when = str(messages[-1]["content"]).partition(", arrives on ")
        asked_when = any(word in question for word in ("When", "What day", "which date"))
        return base.use("tell", text=when if asked_when else where.partition("last scanned at ")[2])
