"""What tasks of verifiers and openenv share: an episode in another process, and rewards from playing its turns again.

The adapters (`verifiers.py`, `openenv.py`) give names, scenarios and players; `apart.py` has the processes. A turn goes
to the environment as a whole. Calls that do not fit the schema of their tool are answered here, and a turn that has no
others is none: the environment never sees it. Nor does it keep a turn at which it hung, ended or raised an error; the agent
reads what happened, and the episode goes on as before that turn.

The reward of a transcript is what the package gives when its turns are played again from the same start, so words in a
transcript earn nothing. A turn that the environment did not see costs 0.05.
"""

from __future__ import annotations

import itertools
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from random import Random
from typing import Any, ClassVar, NamedTuple

from pydantic import ValidationError

from environments import base
from environments.base import Component, Message, Scenario, Tool, unwritable
from environments.bridges.apart import SECONDS, Episode, Stopped, child_of
from environments.bridges.packaged import Packaged
from environments.kit.sandbox import printable
from environments.kit.tools import any_call, shorten, tool_of, wrong_arguments

ERROR, MOST_ERRORS = -0.05, 20
LONGEST = 20_000  # characters of an observation
LONGEST_ERROR = 1_000
FAILED = "the turn was not taken, because "  # before what went wrong at a turn that the environment did not keep
Turn = dict[str, Any]  # {"content": text, "tool_calls": [{"name", "arguments"}]}


class Ending(NamedTuple):
    """What the turns of a transcript come to."""

    score: float
    parts: tuple[tuple[str, float], ...]  # (name, value)
    problem: str = ""


class Apart(Packaged):
    """An episode of an environment that runs elsewhere. `make` of an adapter makes subclasses."""

    key: ClassVar[tuple[str, str, str]]  # package, name, options as JSON
    threshold: ClassVar[float]  # the score that is a success
    hears: ClassVar[bool] = True  # whether words without a call are a turn

    def __init__(self, scenario: Scenario, data: Any) -> None:
        super().__init__(scenario, data)
        self.episode = Episode(self.key, self.start(scenario))

    @classmethod
    @abstractmethod
    def start(cls, scenario: Scenario) -> dict[str, Any]:
        """What the other side opens an episode with; `seed` among it."""

    @classmethod
    def tools(cls) -> dict[str, Tool]:
        return tools_of(cls.key)

    def step(self, message: Message, problems: Sequence[str] = ()) -> list[Message]:
        turn, refused = self.turn_of(message)
        refused += [{"role": "tool", "name": "", "content": base.error(text)} for text in problems]
        if not turn["tool_calls"] and (message.get("tool_calls") or problems):
            return refused
        if not turn["tool_calls"] and not self.hears:
            return self.hear(turn["content"])
        if self.done:
            return [{"role": "tool", "name": "", "content": base.error("the episode is over")}]
        try:
            answer: dict[str, Any] = self.episode.take(turn, self.limit.seconds if self.limit else SECONDS)
        except Stopped as problem:
            answer = {"refused": f"{FAILED}{problem}"}
        if "refused" in answer:
            what = base.error(printable(str(answer["refused"]))[:LONGEST_ERROR])
            name = str(turn["tool_calls"][0]["name"]) if turn["tool_calls"] else ""
            return [{"role": "tool", "name": name, "content": what}, *refused]
        self.done = bool(answer["done"])
        return [observed(each) for each in answer["answers"]] + refused

    def call(self, name: str, arguments: Any) -> str:
        """The observation of a turn with this call alone."""
        function = {"name": name, "arguments": arguments}
        answers = self.step({"role": "assistant", "content": "", "tool_calls": [{"function": function}]})
        return "\n".join(str(each["content"]) for each in answers)

    def release(self) -> None:
        self.episode.drop()

    @classmethod
    def turn_of(cls, message: Message) -> tuple[Turn, list[Message]]:
        """A turn as the environment takes it, and the answers to calls that it does not see."""
        calls, refused = [], list[Message]()
        for asked in message.get("tool_calls") or ():
            name, arguments = asked["function"]["name"], asked["function"]["arguments"]
            if problem := cls.refusal(name, arguments):
                refused.append({"role": "tool", "name": name, "content": base.error(problem)})
            else:
                calls.append({"name": name, "arguments": arguments})
        return {"content": printable(str(message.get("content") or "")), "tool_calls": calls}, refused

    @classmethod
    def refusal(cls, name: Any, arguments: Any) -> str:
        """What is wrong with a call; empty where it fits."""
        tools = cls.tools()
        if not isinstance(name, str) or name not in tools:
            return f"there is no tool named {shorten(name)}; the tools are {', '.join(tools) or 'none'}"
        if not isinstance(arguments, dict):
            return f"the arguments of {name} must be an object, not {shorten(arguments)}"
        if unwritable(arguments):
            return f"the arguments of {name} hold characters that are no text, or are nested too deeply"
        try:
            tools[name].arguments.model_validate(arguments)
            json.dumps(arguments)
        except ValidationError as problem:
            return f"wrong arguments for {name}: {wrong_arguments(problem)}"
        except (TypeError, ValueError):
            return f"the arguments of {name} cannot be written as JSON"
        return ""

    # Rewards

    @classmethod
    def turns(cls, messages: Sequence[Message]) -> tuple[list[Turn], int]:
        """The turns of a transcript that the environment has seen, and how many it has not."""
        taken, errors = list[Turn](), 0
        for message, answers in turns_with_answers(messages):
            turn, _ = cls.turn_of(message)
            is_heard = cls.hears and not message.get("tool_calls") and not unheard(answers)
            if not turn["tool_calls"] and not is_heard:
                errors += not failed(answers)
            elif not failed(answers):
                taken.append(turn)
        return taken, errors

    @classmethod
    def ending(cls, scenario: Scenario, messages: Sequence[Message]) -> Ending:
        taken, _ = cls.turns(messages)
        if not taken:
            return Ending(0.0, ())
        return replayed(cls.key, json.dumps(cls.start(scenario), sort_keys=True), json.dumps(taken))

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        ending = cls.ending(scenario, messages)
        parts = [Component(name, value, f"{name}, by {cls.task}") for name, value in ending.parts]
        if ending.problem or not parts:
            parts = [Component("score", 0.0, ending.problem or "the environment saw no turn")]
        if errors := min(cls.turns(messages)[1], MOST_ERRORS):
            why = f"{errors} × {ERROR}: turns that are none to the environment"
            parts.append(Component("error", ERROR * errors, why))
        return parts

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        ending = cls.ending(scenario, messages)
        return bool(ending.parts) and ending.score >= cls.threshold

    # Players

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        """A call whose arguments fit its schema, or words."""
        if not self.tools() or (self.hears and rng.random() < 0.5):
            return self.scripted(messages, rng)
        return any_call(self.tools(), rng)

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """A number or a word of the last message: nobody knows a script for every environment."""
        parts = re.findall(r"-?\d+|\w+", str(messages[-1]["content"]))
        return base.words(rng.choice([part for part in parts if part.lstrip("-").isdecimal()] or parts or ["?"]))

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        return base.words("I do not know.")


