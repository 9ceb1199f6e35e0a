"""Serves an environment of verifiers: the package's own rollout, whose model is this side of a pipe.

Runs in the package's interpreter (_package_process.py). The rollout is a task of an event loop. It asks a
client of ours for the model's turn, and waits there until `step` brings one. A transcript that ends too early is scored as
the package scores a prompt that has become too long.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

Turn = dict[str, Any]  # {"content": text, "tool_calls": [{"name", "arguments"}]}


class Raised(Exception):
    """What the environment did that cannot be gone on from."""


class Rollout:
    """A rollout that waits for the model, or is over."""

    def __init__(self, env: Any, row: dict[str, Any]) -> None:
        self.asked: asyncio.Queue[list[Any]] = asyncio.Queue()
        self.given: asyncio.Queue[Turn | None] = asyncio.Queue()
        self.shown: list[dict[str, Any]] = []  # the messages that the model has seen or written
        self.turns = 0
        self.task = asyncio.ensure_future(env.rollout(row, client_of(self), "policy", {}))

    async def next(self) -> list[dict[str, Any]]:
        """The messages that are new since the model's last turn. Raised, or what the environment raised."""
        asking = asyncio.ensure_future(self.asked.get())
        await asyncio.wait({asking, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            messages = [plain(message) for message in asking.result()]
        else:
            asking.cancel()
            state = self.task.result()
            if state.get("error") is not None:
                raise Raised(f"{type(state['error']).__name__}: {state['error'].__cause__ or state['error']}")
            messages = [plain(message) for message in [*state["prompt"], *state["completion"]]]
        old, new = messages[: len(self.shown)], messages[len(self.shown) :]
        if [each for each in old if each["role"] != "assistant"] != [
            each for each in self.shown if each["role"] != "assistant"
        ]:
            raise Raised("the environment rewrites messages that the model has seen, which cannot be shown here")
        if any(each["role"] == "assistant" for each in new[:] if self.turns):
            raise Raised("the environment writes messages in the model's name, which cannot be shown here")
        self.shown = messages
        return new

    async def take(self, turn: Turn) -> list[dict[str, Any]]:
        """The messages that answer the model's turn."""
        self.turns += 1
        self.shown.append({"role": "assistant", "content": turn["content"]})
        names = [call["name"] for call in turn["tool_calls"]]
        self.given.put_nowait(turn)
        answers = await self.next()
        for answer in answers:
            if answer["role"] == "tool":
                answer["name"] = names.pop(0) if names else ""
        return answers

    async def cut(self) -> Any:
        """The state of the rollout if the model has no further turn."""
        if not self.task.done():
            self.given.put_nowait(None)
        return await self.task


def client_of(rollout: Rollout) -> Any:
    """A client that gives the rollout's turns."""
    import verifiers as vf
    from verifiers.clients.client import Client
    from verifiers.types import Response, ResponseMessage, ToolCall

    async def get_response(
        self: Any, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **settings: Any
    ) -> Any:
        rollout.asked.put_nowait(list(prompt))
        turn = await rollout.given.get()
        if turn is None:
            raise vf.OverlongPromptError
        calls = [
            ToolCall(id=f"call_{rollout.turns}_{place}", name=call["name"], arguments=json.dumps(call["arguments"]))
            for place, call in enumerate(turn["tool_calls"])
        ]
        message = ResponseMessage(
            role="assistant",
            content=turn["content"],
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return Response(id=f"turn_{rollout.turns}", created=0, model=model, message=message)

    def unused(self: Any, *arguments: Any, **settings: Any) -> None:
        raise NotImplementedError(
            "the package asks its client for more than turns, which come from outside: it cannot be played"
        )

    methods = dict.fromkeys(Client.__abstractmethods__, unused) | {"get_response": get_response}
    return type("Turns", (Client,), methods)(None)


def plain(message: Any) -> dict[str, Any]:
    """A message of the package as role and text. A text without a role is the user's. Raised for pictures and sounds."""
    get = message.get if hasattr(message, "get") else lambda key: getattr(message, key, None)
    content = get("content")
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
        if any(part.get("type") != "text" for part in parts):
            raise Raised("the environment shows what is no text, such as pictures")
        content = "\n".join(str(part.get("text")) for part in parts)
    role = "user" if get("role") == "text" else get("role")
    return {"role": role, "content": str(content or "")}


class Served:
    """The environment."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        """LookupError where there is none of this name."""
        self.module = name.replace("-", "_").split("/")[-1]
        if importlib.util.find_spec(self.module) is None:
            raise LookupError(
                f"there is no module {self.module}: looked for in PYTHONPATH, in the packages of {sys.executable} and in "
                f"{Path.cwd()}"
            )
        import verifiers as vf

        self.version = str(getattr(vf, "__version__", "unknown"))
        try:
            kinds = vf.MultiTurnEnv
        except AttributeError:
            raise LookupError(f"verifiers {self.version} has no MultiTurnEnv; install verifiers 0.3.1") from None
        self.env = vf.load_environment(name, **options)
        if not isinstance(self.env, kinds):
            raise LookupError(f"{self.module} gives a {type(self.env).__name__}, and only a MultiTurnEnv can be played")
        if self.env.rubric.has_group_rewards:
            raise LookupError(f"{self.module} scores attempts by comparing them, which cannot be done here")
        if getattr(self.env, "timeout_seconds", None):
            self.env.timeout_seconds = None  # it would count the time in which the model thinks
        self.sets = {"train": self.env.build_dataset(), "eval": self.env.build_eval_dataset()}
        self.loop = asyncio.new_event_loop()

    def facts(self) -> dict[str, Any]:
        rubric = self.env.rubric
        weights = dict(zip(rubric._get_reward_func_names(), rubric._get_reward_weights(), strict=False))
        return {
            "versions": {"verifiers": self.version},
            "tools": [
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in self.env.tool_defs or ()
            ],
            "max_turns": self.env.max_turns,
            "best": sum(weight for weight in weights.values() if weight > 0),
        }

    def rows(self) -> list[tuple[str, int, str]]:
        """(data set, place, hash of the question) of each row, in a fixed order."""
        rows = []
        for name, dataset in self.sets.items():
            for place, row in enumerate(dataset if dataset is not None else ()):
                text = json.dumps(prompt_of(row), sort_keys=True)
                rows.append((name, place, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]))
        return rows

    def row(self, start: dict[str, Any]) -> dict[str, Any]:
        """The messages that a row begins with, and its answer."""
        row = self.row_of(start)
        answer = row.get("answer")
        return {"messages": prompt_of(row), "answer": str("" if answer is None else answer)}

    def row_of(self, start: dict[str, Any]) -> dict[str, Any]:
        return dict(self.sets[start["set"]][start["row"]])

    def open(self, start: dict[str, Any]) -> Rollout:
        return self.loop.run_until_complete(self.opened(start))

    async def opened(self, start: dict[str, Any]) -> Rollout:
        row = self.row_of(start)
        rollout = Rollout(self.env, row)
        if await rollout.next() != prompt_of(row):
            raise Raised("the environment begins with other messages than its data set has, which cannot be shown here")
        return rollout

    def step(self, episode: Rollout, turn: Turn) -> dict[str, Any]:
        answers = self.loop.run_until_complete(episode.take(turn))
        return {"answers": answers, "done": episode.task.done()}

    def score(self, start: dict[str, Any], turns: list[Turn]) -> dict[str, Any]:
        """What the rubric gives for these turns: {"score", "parts": [[name, value times weight]]}."""
        return self.loop.run_until_complete(self.scored(start, turns))

    async def scored(self, start: dict[str, Any], turns: list[Turn]) -> dict[str, Any]:
        rollout = await self.opened(start)
        for turn in turns:
            if rollout.task.done():
                break
            await rollout.take(turn)
        state = await rollout.cut()
        rubric = self.env.rubric
        await rubric.score_rollout(state)
        values = state.get("metrics") or {}
        weights = zip(rubric._get_reward_func_names(), rubric._get_reward_weights(), strict=False)
        parts = [(name, float(values.get(name) or 0) * weight) for name, weight in weights if weight]
        total = float(state["reward"])
        names = [name for name, _ in parts]
        if len({*names}) < len(names) or not math.isclose(sum(value for _, value in parts), total, abs_tol=1e-6):
            parts = [("reward", total)]
        return {"score": total, "parts": parts}

    def drop(self, episode: Rollout) -> None:
        """End a rollout that nobody plays on."""
        episode.task.cancel()
        self.loop.run_until_complete(asyncio.wait({episode.task}))


def prompt_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages that a row begins with; a text is what the user says."""
    prompt = row["prompt"]
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [plain(message) for message in prompt]
