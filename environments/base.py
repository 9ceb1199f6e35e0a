"""What every task has in common: `Scenario`, `Env`, and tools made from methods.

A task is one class. Its class methods say what the task is (data, scenarios, reward); an instance is one episode, and
its methods marked `@tool` are what the policy can call. Type hints and docstrings become the tools' schemas. A call that
is malformed, names no tool or has wrong arguments is an observation with a clear error, never an exception.

    env = EmailSearch(scenario, data)
    observation = env.call("search_emails", {"keywords": ["Falcon"]})
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

Message = dict[str, Any]  # as in the OpenAI chat format: role, content, and tool_calls where an assistant made any
Split = Literal["train", "val", "test"]


class Scenario(BaseModel):
    """One task instance: what the policy is shown, and what only the environment knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str  # content hash of all other fields
    task: str
    split: Split
    messages: tuple[Message, ...]  # what the policy sees first: system and user
    data: dict[str, Any]  # what the environment needs and the policy never sees

    @classmethod
    def make(cls, task: str, split: Split, messages: Sequence[Message], data: dict[str, Any]) -> Scenario:
        """A scenario named by its content, so that the same content has the same id everywhere."""
        content = json.dumps([task, split, list(messages), data], sort_keys=True, ensure_ascii=False)
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
        return cls(id=name, task=task, split=split, messages=tuple(messages), data=data)


class Component(NamedTuple):
    """One named part of a rule reward."""

    name: str
    value: float
    why: str


class Outcome(NamedTuple):
    """What a transcript came to, beside what it should have come to: for judges that compare the two."""

    given: Any = None  # the final result: a text, a number, a mapping or a list; None where there is none
    expected: Any = None  # what it should be; None where nothing is expected
    optimal_turns: int | None = None  # of the assistant, that the task needs; None where that is not known
    required: Mapping[str, bool] = {}  # actions by name, in a fixed order: whether each was done
    accuracy: float | None = None  # 0 to 1, where nothing is expected: how near to a success, by the task's own measure


class Tool(NamedTuple):
    """A method that the policy can call: its schema, and the model that checks its arguments."""

    name: str
    schema: dict[str, Any]  # as in the OpenAI tools format
    arguments: type[BaseModel]


F = typing.TypeVar("F", bound=Callable[..., str])
T = typing.TypeVar("T")


def tool(method: F) -> F:
    """Mark a method of an `Env` as a tool. Its docstring's `Args:` section describes the arguments, a line each."""
    method.is_tool = True  # type: ignore[attr-defined]
    return method


