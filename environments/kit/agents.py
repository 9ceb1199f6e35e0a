"""Your own agent as a task: what a rollout function gets and returns, and the `Env` class that stands for its module.

    # my_package/my_agent.py, with `task: my_package.my_agent` in params.yaml
    async def rollout(episode):
        client = episode.openai()
        answer = await client.chat.completions.create(model=episode.model, messages=episode.messages)
        return 1.0 if "Lima" in answer.choices[0].message.content else 0.0

It may be a plain function, too. It returns a reward, a `Result`, or None: then a judge scores it. `episode` is an
addons.agents.episode.Episode. Nothing of the class below plays an episode: clients run the function (addons/agents/),
and the gateway records what the model samples for it (addons/agents/gateway/).

Scenarios are the lines of scenarios.jsonl in the task's folder, objects with `messages`, or with a text as `question` or
`prompt`. The content of a user's message is a text, or a list of OpenAI's parts text and image_url, whose url is a data URL
or the path of a picture in the folder (environments/kit/pictures.py). All other fields are the scenario's `data`, which the
function sees and the model does not. The hash of its messages decides a scenario's split. A module that has a function
`scenarios(split, count, seed) -> list[dict]` makes them itself. It may also have `sources` and `openings_repeat`, which
mean what they mean in `Env`; then the hash of the sources decides.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, ClassVar, NoReturn

from environments.base import Component, Env, Message, Scenario, Split, read_text, split_of, unwritable
from environments.kit import pictures
from environments.kit.values import Result as Result

TEXTS = ("question", "prompt")  # fields of a line that stand for one message of the user
ROLES = ("system", "user", "assistant", "tool")


class AgentEnv(Env):
    """A module with a function `rollout`. It has scenarios; tools, players and a rule are the function's own affair."""

    is_agent = True
    is_written = True
    max_turns = 8  # what a plan assumes (addons/planning/__main__.py); no limit
    task: ClassVar[str]  # the task's name, as its scenarios have it
    rollout: ClassVar[Callable[[Any], Any]]  # the module's function
    maker: ClassVar[Callable[..., list[dict[str, Any]]] | None]  # its function `scenarios`

    @classmethod
    def load(cls, folder: Path) -> list[Scenario]:
        """The scenarios of the file, in its order, each in its split; none where the module makes them. ValueError with the
        number of a bad line."""
        if cls.maker is not None:
            return []
        path = folder / "scenarios.jsonl"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: write one JSON object per line, with `messages` or a `question`, or define "
                f"scenarios(split, count, seed) in {cls.__module__}"
            )
        lines = enumerate(read_text(path).split("\n"), 1)
        return cls._checked([(f"{path}, line {number}", line) for number, line in lines if line.strip()], None, folder)

    @classmethod
    def scenarios(cls, data: list[Scenario], split: Split, count: int, seed: int) -> list[Scenario]:
        if cls.maker is not None:
            where = f"scenarios({split!r}, {count}, {seed}) of {cls.__module__}"
            rows = cls.maker(split, count, seed)
            if not isinstance(rows, list) or len(rows) != count:
                given = f"{len(rows)} scenarios" if isinstance(rows, list) else type(rows).__name__
                raise ValueError(f"{where} must return a list of {count} objects, and returned {given}")
            return cls._checked([(f"{where}, scenario {place}", row) for place, row in enumerate(rows, 1)], split)
        made = [scenario for scenario in data if scenario.split == split]
        if count > len(made):
            raise ValueError(
                f"{count} scenarios were asked for, and {split} has {len(made)} of the {len(data)} in scenarios.jsonl "
                "(their hashes decide the split): ask for fewer, or write more lines"
            )
        return Random(f"{split} {seed}").sample(made, count)

    @classmethod
    def accept(cls, data: Any, split: Split | None, candidate: dict[str, Any]) -> Scenario:
        """As a line of the file: the messages, and the fields of the data beside them."""
        row = {"messages": candidate["messages"]} | candidate["data"]
        [scenario] = cls._checked([("the candidate", row)], None)
        if split not in (None, scenario.split):
            raise ValueError(f"it belongs to the split {scenario.split}")
        return scenario

    @classmethod
    def examples(cls, data: Any, count: int) -> list[Scenario]:
        """None where a file holds the scenarios, which is written anew with those that a model writes."""
        return [] if cls.maker is None else cls.scenarios(data, "train", count, 0)

    @classmethod
    def read_row(cls, row: Any, folder: Path | None = None) -> tuple[list[Message], dict[str, Any]]:
        """The messages and the data of a line, or of a row that the module made; pictures that are files lie in `folder`.
        ValueError for what is no scenario."""
        return read_row(row, folder)

    @classmethod
    def ready(cls) -> None:
        """Raise with a sentence where this machine lacks what the agent runs, before any episode is leased."""

    @classmethod
    def _checked(
        cls, rows: Sequence[tuple[str, Any]], split: Split | None, folder: Path | None = None
    ) -> list[Scenario]:
        """Scenarios of (where it is from, the row or its JSON); without a split, each gets that of its messages. Pictures
        that are files lie in `folder`."""
        places: dict[str, str] = {}
        made = []
        for where, row in rows:
            try:
                messages, data = cls.read_row(row, folder)
            except ValueError as problem:
                raise ValueError(f"{where}: {problem}") from None
            if lacking := [key for key in cls.sources if key not in data]:
                raise ValueError(f"{where}: it has no {lacking[0]}, which `sources` of {cls.__module__} names")
            source: Any = [data[key] for key in cls.sources] or pictures.apart(messages)[0]
            text = json.dumps(source, sort_keys=True, ensure_ascii=False)
            made.append(Scenario.make(cls.task, split or split_of(text), messages, data))
            if (name := made[-1].id) in places:
                raise ValueError(f"{where}: the same scenario as in {places[name]}; take one of the two out")
            places[name] = where
        return made

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        cls._refuse("its reward is what its function `rollout` returned, and not in a transcript")

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        cls._refuse("its success is what its function `rollout` returned, and not in a transcript")

    @classmethod
    def _refuse(cls, why: str) -> NoReturn:
        raise ValueError(f"{cls.task} is an agent of your own: {why}")


