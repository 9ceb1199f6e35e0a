"""Serves an environment of OpenEnv without its web server: the environment's class, its actions and its observations.

Runs in the package's interpreter (_package_process.py). A module NAME.server.app makes a web application by
`create_app(environment, action, observation)`. That function is replaced by one that only keeps its arguments, so the module
starts no server, and what else it asks of the application is ignored.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

Turn = dict[str, Any]  # {"content": text, "tool_calls": [{"name", "arguments"}]}
HIDDEN = ("done", "reward", "metadata")  # fields of an observation that are for training
MAKERS = ("create_app", "create_fastapi_app")
ACT = "act"


class Application:
    """In place of a web application: takes every decorator and setting, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **settings: lambda function: function


class Episode:
    """An environment after its reset."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.total = 0.0
        self.done = False
        self.text = ""


class Served:
    """The environment. Options are arguments of its reset; `scale` multiplies its rewards."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        """LookupError where there is none of this name."""
        self.module, self.options = name.replace("-", "_"), dict(options)
        self.scale = float(self.options.pop("scale", 1.0))
        app = f"{self.module}.server.app"
        if not has_module(app):
            raise LookupError(
                f"there is no module {app}: looked for in PYTHONPATH, in the packages of {sys.executable} and in "
                f"{Path.cwd()}"
            )
        made = self.made_by(app)
        self.make, self.action = made["env"], made["action_cls"]
        self.loop = asyncio.new_event_loop()
        env = self.make()
        try:
            self.tools = self.tools_of(env)
            self.rules = inspect.getdoc(type(env)) or f"This is {self.module} of OpenEnv."
        finally:
            close(env)

    def made_by(self, app: str) -> dict[str, Any]:
        """The arguments of `create_app` in a module."""
        made: list[dict[str, Any]] = []

        def keep(env: Any, action_cls: Any, observation_cls: Any, *arguments: Any, **settings: Any) -> Application:
            made.append({"env": env, "action_cls": action_cls})
            return Application()

        for name in ("openenv.core.env_server.http_server", "openenv.core.env_server", "openenv.core"):
            module = import_module(name)
            for maker in MAKERS:
                setattr(module, maker, keep)
        import_module(app)
        if not made:
            raise LookupError(f"{app} calls none of {', '.join(MAKERS)}")
        return made[-1]

    def tools_of(self, env: Any) -> list[dict[str, Any]]:
        """One tool whose parameters are the fields of an action; or those that the environment lists as an MCP server."""
        self.call_type: Any = None
        if self.action.__name__ == "CallToolAction":
            from openenv.core.env_server.mcp_types import ListToolsAction

            self.call_type = self.action
            listed = [tool.model_dump() for tool in self.answered(env, "step", ListToolsAction()).tools]
            return [
                {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}
                for tool in listed
            ]
        schema = self.action.model_json_schema()
        schema["properties"] = {key: value for key, value in schema["properties"].items() if key != "metadata"}
        schema["description"] = "an action"
        return [{"name": ACT, "description": "Take an action.", "parameters": schema}]

    def facts(self) -> dict[str, Any]:
        try:
            version = metadata.version("openenv-core")
        except metadata.PackageNotFoundError:
            version = "unknown"
        return {
            "versions": {"openenv-core": version},
            "tools": self.tools,
            "rules": " ".join(self.rules.partition("\n\n")[0].split()),
        }

    def answered(self, env: Any, name: str, *arguments: Any, **settings: Any) -> Any:
        """What `reset` or `step` gives, also where it is a coroutine. It gets those of the settings that it takes."""
        base = import_module("openenv.core.env_server.interfaces").Environment
        own = getattr(type(env), f"{name}_async", None)
        is_async = own is not None and own is not getattr(base, f"{name}_async", None)
        method = getattr(env, f"{name}_async" if is_async else name)
        parameters = inspect.signature(method).parameters
        takes_all = any(each.kind == each.VAR_KEYWORD for each in parameters.values())
        result = method(*arguments, **{key: each for key, each in settings.items() if takes_all or key in parameters})
        return self.loop.run_until_complete(result) if inspect.isawaitable(result) else result

    def opening(self, start: dict[str, Any]) -> str:
        """What an episode begins with."""
        episode = self.open(start)
        close(episode.env)
        return episode.text

    def open(self, start: dict[str, Any]) -> Episode:
        episode = Episode(self.make())
        observation = self.answered(episode.env, "reset", seed=start["seed"], **self.options)
        episode.text, episode.done = shown(observation), bool(observation.done)
        return episode

    def step(self, episode: Episode, turn: Turn) -> dict[str, Any]:
        """{"answers", "done"}, or {"refused"} where the environment's actions have no such values."""
        answers, refused = [], ""
        for call in turn["tool_calls"]:
            if episode.done:
                break
            try:
                action = self.action_of(call)
            except ValueError as problem:  # pydantic's
                refused = refused or f"this is no action: {wrong(problem)}"
                answers.append({"role": "tool", "name": call["name"], "content": f"Error: {refused}."})
                continue
            observation = self.answered(episode.env, "step", action)
            episode.total += float(observation.reward or 0.0)
            episode.done, episode.text = bool(observation.done), shown(observation)
            answers.append({"role": "tool", "name": call["name"], "content": episode.text})
        if refused and all(each["content"].startswith("Error: this is no action") for each in answers):
            return {"refused": refused}
        return {"answers": answers, "done": episode.done}

    def action_of(self, call: dict[str, Any]) -> Any:
        if self.call_type is not None:
            return self.call_type(tool_name=call["name"], arguments=call["arguments"])
        return self.action.model_validate(call["arguments"])

    def score(self, start: dict[str, Any], turns: list[Turn]) -> dict[str, Any]:
        """The sum of the rewards of these turns."""
        episode = self.open(start)
        try:
            for turn in turns:
                self.step(episode, turn)
        finally:
            close(episode.env)
        total = episode.total * self.scale
        parts = [("score", min(1.0, max(-1.0, total)))]
        return {"score": total, "parts": parts, "done": episode.done, "text": episode.text}

    def drop(self, episode: Episode) -> None:
        close(episode.env)


def close(env: Any) -> None:
    if hasattr(env, "close"):
        env.close()


def shown(observation: Any) -> str:
    """The fields of an observation as text: the text alone where there is a single field, otherwise a line per field."""
    fields = {key: each for key, each in observation.model_dump().items() if key not in HIDDEN and each is not None}
    texts = {
        key: each if isinstance(each, str) else json.dumps(each, ensure_ascii=False, default=str)
        for key, each in fields.items()
    }
    if len(texts) == 1:
        return next(iter(texts.values())) or "Nothing is shown."
    return "\n".join(f"{key}: {text}" for key, text in texts.items()) or "Nothing is shown."


def wrong(problem: ValueError) -> str:
    """The first problems that pydantic reports, in one line."""
    if not hasattr(problem, "errors"):
        return str(problem)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in problem.errors()[:3])


def has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
