"""JSON records: "Grace is 24 years old and lives in Berlin. Write this as JSON with the keys name, age and city."

One turn and no tools. A small pretrained model half knows it: it invents values, misspells them, or writes no JSON. Of an
answer, the first JSON object counts, whatever is written around it. tasks_data/json_records/facts.json has the names,
cities and jobs that may come. A city belongs to one split, so that no tested city is trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from environments.base import Component, Env, Message, Outcome, Scenario, Split, read_text, split_of, words

EXACT = 1.0  # reward of exactly the record
FIELDS = 0.5  # reward of a JSON object: -FIELDS with no field right, up to FIELDS with all of them and something else
NONE = -1.0  # reward without a JSON object
SENTENCES: dict[tuple[str, ...], str] = {  # by the keys of the record
    ("name", "age", "city"): "{name} is {age} years old and lives in {city}.",
    ("name", "city", "job"): "{name} lives in {city} and works as a {job}.",
    ("city", "name", "age", "job"): "The {job} {name} is {age} years old and comes from {city}.",
}
TRIES = 100  # draws for each scenario that is asked for; a split gets at least 15 % of them

Record = dict[str, Any]


def record_in(text: str) -> Record | None:
    """The first JSON object in a text, or None."""
    for match in re.finditer(r"\{", text):
        try:
            value = json.JSONDecoder().raw_decode(text[match.start() :])[0]
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else None
    return None


class JsonRecords(Env):
    """One record."""

    max_turns = 1

    @classmethod
    def load(cls, folder: Path) -> dict[str, list[str]]:
        """The values that may come, by key: name, city, job."""
        facts: dict[str, list[str]] = json.loads(read_text(folder / "facts.json"))
        return facts

    @classmethod
    def scenarios(cls, data: dict[str, list[str]], split: Split, count: int, seed: int) -> list[Scenario]:
        """The kinds of sentence in turn. ValueError where there are not as many people and cities."""
        draw = Random(f"{split} {seed}")
        kinds = list(SENTENCES)
        chosen: dict[str, Scenario] = {}
        most = len({*data["name"]}) * sum(split_of(city) == split for city in {*data["city"]})
        for _ in range(min(TRIES * count, 10**6) if count <= most else 0):
            if len(chosen) == count:
                break
            values: Record = {key: draw.choice(data[key]) for key in ("name", "city", "job")}
            values["age"] = draw.randint(18, 80)
            who = f"{values['name']} {values['city']}"
            if who not in chosen and split_of(values["city"]) == split:
                keys = kinds[len(chosen) % len(kinds)]
                chosen[who] = scenario(split, {key: values[key] for key in keys})
        if len(chosen) < count:
            raise ValueError(
                f"{count} scenarios need as many pairs of a name and a city, and {split} has {most} and gave {len(chosen)}: "
                "ask for fewer"
            )
        return list(chosen.values())

    @classmethod
    def cluster(cls, scenario: Scenario, data: Any) -> str:
        """The city, which decides the split."""
        return str(scenario.data["record"]["city"])

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Reads the sentence by its own pattern."""
        sentence = str(messages[-1]["content"])
        for pattern in SENTENCES.values():
            expression = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\w+)", re.escape(pattern))
            if match := re.match(expression, sentence):
                read = {key: int(value) if key == "age" else value for key, value in match.groupdict().items()}
                return words(json.dumps(read))
        return words("I cannot read that.")

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        return words(json.dumps(self.scenario.data["record"]))

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Mistakes the name."""
        return words(json.dumps(self.scenario.data["record"] | {"name": "Nobody"}))

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        return words(json.dumps({key: rng.randrange(100) for key in self.scenario.data["record"]}))

    def hear(self, text: str) -> list[Message]:
        self.done = True
        return []

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        given, record = record_in(_last_words(messages)), scenario.data["record"]
        if _is_exact(given, record):
            return [Component("exact", EXACT, "the record, and nothing else")]
        if given is None:
            return [Component("no record", NONE, "there is no JSON object")]
        right = sum(key in given and _same(given[key], value) for key, value in record.items())
        share = right / max(len(record), len(given))
        return [Component("fields", (2 * share - 1) * FIELDS, f"{right} of {len(record)} fields are right")]

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        return _is_exact(record_in(_last_words(messages)), scenario.data["record"])

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        return Outcome(record_in(_last_words(messages)), scenario.data["record"], optimal_turns=1)


def scenario(split: Split, record: Record) -> Scenario:
    keys = list(record)
    listed = f"{', '.join(keys[:-1])} and {keys[-1]}"
    sentence = SENTENCES[tuple(keys)].format(**record)
    question = {"role": "user", "content": f"{sentence} Write this as JSON with the keys {listed}."}
    return Scenario.make("json_records", split, [question], {"record": record, "kind": " ".join(keys)})


def _same(given: Any, value: Any) -> bool:
    """Whether a field is right: "Pilot" is pilot, 24 is not "24", and true is not 1."""
    if isinstance(given, str) and isinstance(value, str):
        return given.casefold() == value.casefold()
    return type(given) is type(value) and bool(given == value)


def _is_exact(given: Record | None, record: Record) -> bool:
    """Whether a record has the keys that were asked for, in any order, with the right values."""
    return given is not None and given.keys() == record.keys() and all(_same(given[key], record[key]) for key in record)


def _last_words(messages: Sequence[Message]) -> str:
    """What the policy said; nothing where it has not spoken."""
    return str(messages[-1].get("content") or "") if messages[-1]["role"] == "assistant" else ""