class Env(ABC):
    """One episode of a task. Subclasses add tools, and say what the task is in the class methods below."""

    max_turns: ClassVar[int]
    # Keys of `data` that together name what an answer comes from (a mail, a game's seed; of a list, each member): a source
    # of val or test must not be one of train, which steps/data/contamination.py checks, as it does the texts of the user's
    # messages, unless scenarios begin with the same words by nature and differ in what is hidden.
    sources: ClassVar[tuple[str, ...]] = ()
    openings_repeat: ClassVar[bool] = False
    done: bool = False

    def __init__(self, scenario: Scenario, data: Any) -> None:
        self.scenario = scenario
        self.data = data

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Any:
        """The task's read-only data, loaded once and shared by all episodes. FileNotFoundError names what is missing."""

    @classmethod
    @abstractmethod
    def scenarios(cls, data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        """`count` scenarios of a split; the same seed gives the same ones. ValueError where there are not so many."""

    @classmethod
    @abstractmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        """The rule reward of a transcript, part by part; their sum is the reward."""

    @classmethod
    @abstractmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        """Whether the transcript did what was asked."""

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        """What judges compare (steps/judging/criteria.py). Here: the texts of the last turn's last call, or its words
        where it calls nothing, with `answer` of the hidden data; no optimum, and nothing required.
        """
        last = next((message for message in reversed(messages) if message["role"] == "assistant"), {})
        given = str(last.get("content") or "")
        if calls := last.get("tool_calls"):
            arguments = calls[-1]["function"]["arguments"]
            values = arguments.values() if isinstance(arguments, dict) else ()
            given = " ".join(value for value in values if isinstance(value, str))
        return Outcome(given.strip() or None, scenario.data.get("answer"))

    @classmethod
    def accept(cls, data: Any, split: Split | None, candidate: dict[str, Any]) -> Scenario:
        """A scenario from what a model wrote ({"messages", "data", "difficulty"}; steps/data/generate.py), after it was
        checked.

        ValueError says what is wrong with it, or that it belongs to another split than the one that is wanted (None: any).
        """
        raise ValueError(f"{cls.__name__} takes no generated scenarios: it does not define `accept`")

    # Players: a turn each, given the transcript so far; `play` makes an episode of them. They need no model: baselines,
    # demonstrations for a small policy, and the checks that every task must pass (tests/test_environments.py).

    @abstractmethod
    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """A best effort by rules, from what the policy sees alone: the transcript and the tools."""

    @abstractmethod
    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        """Any well-formed turn."""

    @abstractmethod
    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """The turn of one who knows all that the policy does not see: it succeeds."""

    @abstractmethod
    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """A turn that looks like the task and must be rewarded less than gold."""

    def play(self, player: str, seed: int = 0) -> list[Message]:
        """A whole episode by `scripted`, `random`, `gold` or `bad`: its transcript."""
        rng = Random(f"{player} {seed} {self.scenario.id}")
        messages = list(self.scenario.messages)
        for _ in range(self.max_turns):
            messages.append(getattr(self, player)(messages, rng))
            messages += self.step(messages[-1])
            if self.done:
                break
        return messages

    def step(self, message: Message, problems: Sequence[str] = ()) -> list[Message]:
        """What a turn is answered with; `problems` are those of calls that could not be read."""
        answers: list[Message] = []
        for asked in message.get("tool_calls", ()):
            function = asked["function"]
            text = self.call(function["name"], function["arguments"])
            answers.append({"role": "tool", "name": function["name"], "content": text})
            if self.done:
                break
        answers += [{"role": "tool", "name": "", "content": error(text)} for text in problems]
        if not problems and not message.get("tool_calls"):
            answers += self.hear(str(message["content"]))
        return answers

    @classmethod
    def tools(cls) -> dict[str, Tool]:
        """The tools by name, in the order in which the class defines them."""
        if "_tools" not in cls.__dict__:
            methods = [value for value in vars(cls).values() if getattr(value, "is_tool", False)]
            cls._tools = {entry.name: entry for entry in map(_make_tool, methods)}
        return cls._tools

    _tools: ClassVar[dict[str, Tool]]

    def hear(self, text: str) -> list[Message]:
        """What a turn in plain words, without a tool call, is answered with; a task that takes an answer so sets `done`."""
        asked = error("no tool was called; call one between <tool_call> and </tool_call>")
        return [{"role": "tool", "name": "", "content": asked}]

    def call(self, name: str, arguments: Any) -> str:
        """Run one tool call and return what the policy sees of it."""
        tools = self.tools()
        if name not in tools:
            return error(f"there is no tool named {_shorten(name)}; the tools are {', '.join(tools)}")
        if not isinstance(arguments, dict):
            return error(f"the arguments of {name} must be an object, not {_shorten(arguments)}")
        if unwritable(arguments):
            return error(f"the arguments of {name} hold characters that are no text, or are nested too deeply")
        try:
            checked = tools[name].arguments.model_validate(arguments)
        except ValidationError as problem:
            return error(f"wrong arguments for {name}: {_say(problem)}")
        return str(getattr(self, name)(**{key: getattr(checked, key) for key in type(checked).model_fields}))


SHARES: dict[Split, float] = {"train": 0.7, "val": 0.15, "test": 0.15}


def split_of(content: str, shares: Mapping[Split, float] = SHARES) -> Split:
    """Where content belongs, by its hash: what is tested was never trained on, whatever the seed."""
    place = int(hashlib.sha256(content.encode()).hexdigest()[:8], 16) / 16**8
    return "train" if place < shares["train"] else "val" if place < 1 - shares["test"] else "test"


def read_text(path: Path, maker: str = "") -> str:
    """A data file. FileNotFoundError says how to get it back: from git, or from the module that made it."""
    if not path.is_file():
        again = f" or write it anew with `python -m environments.{maker} {path.parent}`" if maker else ""
        raise FileNotFoundError(f"{path} is missing: restore it with `git checkout -- {path}`{again}")
    return path.read_text(encoding="utf-8")


def read_lines(path: Path, maker: str = "") -> list[dict[str, Any]]:
    """The rows of a JSON Lines file, as `read_text` finds it."""
    return [json.loads(line) for line in read_text(path, maker).split("\n") if line]


def sample_kinds(rng: Random, by_kind: Mapping[str, Sequence[T]], count: int, where: str) -> list[T]:
    """As many of each kind, so that none is learnt at the cost of another, shuffled. ValueError where there are too few."""
    chosen: list[T] = []
    for place, kind in enumerate(by_kind):
        quota = (count + len(by_kind) - 1 - place) // len(by_kind)
        if quota > len(by_kind[kind]):
            raise ValueError(
                f"{count} scenarios need {quota} questions of the kind {kind}, and {where} has {len(by_kind[kind])}: "
                f"ask for {len(by_kind[kind]) * len(by_kind)} or fewer"
            )
        chosen += rng.sample(by_kind[kind], quota)
    rng.shuffle(chosen)
    return chosen


def count_errors(messages: Sequence[Message]) -> int:
    """How many observations are errors."""
    return sum(message["role"] == "tool" and is_error(message) for message in messages)


def count_turns(messages: Sequence[Message]) -> int:
    """How many turns the policy took."""
    return sum(message["role"] == "assistant" for message in messages)


def weighed(counts: Mapping[str, float], table: Mapping[str, tuple[float, str]]) -> list[Component]:
    """A reward from how often, or how much, each thing happened, and a table of what it is worth and why."""
    return [
        Component(name, count * table[name][0], f"{count:.3g} × {table[name][0]}: {table[name][1]}")
        for name, count in counts.items()
        if count
    ]


def use(name: str, /, **arguments: Any) -> Message:
    """An assistant's turn that calls one tool."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def words(text: str) -> Message:
    """An assistant's turn in plain words."""
    return {"role": "assistant", "content": text}


def unwritable(value: Any) -> bool:
    """What no file or database takes: lone surrogates, NUL, numbers that are not finite, or more than 50 levels."""
    if isinstance(value, str):
        return "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, float):
        return not math.isfinite(value)
    level = [value]
    for _ in range(50):
        level = [part for container in level for part in _parts(container)]
        if any(isinstance(part, str | float) and unwritable(part) for part in level):
            return True
        if not level:
            return False
    return True


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list) else []


