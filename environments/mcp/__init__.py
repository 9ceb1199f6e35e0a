"""A task whose tools are those of an MCP server, as it comes: no code, no rule, and scenarios that a model writes.

In the task's data folder, server.yaml says how the server is started or reached, and what the agent's job is. tools.json
holds its tools as they were recorded, so that a server which has changed is noticed, and DVC knows that a run is stale.
scenarios.jsonl holds the scenarios. `make new-mcp` writes the folder, and a task of another name if asked. By hand:

    python -m environments.mcp.server tasks_data/mcp                                                     # writes tools.json
    python -m addons.supervised.generate --task mcp --out tasks_data/mcp/scenarios.jsonl --model NAME     # writes scenarios

An answer in plain words ends the episode. Judges score it (score.judges.ruler), by the rubric.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple, get_args

from pydantic import BaseModel

from environments.base import Component, Env, Message, Scenario, Split, TaskProblem, Tool, error, read_lines, unwritable
from environments.kit import waiting
from environments.mcp.server import Server, Servers
from environments.mcp.settings import TOOLS, ServerSettings, read_settings

SCENARIOS = "scenarios.jsonl"


class Data(NamedTuple):
    """What the episodes of a task share."""

    settings: ServerSettings
    tools: list[dict[str, Any]]  # in the OpenAI form, sorted by name
    scenarios: dict[Split, list[Scenario]] | None  # None: there is no file yet
    servers: Servers
    folder: Path


class Mcp(Env):
    """An episode with the server's tools."""

    overlap: ClassVar[int] = 8
    has_rule: ClassVar[bool] = False
    is_written: ClassVar[bool] = True
    max_turns: ClassVar[int] = 10  # server.yaml has its own
    folder: ClassVar[Path | None] = None  # from which the task was loaded

    data: Data

    def __init__(self, scenario: Scenario, data: Data) -> None:
        super().__init__(scenario, data)
        self.max_turns = data.settings.max_turns  # pyrefly: ignore[read-only]
        self.names = [tool["function"]["name"] for tool in data.tools]
        self.server: Server | None = None
        self.is_over = True
        data.servers.join()
        self.is_over = False

    @classmethod
    def task(cls) -> str:
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def name_in_params(cls) -> str:
        """The task as params.yaml names it, and with it the folder of its data: dotted for a module elsewhere."""
        return cls.__module__.removeprefix("environments.")

    @classmethod
    def load(cls, folder: Path) -> Data:
        cls.folder = folder
        settings, tools = read_settings(folder), read_tools(folder)
        data = Data(settings, tools, None, Servers(settings, folder, tools), folder)
        path = folder / SCENARIOS
        if not path.is_file():
            return data
        scenarios: dict[Split, list[Scenario]] = {split: [] for split in get_args(Split)}
        for number, line in enumerate(read_lines(path), 1):
            try:
                scenario = cls.accept(data, line["split"], line)
            except (LookupError, TypeError, AttributeError, ValueError) as problem:
                raise TaskProblem(
                    f"{path}, line {number}: {problem or type(problem).__name__}; generate it again"
                ) from None
            if scenario not in scenarios[scenario.split]:
                scenarios[scenario.split].append(scenario)
        return data._replace(scenarios=scenarios)

    @classmethod
    def tools(cls) -> dict[str, Tool]:
        """The recorded tools. The server checks the arguments of a call itself."""
        tools = read_tools(cls.folder or Path("tasks_data") / cls.name_in_params())
        return {tool["function"]["name"]: Tool(tool["function"]["name"], tool, BaseModel) for tool in tools}

    @classmethod
    def lag(cls) -> int:
        return cls.overlap

    @classmethod
    def describe(cls, data: Data) -> str:
        return data.settings.description.strip()

    @classmethod
    def examples(cls, data: Data, count: int) -> list[Scenario]:
        """Those of server.yaml, and not those that were written before: the same request is then answered once."""
        return [cls._scenario(data, "train", text, {}) for text in data.settings.examples[:count]]

    @classmethod
    def scenarios(cls, data: Data, split: Split, count: int, seed: int) -> list[Scenario]:
        command = ".venv/bin/python -m addons.supervised.generate"
        again = f"{command} --task {cls.name_in_params()} --out {data.folder / SCENARIOS}"
        if data.scenarios is None:
            raise ValueError(f"{data.folder / SCENARIOS} is missing: `{again} --model NAME` writes it")
        drawn_from = data.scenarios[split]
        if count > len(drawn_from):
            raise ValueError(
                f"{count} scenarios are asked for, and {data.folder / SCENARIOS} has {len(drawn_from)} of {split}: "
                f"ask for fewer, or have more written (`{again} --model NAME --count NUMBER`)"
            )
        return Random(f"{split} {seed}").sample(drawn_from, count)

    @classmethod
    def accept(cls, data: Data, split: Split | None, candidate: dict[str, Any]) -> Scenario:
        """The user's words alone are taken: the description of the job is the system message, and nothing is hidden."""
        asked = [message for message in candidate["messages"] if message["role"] == "user"]
        checked = super().accept(data, split, candidate | {"messages": asked})
        return cls._scenario(data, checked.split, asked[0]["content"], {})

    @classmethod
    def _scenario(cls, data: Data, split: Split, asked: str, hidden: dict[str, Any]) -> Scenario:
        job = {"role": "system", "content": data.settings.description.strip()}
        return Scenario.make(cls.task(), split, [job, {"role": "user", "content": asked}], hidden)

    def call(self, name: str, arguments: Any) -> str:
        """The server's answer to a call; it checks the arguments itself."""
        if name not in self.names:
            return error(f"there is no tool named {json.dumps(name)[:60]}; the tools are {', '.join(self.names)}")
        if not isinstance(arguments, dict) or unwritable(arguments):
            return error(f"the arguments of {name} must be an object that can be written as JSON")
        self.server = server = self.server or self.data.servers.take()
        seconds = self.limit.seconds if self.limit else None
        return waiting.run(server.call(name, arguments, seconds))

    def step(self, message: Message, problems: Sequence[str] = ()) -> list[Message]:
        """As in every task; the time in which the episode's server starts does not count as its tools'."""
        if message.get("tool_calls") and self.server is None:
            self.server = self.data.servers.take()
            with contextlib.suppress(TaskProblem):  # the call says so
                waiting.run(self.server.opened())
        return super().step(message, problems)

    def hear(self, text: str) -> list[Message]:
        """The agent's answer to its user; it ends the episode."""
        self.done = True
        return []

    def release(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.data.servers.leave(self.server)

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        """Nothing: there is no rule."""
        return []


def read_tools(folder: Path) -> list[dict[str, Any]]:
    """The recorded tools of a task, in the OpenAI form. TaskProblem says how to record them."""
    path, again = (
        folder / TOOLS,
        f"`.venv/bin/python -m environments.mcp.server {folder}` asks the server for its tools and writes it",
    )
    if not path.is_file():
        raise TaskProblem(f"{path} is missing: {again}")
    try:
        tools: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        if not all({"name", "description", "parameters"} <= tool["function"].keys() for tool in tools) or not tools:
            raise ValueError
    except (ValueError, TypeError, LookupError, AttributeError):
        raise TaskProblem(f"{path} is damaged: {again}") from None
    return tools
