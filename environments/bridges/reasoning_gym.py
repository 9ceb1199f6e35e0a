"""reasoning_gym's data sets as tasks: `task: reasoning_gym:chain_sum`, a question and an answer in words.

The difficulty of a scenario, 1 to 5, is a level of the package's own curriculum where it has one, so `rollout.curriculum`
moves along it; `reasoning_gym:chain_sum?levels=2` has the first two levels alone. The reward is the package's score of the
answer, which is what stands between <answer> and </answer>, or else the whole turn. The question decides the split. Left
out are levels that the package cannot make, or in which it takes any answer for right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, ClassVar

from environments import base
from environments.base import Component, Env, Message, Outcome, Scenario, Split, words
from environments.bridges.packaged import Packaged

SYSTEM = "Answer the question with the final answer alone."
SIZE = 100_000  # questions of each level
SIZES = {"acre": 500, "word_ladder": 500}  # of data sets that make all of theirs at once, or have no more
RIGHT = 0.99  # score from which an answer is right
LEVELS = 5
SCANNED = 50
LONGEST = 100_000  # characters of an answer: the boards of game_of_life have 20,000
NONSENSE = "I do not know."
SLOW = {"jugs": (3, 4, 5), "sokoban": (1,)}  # levels of which some questions take more than ten seconds
POSSIBLE = ("possible_answer", "example_answer", "example_correct_answer")  # where the package names one of several
COMPARED = 30  # questions that are looked at for what decides the split


@cache
def dataset(name: str, level: int) -> Any:
    """The questions of a level, made when they are asked for: {"question", "answer", "metadata"} by index. Level 0 has the
    package's own settings."""
    from reasoning_gym.factory import CURRICULA, create_curriculum, create_dataset

    if name not in CURRICULA or not level:
        return create_dataset(name, seed=level, size=SIZES.get(name, SIZE))
    curriculum = create_curriculum(name)
    curriculum.set_global_level(level - 1)
    configuration = curriculum.generate_configuration()
    return create_dataset(name, **vars(configuration) | {"seed": level, "size": SIZES.get(name, SIZE)})


@cache
def usable(name: str, levels: int) -> tuple[int, ...]:
    """The levels of which the package can make questions: its curricula lead some data sets out of their own bounds. Where
    it can of none, level 0. ValueError where not of that, either."""
    if made := tuple(level for level in range(1, levels + 1) if fault(name, level) is None):
        return made
    if reason := fault(name, 0):
        raise ValueError(f"reasoning_gym makes no usable question of {name} with its own settings: {reason}")
    return (0,)


def fault(name: str, level: int) -> str | None:
    """Why a level is of no use: the package makes no question of it, or takes any answer for right. None where it is."""
    if level in SLOW.get(name, ()):
        return "a question takes too long"
    try:
        dataset(name, level)[0]
    except Exception as problem:  # bare assertions, most of all
        return str(problem) or type(problem).__name__
    return f"it takes any answer for right, such as {NONSENSE!r}" if scored(name, level, 0, NONSENSE) >= RIGHT else None


def scored(name: str, level: int, index: int, answer: str) -> float:
    """The package's score of an answer. Its parsers raise many kinds of error; what they cannot read is no answer."""
    questions = dataset(name, level)
    try:
        return float(questions.score_answer(answer, questions[index]))
    except Exception:
        return 0.0


@cache
def is_drawn(name: str, level: int) -> bool:
    """Whether questions differ in signs more than in words, such as pictures of letters: then all of a question decides its
    split, and not its words alone."""
    questions = [str(dataset(name, level)[index]["question"]) for index in range(COMPARED)]
    return 2 * len({base.normalise(question) for question in questions}) <= len(set(questions)) + 1


def answer_of(text: str) -> str:
    tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (tagged[-1] if tagged else text).strip()[:LONGEST]


class ReasoningGym(Packaged):
    """One question. Subclasses, which `make` makes, name the data set."""

    max_turns = 1
    sources = ("level", "index")
    openings_repeat = True  # questions of a template differ in few words; the whole question decides the split
    name: ClassVar[str]
    levels: ClassVar[int]

    @classmethod
    def scenarios(cls, data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        made: dict[str, Scenario] = {}
        rng = Random(f"{split} {seed}")
        if count <= SIZE:
            levels, size = usable(cls.name, cls.levels), SIZES.get(cls.name, SIZE)
            is_by_signs = is_drawn(cls.name, levels[0])
            for at, index in enumerate(rng.sample(range(size), min(size, SCANNED * count))):
                level = levels[at % len(levels)]
                entry = dataset(cls.name, level)[index]
                question = str(entry["question"])
                own = base.split_of(question if is_by_signs else base.normalise(question))
                if question in made or own != split:
                    continue
                hidden = {"level": level, "index": index, "kind": f"level {level}", "difficulty": max(level, 1)}
                messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
                made[question] = Scenario.make(cls.task, split, messages, hidden)
                if len(made) == count:
                    return list(made.values())
        raise ValueError(f"{cls.task} has no {count} different questions for the split {split}: {len(made)} were found")

    @classmethod
    def entry(cls, scenario: Scenario) -> dict[str, Any]:
        return dict(dataset(cls.name, scenario.data["level"])[scenario.data["index"]])

    def hear(self, text: str) -> list[Message]:
        self.done = True
        return []

    @classmethod
    def score(cls, scenario: Scenario, messages: Sequence[Message]) -> float:
        last = messages[-1] if messages else {}
        if last.get("role") != "assistant" or last.get("tool_calls"):
            return 0.0
        given = answer_of(str(last.get("content") or ""))
        return scored(cls.name, scenario.data["level"], scenario.data["index"], given)

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        return [Component("score", cls.score(scenario, messages), f"{cls.task} scores the answer, 0 to 1")]

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        return cls.score(scenario, messages) >= RIGHT

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        given = answer_of(str(messages[-1].get("content") or "")) if messages[-1]["role"] == "assistant" else None
        return Outcome(given, cls.entry(scenario)["answer"], optimal_turns=1)

    # Players

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """A number or a word of the question: nobody knows a script for all data sets."""
        parts = re.findall(r"-?\d+|\w+", str(messages[-1]["content"]))
        return words(rng.choice([part for part in parts if part.lstrip("-").isdigit()] or parts or ["?"]))

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        return words(str(rng.randrange(100)))

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """The package's answer, or of several that are right the possible one that it names."""
        entry = self.entry(self.scenario)
        possible = [entry["answer"], *(entry["metadata"].get(key) for key in POSSIBLE)]
        answer = next((each for each in possible if each is not None), NONSENSE)
        return words(json.dumps(answer) if isinstance(answer, (dict, list)) else str(answer))

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        return words(NONSENSE)


def make(name: str) -> type[Env]:
    """The task of a data set. ValueError where reasoning_gym has none of this name."""
    from reasoning_gym.factory import CURRICULA, DATASETS

    name, _, query = name.partition("?")
    if name not in DATASETS:
        raise ValueError(
            f"reasoning_gym has no data set {name}, such as chain_sum; `reasoning_gym.factory.DATASETS` lists them"
        )
    if query and not re.fullmatch(r"levels=[1-9]\d?", query):
        raise ValueError(f"reasoning_gym:{name}?{query}: only levels=N can follow the question mark")
    wanted = int(query.partition("=")[2] or LEVELS) if name in CURRICULA else 1
    text = f"reasoning_gym:{name}" + (f"?{query}" if query else "")
    return type("ReasoningGym_", (ReasoningGym,), {"task": text, "name": name, "levels": wanted})
