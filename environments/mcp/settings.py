"""The settings of a task whose tools are those of an MCP server: server.yaml in its data folder."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from environments.base import TaskProblem

CALLABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")  # names of tools that models can call
TOOLS = "tools.json"  # the server's tools as they were recorded


class ServerSettings(BaseModel):
    """How a server is reached, and what the agent is to do with its tools."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = Field(min_length=1)
    """The agent's job in words: the system message of each scenario, and what a model is told that writes scenarios."""
    command: str | None = Field(None, min_length=1)
    """A program that speaks MCP on its standard input and output. `python` is the interpreter of this project."""
    args: tuple[str, ...] = ()
    """Its arguments. {data} is the task's data folder, {work} the folder in which the server runs."""
    env: dict[str, str] = {}
    """Its environment variables beside HOME, PATH and the like, with the same placeholders. For keys: `pass_env`."""
    pass_env: tuple[str, ...] = ()
    """Names of variables, such as keys, whose values it gets from the process that runs the stage."""
    url: str | None = Field(None, pattern=r"^https?://")
    """In place of `command`: the address of a server that runs already (streamable HTTP)."""
    key_env: str | None = None
    """The variable that holds the key for `url`, which is sent as a bearer token."""
    max_turns: int = Field(10, ge=1)
    """Most turns of an episode."""
    fresh: bool = True
    """Whether each episode has a server of its own, which runs in a copy of the data folder's `work/`. false: episodes share
    one, or, with `reset`, have one after another."""
    reset: str | None = None
    """A tool without arguments that makes a server as new, so that it can be handed on to the next episode. The agent
    does not see it."""
    include: tuple[str, ...] = ()
    """Names of the tools that the agent sees, as the server names them. Empty: all."""
    exclude: tuple[str, ...] = ()
    """Names of tools that it does not see."""
    examples: tuple[str, ...] = ()
    """Tasks in a user's words, which a model is shown that writes more of them."""

    @model_validator(mode="after")
    def check(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command or url")
        if self.url and (self.args or self.env or self.pass_env):
            raise ValueError("args, env and pass_env belong to a command, not to a url")
        if self.key_env and self.command:
            raise ValueError("key_env belongs to a url; a command gets its keys by pass_env")
        if self.reset and self.fresh:
            raise ValueError("reset belongs to fresh: false; a fresh server needs none")
        return self

    @property
    def name(self) -> str:
        """For messages."""
        return self.url or " ".join([str(self.command), *self.args])

    @property
    def is_shared(self) -> bool:
        """Whether several episodes use the same server at the same time."""
        return not self.fresh and self.reset is None

    def started(self, folder: Path, work: Path) -> tuple[str, list[str], dict[str, str]]:
        """(program, arguments, further environment variables) of a server that runs in the folder `work`."""

        def filled(text: str) -> str:
            return text.replace("{data}", str(folder.absolute())).replace("{work}", str(work))

        passed = {name: variable(name) for name in self.pass_env}
        program = sys.executable if self.command == "python" else filled(str(self.command))
        return program, [*map(filled, self.args)], {name: filled(text) for name, text in self.env.items()} | passed


def variable(name: str) -> str:
    """A variable's value. TaskProblem where it is not set: without its key a server would answer errors alone."""
    if name not in os.environ:
        raise TaskProblem(
            f"server.yaml names the variable {name}, which is not set; without a need for it, set it to nothing"
        )
    return os.environ[name]


def read_settings(folder: Path) -> ServerSettings:
    """The settings in a task's data folder. TaskProblem with what is missing or wrong."""
    path = folder / "server.yaml"
    if not path.is_file():
        raise TaskProblem(f"{path} is missing: it says how the MCP server is started; `make new-mcp` writes one")
    try:
        return ServerSettings.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except UnicodeDecodeError as problem:
        raise TaskProblem(f"{path} is no text in UTF-8 ({problem})") from None
    except (yaml.YAMLError, RecursionError) as problem:
        raise TaskProblem(f"{path} is no YAML: {' '.join(str(problem).split())}") from None
    except ValidationError as problem:
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in problem.errors(include_url=False)
        ]
        raise TaskProblem(f"{path}: {'; '.join(faults)}") from None


def shown_names(names: list[str]) -> dict[str, str]:
    """By which name an agent sees each tool: its own, or where models cannot call that, with _ for what is no letter, digit,
    _ or -, and at most 64 of them. Where another tool has that name, a number follows."""
    shown: dict[str, str] = {name: name for name in names if CALLABLE.fullmatch(name)}
    for name in names:
        if name not in shown:
            plain, number = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60] or "tool", 1
            while (made := plain if number == 1 else f"{plain}_{number}") in shown.values():
                number += 1
            shown[name] = made
    return shown