def read_row(row: Any, folder: Path | None = None) -> tuple[list[Message], dict[str, Any]]:
    """The messages and the data of an object, or of its JSON; pictures that are files lie in `folder`. ValueError for what
    is no scenario."""
    if isinstance(row, str):
        try:
            row = json.loads(row)
        except ValueError as problem:
            raise ValueError(f"it is not valid JSON ({problem})") from None
    if not isinstance(row, dict) or not all(isinstance(name, str) for name in row):
        raise ValueError("it must be an object")
    given = [name for name in ("messages", *TEXTS) if name in row]
    if len(given) != 1:
        has = "none" if not given else " and ".join(given)
        raise ValueError(f"it must have one of messages, question and prompt, and has {has}")
    messages = row[given[0]]
    if given[0] != "messages":
        messages = [{"role": "user", "content": messages}]
    if isinstance(messages, list):
        messages = [_read_parts(message, folder) for message in messages]
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise ValueError(
            f"{given[0]} must be a text that is not empty"
            if given[0] != "messages"
            else f"messages must be a list of objects with a role ({', '.join(ROLES)}) and a text as content; "
            "the user's may be a list of parts text and image_url"
        )
    data = {name: value for name, value in row.items() if name != given[0]}
    if unwritable([messages, data]):
        raise ValueError("it holds characters that are no text, numbers that are infinite, or over 50 levels")
    try:
        json.dumps(data)
    except TypeError as problem:  # of a row that the module's own function made
        raise ValueError(f"it cannot be written as JSON ({problem})") from None
    return messages, data


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return False
    return isinstance(message.get("content"), str) and bool(message["content"].strip() or message.get("pictures"))


def _read_parts(message: Any, folder: Path | None) -> Any:
    """A message whose content is a list of parts, with its pictures beside its text; what is no message as it is."""
    if isinstance(message, dict) and "pictures" in message:
        raise ValueError("pictures stand in a message's content, as parts image_url")
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    if message.get("role") != "user":
        raise ValueError("pictures and other parts stand in messages of the user; other contents must be texts")
    return message | pictures.read_content(message["content"], folder)


@functools.cache
def agent_env(module: ModuleType) -> type[Env]:
    """The class of a module that has a function `rollout` and no `Env`. ValueError where `rollout` cannot be called."""
    if not callable(module.rollout):
        raise ValueError(f"{module.__name__}: rollout must be a function of an episode, not {module.rollout!r:.60}")
    maker = getattr(module, "scenarios", None)
    fields = {
        "__module__": module.__name__,
        "__doc__": module.__doc__,
        "task": module.__name__.removeprefix("environments."),
        "rollout": staticmethod(module.rollout),
        "maker": staticmethod(maker) if callable(maker) else None,
        "sources": tuple(getattr(module, "sources", ())),
        "openings_repeat": bool(getattr(module, "openings_repeat", False)),
    }
    return type("Agent", (AgentEnv,), fields)
