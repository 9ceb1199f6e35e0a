"""verifiers' environments as tasks: `task: verifiers:my_env`, in a process with the interpreter VERIFIERS_PYTHON.

An environment is a module with `load_environment`: an installed one, or yours in a folder of PYTHONPATH or in the one in
which the run is. `verifiers:my_env?most=5` gives arguments of load_environment, and `?success=0.5` the least reward that is
a success (by default 0.99 of the weights' sum). SingleTurnEnv, ToolEnv and MultiTurnEnv work, and what extends them.

A scenario is a row of the environment's data set. Where it has a set for evaluations, that is the split test; otherwise the
question decides the split. Left out: pictures, rewards that compare attempts, and environments that rewrite transcripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from environments import base
from environments.base import Message, Outcome, Scenario, Split
from environments.bridges.apart import SECONDS, child_of, key_of
from environments.bridges.apart_env import Apart
from environments.bridges.packages import options_of

ROWS_SECONDS = 300.0
TURNS = 20  # of environments that set no limit
SHARE = 0.99  # of the weights' sum, from which a reward is a success


class Verifiers(Apart):
    """An episode of a row."""

    sources = ("set", "row")

    @classmethod
    def start(cls, scenario: Scenario) -> dict[str, Any]:
        return {"set": scenario.data["set"], "row": scenario.data["row"], "seed": scenario.data["row"]}

    @classmethod
    def scenarios(cls, data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        rows = rows_of(cls.key)[split]
        if count > len(rows):
            raise ValueError(f"{cls.task} has {len(rows)} different questions for the split {split}, not {count}")
        made = []
        for name, place in Random(f"{split} {seed}").sample(rows, count):
            hidden = {"set": name, "row": place}
            messages = row_of(cls.key, name, place)["messages"]
            if [each["role"] for each in messages] not in (["user"], ["system", "user"]):
                raise ValueError(f"{cls.task} begins with more than a system's and a user's message")
            made.append(Scenario.make(cls.task, split, messages, hidden))
        return made

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        return super().outcome(scenario, messages)._replace(expected=cls.answer(scenario) or None)

    @classmethod
    def answer(cls, scenario: Scenario) -> str:
        return str(row_of(cls.key, scenario.data["set"], scenario.data["row"])["answer"])

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """The row's answer, which is all that can be known here of how to win."""
        return base.words(self.answer(self.scenario) or "I do not know.")


@cache
def rows_of(key: tuple[str, str, str]) -> dict[Split, list[tuple[str, int]]]:
    """The rows of each split; of rows with the same question, the first."""
    by_question: dict[str, tuple[str, int]] = {}
    for name, place, question in child_of(*key).ask("rows", ROWS_SECONDS):
        by_question.setdefault(question, (name, place))
    has_both = len({name for name, _ in by_question.values()}) == 2
    rows: dict[Split, list[tuple[str, int]]] = {"train": [], "val": [], "test": []}
    for question, row in by_question.items():
        split = base.split_of(question)
        if has_both:
            split = "test" if row[0] == "eval" else "val" if split == "val" else "train"
        rows[split].append(row)
    return rows


@cache
def row_of(key: tuple[str, str, str], name: str, place: int) -> dict[str, Any]:
    row: dict[str, Any] = child_of(*key).ask("row", SECONDS, start={"set": name, "row": place, "seed": place})
    return row


def make(name: str) -> type[Apart]:
    """The task of an environment. TaskProblem where there is none of this name, or no interpreter."""
    key, least = key_of("verifiers", *options_of(name))
    facts = child_of(*key).facts
    attributes: dict[str, Any] = {
        "task": f"verifiers:{name}",
        "key": key,
        "max_turns": facts["max_turns"] if facts["max_turns"] > 0 else TURNS,
        "threshold": least if least is not None else SHARE * facts["best"],
    }
    return type("Verifiers_", (Verifiers,), attributes)
