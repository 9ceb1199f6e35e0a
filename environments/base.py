"""What every task has in common: `Scenario`, `Env`, and tools made from methods.

A task is a class. Its class methods define the task (data, scenarios, reward). An instance is one episode, and its
methods marked `@tool` are the tools that the policy can call: type hints and docstrings become their schemas. A call that
is malformed, names no tool or has wrong arguments returns an observation with a clear error and never raises.

    env = EmailSearch(scenario, data)
    observation = env.call("search_emails", {"keywords": ["Falcon"]})
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import ValidationError

from environments.kit import waiting
from environments.kit.data_files import read_lines as read_lines
from environments.kit.data_files import read_text as read_text
from environments.kit.data_files import rows_of as rows_of
from environments.kit.data_files import write_lines as write_lines
from environments.kit.pictures import picture_url as picture_url
from environments.kit.players import Players
from environments.kit.scenarios import SHARES as SHARES
from environments.kit.scenarios import Scenario as Scenario
from environments.kit.scenarios import Split as Split
from environments.kit.scenarios import draw as draw
from environments.kit.scenarios import sample_kinds as sample_kinds
from environments.kit.scenarios import split_of as split_of
from environments.kit.tools import Tool as Tool
from environments.kit.tools import make_tool, shorten, text_of, wrong_arguments
from environments.kit.tools import tool as tool
from environments.kit.tools import unwritable as unwritable
from environments.kit.transcripts import Message as Message
from environments.kit.transcripts import accepted as accepted
from environments.kit.transcripts import count_calls as count_calls
from environments.kit.transcripts import count_errors as count_errors
from environments.kit.transcripts import count_turns as count_turns
from environments.kit.transcripts import error as error
from environments.kit.transcripts import is_call_error as is_call_error
from environments.kit.transcripts import is_error as is_error
from environments.kit.transcripts import is_unparsed as is_unparsed
from environments.kit.transcripts import tool_calls as tool_calls
from environments.kit.transcripts import use as use
from environments.kit.transcripts import words as words
from environments.kit.values import UnusableNumber, number, truth


class TaskProblem(ValueError):
    """What is wrong with a task's files or with a service that it needs: a sentence, with which the command ends."""

    is_sentence = True


class Component(NamedTuple):
    """One named part of a rule reward."""

    name: str
    value: float
    why: str


class Outcome(NamedTuple):
    """The result of a transcript beside the expected result, for judges that compare the two."""

    given: Any = None  # the final result: a text, a number, a mapping or a list; None without a result
    expected: Any = None  # the right result; None where the task expects no particular one
    optimal_turns: int | None = None  # assistant turns that the task needs; None where nobody knows
    required: Mapping[str, bool] = {}  # whether each required action was taken, by name, in a fixed order
    accuracy: float | None = None  # where nothing is expected: how near to a success, 0 to 1, by the task's own measure