def error(text: str) -> str:
    """How every environment words an error, so that a reward can count them."""
    return f"Error: {text}."


def is_error(observation: Message) -> bool:
    return str(observation.get("content", "")).startswith("Error: ")


def tool_calls(messages: Sequence[Message]) -> list[tuple[str, dict[str, Any], Message]]:
    """(name, arguments, observation) of every call in a transcript, in order. Calls without an observation are left out."""
    calls = []
    for index, message in enumerate(messages):
        observations = []
        for later in messages[index + 1 :]:
            if later["role"] != "tool":
                break
            observations.append(later)
        for call, observation in zip(message.get("tool_calls") or (), observations, strict=False):
            arguments = call["function"]["arguments"]
            calls.append((call["function"]["name"], arguments if isinstance(arguments, dict) else {}, observation))
    return calls


def _shorten(value: Any, limit: int = 60) -> str:
    try:
        text = json.dumps(value, ensure_ascii=True, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, or nested too deeply
        return f"what cannot be written ({type(value).__name__})"
    return text if len(text) <= limit else text[:limit] + "…"


def _say(problem: ValidationError) -> str:
    """Pydantic's findings in one line."""
    return "; ".join(
        f"{'.'.join(map(str, finding['loc']))[:60] or 'arguments'}: {finding['msg'][:1].lower()}{finding['msg'][1:]}"
        for finding in problem.errors(include_url=False, include_input=False)[:3]
    )


JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _json_type(hint: Any) -> dict[str, Any]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _json_type(next(kind for kind in inner if kind is not type(None)))
    if origin is Literal:
        return {"type": "string", "enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": _json_type(inner[0])}
    if hint in JSON_TYPES:
        return {"type": JSON_TYPES[hint]}
    raise TypeError(f"a tool's argument cannot be of type {hint}")


def _make_tool(method: Callable[..., str]) -> Tool:
    """The schema of a method, as the chat templates of Qwen, Llama and others expect it."""
    hints = typing.get_type_hints(method)
    summary, _, details = inspect.cleandoc(method.__doc__ or "").partition("Args:")
    described = dict(re.findall(r"^\s*(\w+): (.+)$", details, re.MULTILINE))
    properties: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    required: list[str] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        name = parameter.name
        if name not in described:
            raise TypeError(f"{method.__qualname__}: the docstring does not describe {name}")
        properties[name] = _json_type(hints[name]) | {"description": described[name]}
        must = parameter.default is parameter.empty
        fields[name] = (hints[name], ... if must else parameter.default)
        required += [name] if must else []
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": method.__name__, "description": " ".join(summary.split()), "parameters": parameters}
    strict = ConfigDict(extra="forbid", strict=True)
    model = create_model(f"{method.__name__}_arguments", __config__=strict, **fields)
    return Tool(method.__name__, {"type": "function", "function": function}, model)
