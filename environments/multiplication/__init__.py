"""Multiplication: "What is a * b?", answered in plain words. The smallest task: one turn and no tools.

a * b and b * a belong to the same split, so that no tested pair is trained on. The ranges of both factors are set in
tasks_data/multiplication/ranges.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

from environments.base import Component, Env, Message, Outcome, Scenario, Split, read_text, split_of, words

CORRECT, WRONG = 1.0, -1.0


def split_of_pair(a: int, b: int) -> Split:
    """The split of a pair; the order of the factors does not matter."""
    return split_of(f"{min(a, b)} {max(a, b)}")


def answer(text: str) -> int | None:
    """The last whole number in a text, or None; commas may group its digits."""
    numbers = re.findall(r"-?\d+(?:,\d{3})*", text)
    return int(numbers[-1].replace(",", "")[:30]) if numbers else None


def written_out(a: int, b: int) -> str:
    """47 * 36: 47 * 30 = 1410, 47 * 6 = 282, 1410 + 282 = 1692."""
    parts = [a * part for part in (b // 10 * 10, b % 10) if part]
    steps = [f"{a} * {part} = {a * part}" for part in (b // 10 * 10, b % 10) if part]
    return ", ".join([*steps, f"{' + '.join(map(str, parts))} = {a * b}"] if len(parts) > 1 else steps)


def scenario(split: Split, a: int, b: int) -> Scenario:
    question = {"role": "user", "content": f"What is {a} * {b}?"}
    return Scenario.make("multiplication", split, [question], {"answer": a * b})


class Multiplication(Env):
    """One product."""

    max_turns = 1

    @classmethod
    def load(cls, folder: Path) -> dict[Split, list[tuple[int, int]]]:
        """The pairs of each split."""
        ranges = json.loads(read_text(folder / "ranges.json"))
        pairs: dict[Split, list[tuple[int, int]]] = {split: [] for split in get_args(Split)}
        for a in range(ranges["a"][0], ranges["a"][1] + 1):
            for b in range(ranges["b"][0], ranges["b"][1] + 1):
                pairs[split_of_pair(a, b)].append((a, b))
        return pairs

    @classmethod
    def scenarios(cls, data: dict[Split, list[tuple[int, int]]], split: Split, count: int, seed: int) -> list[Scenario]:
        if count > len(data[split]):
            raise ValueError(
                f"{count} scenarios need as many pairs, and the ranges of multiplication have {len(data[split])}"
            )
        chosen = Random(f"{split} {seed}").sample(data[split], count)
        return [scenario(split, a, b) for a, b in chosen]

    @classmethod
    def cluster(cls, scenario: Scenario, data: Any) -> str:
        """The pair; the order of its factors does not matter."""
        return " ".join(sorted(re.findall(r"\d+", str(scenario.messages[-1]["content"]))))

    @classmethod
    def accept(
        cls, data: dict[Split, list[tuple[int, int]]], split: Split | None, candidate: dict[str, Any]
    ) -> Scenario:
        """Only the question is taken from the candidate: the answer is computed, and the pair decides the split."""
        asked = [str(message["content"]) for message in candidate["messages"]]
        match = re.fullmatch(r"What is (\d{1,9}) \* (\d{1,9})\?", asked[0]) if len(asked) == 1 else None
        if match is None or candidate["messages"][0]["role"] != "user":
            raise ValueError('the messages must be one of the user, "What is a * b?"')
        a, b = int(match[1]), int(match[2])
        own = split_of_pair(a, b)
        if (a, b) not in data[own]:
            raise ValueError("a factor is out of range")
        if candidate["data"].get("answer", a * b) != a * b:
            raise ValueError("the answer is wrong")
        if split not in (None, own):
            raise ValueError(f"the pair belongs to the split {own}")
        return scenario(own, a, b)

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Multiplies by one digit of the second factor at a time."""
        a, b = map(int, re.findall(r"\d+", str(messages[-1]["content"])))
        return words(written_out(a, b))

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        return words(f"It is {self.scenario.data['answer']}")

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Guesses a number near the product."""
        return words(f"It is {int(self.scenario.data['answer']) + rng.choice((-20, -10, -2, -1, 1, 2, 10, 20))}")

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        return words(str(rng.randrange(10_000)))

    def hear(self, text: str) -> list[Message]:
        self.done = True
        return []

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        if cls.success(scenario, messages):
            return [Component("correct", CORRECT, "the product is right")]
        return [Component("wrong", WRONG, f"the product is {scenario.data['answer']}")]

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        content: Any = messages[-1].get("content") if messages[-1]["role"] == "assistant" else None
        return answer(str(content or "")) == int(scenario.data["answer"])

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        content: Any = messages[-1].get("content") if messages[-1]["role"] == "assistant" else None
        number = answer(str(content or ""))
        return Outcome(None if number is None else str(number), str(scenario.data["answer"]), optimal_turns=1)