@cache
def tools_of(key: tuple[str, str, str]) -> dict[str, Tool]:
    """The environment's tools by name."""
    return {tool["name"]: tool_of(tool) for tool in child_of(*key).facts["tools"]}


@lru_cache(maxsize=1024)  # reward and success ask for the same
def replayed(key: tuple[str, str, str], start: str, turns: str) -> Ending:
    try:
        answer = child_of(*key).ask("score", start=json.loads(start), turns=json.loads(turns))
        parts = tuple((str(name), float(value)) for name, value in answer["parts"])
        score = float(answer["score"])
    except Stopped as problem:
        return Ending(0.0, (), f"no score: {problem}"[:LONGEST_ERROR])
    except (LookupError, TypeError, ValueError):
        return Ending(0.0, (), "no score: the environment's answer has none")
    if unwritable([score, *(value for _, value in parts)]):
        return Ending(0.0, (), "no score: the environment's is no finite number")
    return Ending(score, parts)


def turns_with_answers(messages: Sequence[Message]) -> Iterator[tuple[Message, list[Message]]]:
    """Each turn of the agent with the messages that answer it."""
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            answers = itertools.takewhile(lambda later: later["role"] != "assistant", messages[place + 1 :])
            yield message, list(answers)


def unheard(answers: Sequence[Message]) -> bool:
    """Whether a turn without a call that fits was answered as a call that could not be read."""
    return bool(answers) and answers[0]["role"] == "tool" and base.is_error(answers[0])


def failed(answers: Sequence[Message]) -> bool:
    """Whether the environment hung, ended or raised an error at a turn."""
    return bool(answers) and str(answers[0]["content"]).startswith(f"Error: {FAILED}")


def observed(answer: dict[str, Any]) -> Message:
    """An environment's message as the agent reads it."""
    text = printable(str(answer["content"]))
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text) - LONGEST} characters more)"
    if answer["role"] == "tool":
        return {"role": "tool", "name": str(answer.get("name", "")), "content": text}
    return {"role": "user", "content": text}