class Env(Players, ABC):
    """One episode of a task. Subclasses add tools and define the task in the class methods below."""

    max_turns: ClassVar[int] = 10  # of the assistant, after which an episode ends
    # Keys of `data` that together identify where an answer comes from (a mail, the seed of a game; each member of a list).
    # steps/data/contamination.py checks that train shares no source with val or test. It checks the texts of the user's
    # messages as well, unless `openings_repeat` says that different scenarios start with much the same words (a board, a
    # question from a template).
    sources: ClassVar[tuple[str, ...]] = ()
    openings_repeat: ClassVar[bool] = False
    # For environments that take longer than a few milliseconds to answer a turn, such as by a web service: for how many
    # engine steps (of one token for each episode) sampling goes on meanwhile. Each `Env` is then asked in a thread, and what
    # several of them share must bear that. 0: one after another, and sampling waits, unless a tool is `async def` (`lag`).
    overlap: ClassVar[int] = 0
    # Fields of a scenario's data that no tool may show, except the tools that `shown` names (`make check-task`).
    secret: ClassVar[tuple[str, ...]] = ("answer",)
    shown: ClassVar[tuple[str, ...]] = ()
    # Whether `reward` and `success` can tell a good transcript from a bad one. False: only judges score this task.
    has_rule: ClassVar[bool] = True
    # Whether all scenarios are written by a model (addons/supervised/generate.py), into a file of the task's data.
    is_written: ClassVar[bool] = False
    # An agent of the user's own (environments/kit/agents.py): it has no tools and no players here.
    is_agent: ClassVar[bool] = False
    # Of several tasks at once (environments/kit/mixed.py): their environments, by the name that a task's scenarios carry.
    task_classes: ClassVar[Mapping[str, type[Env]]] = {}
    done: bool = False
    limit: waiting.Limited | None = None  # seconds that a call may take, where answers overlap with sampling
    call_hint: str = "between <tool_call> and </tool_call>"  # how this policy writes a call, after "call one"

    def __init__(self, scenario: Scenario, data: Any) -> None:
        self.scenario = scenario
        self.data = data

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Any:
        """The task's read-only data, loaded once and shared by all episodes. A FileNotFoundError names a missing file."""

    @classmethod
    def practice(cls, data: Any, seed: int) -> Any:
        """Data as `load` returns them, made up anew for demonstrations (addons/supervised/small_policy.py): from them a
        small policy learns to look things up, and not what the task's own `data` say. None, the default: those are used."""
        return None

    @classmethod
    @abstractmethod
    def scenarios(cls, data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        """`count` scenarios of a split; the same seed gives the same ones. ValueError if the split has too few."""

    # A task defines one of the next two at least, and the other follows from it.

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component] | float:
        """The components of a transcript's rule reward, which is their sum; or the reward as a single number. By default 1
        for a success and 0 for anything else."""
        return float(truth(cls.success(scenario, messages), "success"))

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        """Whether the transcript did what was asked. By default whether its reward is above 0."""
        return round(sum(part.value for part in cls.components(scenario, messages)), 9) > 0  # 0.1 + 0.2 - 0.3 is not

    @classmethod
    def components(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        """The components of `reward`; a single number is one component. UnusableNumber, a TypeError, where it gives neither,
        or a number that is not finite."""
        parts = cls.reward(scenario, messages)
        if isinstance(parts, (list, tuple)) and all(isinstance(part, Component) for part in parts):
            return [part._replace(value=number(part.value, "reward", f"component {part.name}")) for part in parts]
        if parts is None or isinstance(parts, (list, tuple, dict)):
            raise UnusableNumber(
                f"{cls.__name__}.reward must return a number or a list of Component(name, value, why), not {shorten(parts)}"
            )
        return [Component("reward", number(parts, "reward"), f"{cls.__name__}.reward gives one number")]

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        """What judges compare (addons/judges/criteria.py). By default the texts of the last turn's last call, or its words
        if it calls no tool, are compared with `answer` in the hidden data; no optimum is stated, no action is required.
        """
        last = next((message for message in reversed(messages) if message["role"] == "assistant"), {})
        given = str(last.get("content") or "")
        if calls := last.get("tool_calls"):
            arguments = calls[-1]["function"]["arguments"]
            values = arguments.values() if isinstance(arguments, dict) else ()
            given = " ".join(value for value in values if isinstance(value, str))
        return Outcome(given.strip() or None, scenario.data.get("answer"))

    @classmethod
    def cluster(cls, scenario: Scenario, data: Any) -> str:
        """The name of the group of alike scenarios that this one belongs to, such as questions to one inbox. A policy may
        succeed or fail at all of them together, so the gate counts groups and not only scenarios (steps/registry/paired.py).

        It should be no finer than what `scenarios` splits by. By default scenarios are alike that have the same values of
        `sources`; without `sources`, each is a group of its own.
        """
        return json.dumps([scenario.data[key] for key in cls.sources], sort_keys=True) if cls.sources else scenario.id

    @classmethod
    def anchor_state(cls, scenario: Scenario, messages: Sequence[Message]) -> str | None:
        """What the next turn starts from, for `update.advantages: gigpo`: turns with the same text are compared with each
        other, whatever led there. `messages` are those before the turn. None: only turns with the same past are alike.
        """
        return None

    @classmethod
    def decisions(cls, scenario: Scenario, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        """(kind of decision, whether it was right) of each decision in a transcript, for the table of skills that an
        evaluation makes; by default none. The kinds are the table's rows, in the order in which they first occur."""
        return []

    @classmethod
    def describe(cls, data: Any) -> str:
        """The task in words, for a model that writes scenarios; by default the docstring of its module or class."""
        return (sys.modules[cls.__module__].__doc__ or cls.__doc__ or cls.__name__).strip()

    @classmethod
    def examples(cls, data: Any, count: int) -> list[Scenario]:
        """At most `count` scenarios that a model which writes new ones is shown; by default some of the training split."""
        return cls.scenarios(data, "train", count, 0)

    @classmethod
    def accept(cls, data: Any, split: Split | None, candidate: dict[str, Any]) -> Scenario:
        """Check a candidate that a model wrote ({"messages", "data", "difficulty"}; addons/supervised/generate.py) and
        return it as a scenario. By default its form is checked, and the user's words decide its split.

        A ValueError says what is wrong with it, or that it belongs to a split other than `split` (None accepts any).
        """
        messages: list[Message] = candidate["messages"]
        if [message["role"] for message in messages] not in (["user"], ["system", "user"]):
            raise ValueError("the messages must be one of the user, with or without one of the system before it")
        if not all(normalise(message["content"]) for message in messages):
            raise ValueError("a message holds no words")
        if missing := [key for key in cls.sources if key not in candidate["data"]]:
            raise ValueError(f"the data lacks {missing[0]}, which says where the answer comes from")
        own = split_of(normalise(messages[-1]["content"]))
        if split not in (None, own):
            raise ValueError(f"its words belong to the split {own}")
        return Scenario.make(cls.__module__.rpartition(".")[2], own, messages, candidate["data"])

    @classmethod
    def from_conversation(cls, data: Any, conversation: dict[str, Any]) -> Scenario:
        """The scenario that a served conversation was an attempt at (docs/traces.md): of {"messages", "metadata",
        "answer": the message that feedback calls right, or None}. A ValueError says why it is none; by default no task
        takes any."""
        raise ValueError("the task does not say how a conversation becomes a scenario (from_conversation)")

    @classmethod
    def corrected(cls, answer: Message, correction: Message) -> Message:
        """A person's correction in the form of the answer that it corrects, such as words that correct a call."""
        return correction

    def step(self, message: Message, problems: Sequence[str] = ()) -> list[Message]:
        """The messages that answer a turn; `problems` describe the calls that could not be parsed."""
        answers: list[Message] = []
        for asked in message.get("tool_calls", ()):
            function = asked["function"]
            text = self._in_time(function)
            answers.append({"role": "tool", "name": function["name"], "content": text})
            if self.done:
                break
        answers += [{"role": "tool", "name": "", "content": error(text)} for text in problems]
        if not problems and not message.get("tool_calls"):
            answers += self.hear(str(message["content"]))
        return answers

    def release(self) -> None:
        """Called when the episode is over, however it ended, at times twice: frees what it holds, such as a connection."""

    def _in_time(self, function: Mapping[str, Any]) -> str:
        """The observation of a call, or the error that it took too long."""
        if self.limit is None:
            return self.call(function["name"], function["arguments"])
        try:
            return self.limit(lambda: self.call(function["name"], function["arguments"]))
        except waiting.TookTooLong:
            name, seconds = shorten(function["name"]), self.limit.seconds
            return error(f"the tool {name} took longer than {seconds:g} seconds, and its answer was not waited for")

    @classmethod
    def tools(cls) -> dict[str, Tool]:  # pyrefly: ignore[bad-override]
        """The tools by name, in the order of their definition; those of the class that this one extends come first."""
        if "_tools" not in cls.__dict__:
            values: dict[str, Any] = {}
            for kind in reversed(cls.__mro__):
                for name, value in vars(kind).items():
                    values.pop(name, None)  # what is defined again takes its place among the later ones
                    values[name] = value
            marked = [each for each in values.values() if getattr(getattr(each, "__func__", each), "is_tool", False)]
            tools = {entry.name: entry for entry in map(make_tool, marked)}
            if taken := [name for name in tools if hasattr(Env, name) or name in Env.__annotations__]:
                raise TypeError(
                    f"{cls.__qualname__}.{taken[0]}: an Env has this name for itself; give the tool another one"
                )
            cls._tools = tools
        return cls._tools

    _tools: ClassVar[dict[str, Tool]]

    @classmethod
    def lag(cls) -> int:
        """For how many engine steps sampling goes on while a turn is answered: `overlap`, or 8 if a tool is `async def`."""
        is_async = any(inspect.iscoroutinefunction(getattr(cls, name, None)) for name in cls.tools())
        return cls.overlap or (8 if is_async else 0)

    @property
    def awaits_rival(self) -> bool:
        """Whether the other side of a game is to move, which another policy plays (environments/kit/two_sided.py)."""
        return False

    def hear(self, text: str) -> list[Message]:
        """The answer to a turn in plain words, without a tool call. A task that takes its result this way sets `done`."""
        asked = error(f"no tool was called; call one {self.call_hint}")
        return [{"role": "tool", "name": "", "content": asked}]

    @classmethod
    def takes_words(cls) -> bool:  # pyrefly: ignore[bad-override]
        """Whether a turn in plain words is more than an error: the task defines `hear`."""
        return cls.hear is not Env.hear

    def call(self, name: str, arguments: Any) -> str:
        """Run one tool call and return the observation."""
        tools = self.tools()
        if name not in tools:
            return error(f"there is no tool named {shorten(name)}; the tools are {', '.join(tools)}")
        if not isinstance(arguments, dict):
            return error(f"the arguments of {name} must be an object, not {shorten(arguments)}")
        if unwritable(arguments):
            return error(f"the arguments of {name} hold characters that are no text, or are nested too deeply")
        try:
            checked = tools[name].arguments.model_validate(arguments)
        except ValidationError as problem:
            return error(f"wrong arguments for {name}: {wrong_arguments(problem)}")
        method = getattr(self, name)
        result = method(**{key: getattr(checked, key) for key in type(checked).model_fields})
        if inspect.iscoroutinefunction(method):
            result = waiting.run(result, self.limit.seconds if self.limit else None)
        return text_of(name, result)


def weighed(counts: Mapping[str, float], table: Mapping[str, tuple[float, str]]) -> list[Component]:
    """The components of a reward: counts or amounts by name, times the values in a table of (value, reason)."""
    return [
        Component(name, count * table[name][0], f"{count:.3g} × {table[name][0]}: {table[name][1]}")
        for name, count in counts.items()
        if count
    ]


def normalise(text: str) -> str:
    """Lower case, no commas within numbers, punctuation as spaces, one space between words."""
    return " ".join(re.findall(r"\w+", re.sub(r"(?<=\d),(?=\d)", "", text.lower())))
