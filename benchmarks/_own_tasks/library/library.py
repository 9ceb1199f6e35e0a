"""Library loans: a reader asks to keep a book for longer, and the copy that the reader has is renewed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

from environments import base
from environments.base import Component, Env, Message, Scenario, Split, tool

ASKED = (
    'Card {card}: I would like to keep "{title}" for longer.',
    'Please renew "{title}", my card is {card}.',
    'I am not finished with "{title}" yet. Reader {card}.',
    'Reader {card} here. May I have "{title}" for three more weeks?',
    'Could you extend "{title}" on card {card}, please?',
)


class Library(Env):
    """One reader at the desk."""

    max_turns = 5
    sources = ("card",)
    openings_repeat = True
    secret = ("copy",)
    shown = ("loans",)

    @classmethod
    def load(cls, folder: Path) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(base.read_text(folder / "loans.csv"))))

    @classmethod
    def scenarios(cls, data: list[dict[str, str]], split: Split, count: int, seed: int) -> list[Scenario]:
        shares: dict[Split, float] = {"train": 0.5, "val": 0.22, "test": 0.28}
        loans = [row for row in data if base.split_of(f"card {row['card']}", shares) == split]
        if count > len(loans):
            raise ValueError(f"{count} scenarios need as many loans, and {split} has {len(loans)}")
        rng = Random(f"library {split} {seed}")
        made = []
        for loan in rng.sample(loans, count):
            asked = {"role": "user", "content": rng.choice(ASKED).format(**loan)}
            made.append(Scenario.make("library", split, [asked], {"card": loan["card"], "copy": loan["copy"]}))
        return made

    @tool
    def loans(self, card: int) -> str:
        """List what a reader has on loan.

        Args:
            card: the number on the reader's card
        """
        rows = [row for row in self.data if row["card"] == str(card)]
        if not rows:
            return base.error("nothing is on loan on this card")
        return "\n".join(f"{row['copy']} {row['title']}, due {row['due']}, renewed {row['renewed']}x" for row in rows)

    @tool
    def renew(self, copy: str) -> str:
        """Renew a copy for three weeks.

        Args:
            copy: the number of the copy, such as B-00000
        """
        if not re.fullmatch(r"[A-F]-\d{5}", copy):
            return base.error("this is no number of a copy")
        self.done = True
        return "It may be kept for three more weeks."

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        """Success is a reward above 0, which errors alone cannot take away."""
        renewed = base.accepted(messages, "renew")
        parts = []
        if renewed is not None:
            right = renewed["copy"] == scenario.data["copy"]
            parts.append(Component("renewal", 1.0 if right else -1.0, "the copy that was asked for, or another one"))
        if errors := min(base.count_errors(messages), 5):
            parts.append(Component("errors", -0.1 * errors, "calls that the desk's system refused"))
        return parts

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        question = str(messages[0]["content"])
        [title] = re.findall('"(.+)"', question)
        if messages[-1]["role"] == "user":
            [card] = re.findall(r"\d{5}", question)
            return base.use("loans", card=int(card))
        [copy] = [line.split()[0] for line in str(messages[-1]["content"]).splitlines() if f" {title}, due" in line]
        return base.use("renew", copy=copy)
