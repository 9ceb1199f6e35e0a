"""A switchboard: callers are put through to a person, or to the deputy of one who is away."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from random import Random

from environments import base
from environments.base import Env, Message, Scenario, Split, tool

CALLS = (
    "Put me through to {surname} in {department}, please.",
    "I'd like to speak to {first_name} {surname}, {department}.",
    "{department}, {surname}. Thank you.",
    "Could you connect me with {first_name} {surname} of {department}?",
    "Is {surname} from {department} in?",
)
SHARES: dict[Split, float] = {"train": 0.5, "val": 0.2, "test": 0.3}

Person = dict[str, str]
Book = dict[tuple[str, str], Person]  # by surname and department


class Switchboard(Env):
    """One call."""

    max_turns = 6
    sources = ("department",)  # people stand in for others of their department
    openings_repeat = True
    secret = ("extension",)
    shown = ("find",)

    @classmethod
    def load(cls, folder: Path) -> Book:
        rows = csv.DictReader(io.StringIO(base.read_text(folder / "phones.csv")))
        return {(row["surname"], row["department"]): row for row in rows}

    @classmethod
    def scenarios(cls, data: Book, split: Split, count: int, seed: int) -> list[Scenario]:
        people = [person for person in data.values() if base.split_of(person["department"], SHARES) == split]
        calls = [(person, form) for person in people for form in CALLS]
        if count > len(calls):
            raise ValueError(f"{split} has {len(people)} people, who can be asked for in {len(calls)} ways")
        made = []
        for person, form in Random(f"phones {split} {seed}").sample(calls, count):
            called = data[person["deputy"], person["department"]] if person["deputy"] else person
            asked = {"role": "user", "content": form.format(**person)}
            hidden = {
                "department": person["department"],
                "extension": called["extension"],
                "kind": "deputy" if person["deputy"] else "direct",
            }
            made.append(Scenario.make("phones", split, [asked], hidden))
        return made

    @tool
    def find(self, surname: str, department: str) -> str:
        """Look a person up in the phone book.

        Args:
            surname: the person's surname
            department: where the person works
        """
        person = self.data.get((surname, department))
        if person is None:
            return base.error("nobody of this name works there")
        name = f"{person['first_name']} {surname}, {department}"
        if person["deputy"]:
            return f"{name}: away, calls are taken by {person['deputy']} in {department}"
        return f"{name}: extension {person['extension']}"

    @tool
    def connect(self, extension: int) -> str:
        """Connect the caller. This ends the call for you.

        Args:
            extension: four digits
        """
        if str(extension) not in {person["extension"] for person in self.data.values()}:
            return base.error("this extension is not in use")
        self.done = True
        return "Connected."

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        connected = base.accepted(messages, "connect")
        return connected is not None and str(connected["extension"]) == scenario.data["extension"]

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> float:
        """A wrong connection annoys two people; an error costs a little, and waiting costs nothing."""
        if cls.success(scenario, messages):
            return 1.0
        return (-1.0 if base.accepted(messages, "connect") else -0.3) - 0.05 * min(base.count_errors(messages), 6)
