"""Plays episodes of harnesses by a real gateway on a loopback port, whose engine answers by a script.

    episodes = await play("harness:codex", rows, script, concurrency=2)

The programs are the real ones on PATH, and their rollout function is the product's. `script(request)` gives the assistant's
message of each call; its tokens are those of the policy's own template.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

import environments
from addons.agents.episode import Episode
from addons.agents.gateway.batch import Batch
from addons.agents.gateway.plan import Chats
from addons.agents.gateway.server import Server
from addons.agents.gateway.types import Request
from addons.agents.section import Agents
from environments import Result
from environments.base import Message, Scenario
from steps.core.params import Policy
from steps.core.records import Trajectory
from steps.sampling.turns import Sampled
from tests.conftest import free_port
from tests.support.plans import plan

Script = Callable[[Request], Message]
WORK = re.compile(
    r"/[^\s\"'<>]*/harness-\d+/[\w-]+/(?=work\b)"
)  # the folder of an episode, as harnesses tell it the model

PARTS = ("001", "sampled", "012", "val", "004", "test")  # of a run, as the stages name their episodes by them


class Played(NamedTuple):
    """An episode of a harness, and what was recorded of it."""

    result: Result
    trajectory: Trajectory
    sampled: int  # tokens
    seconds: float
    ignored: tuple[str, ...]  # fields that the gateway names as not honoured
    requests: tuple[Request, ...]

    @property
    def forks(self) -> list[str]:
        """Causes of the calls that begin a row, but the first."""
        return [turn.fork for turn in self.trajectory.turns if turn.fork not in ("", "json_rewritten")]


class ScriptedEngine:
    """Samples what the script says, by the ids of the policy's template."""

    def __init__(self, chats: Chats, script: Script) -> None:
        self.chats, self.script = chats, script
        self.batch: Batch | None = None
        self.requests: dict[str, list[Request]] = {}
        self.sampled: dict[str, int] = {}

    def send(self, message: dict[str, Any]) -> None:
        if "sample" in message:
            asyncio.get_running_loop().call_soon(self.sample, message["sample"])

    def sample(self, samples: list[dict[str, Any]]) -> None:
        assert self.batch is not None
        results = []
        for each in samples:
            call, _ = self.batch.asked[each["key"]]
            self.requests.setdefault(call.execution.episode, []).append(call.request)
            chat = self.chats.of(call.request.tools)
            ids = list(chat.completion_ids(self.script(call.request)))[: each["limits"]["max_tokens"]]
            self.sampled[call.execution.episode] = self.sampled.get(call.execution.episode, 0) + len(ids)
            reason = "stop" if ids[-1] == chat.end else "length"
            results.append(Sampled(each["key"], tuple(ids), (-0.5,) * len(ids), reason)._asdict())
        self.batch.sampled(results)


class Refusals:
    """ASGI middleware that keeps the refused requests."""

    def __init__(self, app: Any) -> None:
        self.app, self.refused = app, list[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status = 0

        async def sending(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            if status >= 400 and message.get("body"):
                self.refused.append(f"{status} {scope['method']} {scope['path']}: {message['body'].decode()[:500]}")
            elif status >= 400 and message["type"] == "http.response.body" and not message.get("body"):
                self.refused.append(f"{status} {scope['method']} {scope['path']}")
            await send(message)

        await self.app(scope, receive, sending)


async def play(
    task: str, rows: Sequence[dict[str, Any]], script: Script, folder: Path, concurrency: int = 2
) -> tuple[list[Played], list[str]]:
    """The episodes of these rows of a scenarios.jsonl, one each, and what the gateway refused. AssertionError where what is
    recorded is not what was sampled."""
    env: Any = environments.load(task)
    file = folder / "scenarios.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scenarios: list[Scenario] = env.load(folder)
    names = [f"{PARTS[place % len(PARTS)]}-{scenario.id}-{place % 8}" for place, scenario in enumerate(scenarios)]
    entries = [
        {"episode": name, "scenario": scenario.model_dump(mode="json"), "attempt": 0}
        for name, scenario in zip(names, scenarios, strict=True)
    ]
    policy = Policy(context=200_000)
    chats, server = Chats(policy), Server("the gateway's key", [])
    engine = ScriptedEngine(chats, script)
    agents = Agents(concurrency=len(names), heartbeat_seconds=3600)
    made = {"task": task, "policy": policy.model_dump(mode="json"), "max_tokens": 1024}
    planned = plan(folder / "journal.sqlite", entries, agents, **made)
    batch = engine.batch = server.batch = Batch(planned, chats, engine.send)
    counted, port = Refusals(server.app), free_port()
    running = uvicorn.Server(uvicorn.Config(counted, host="127.0.0.1", port=port, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.01)
    client = batch.register("", {"name": "test", "capacity": len(names), "task": task})["client"]
    leases = {lease["episode"]: lease for lease in batch.lease(client, {"free": len(names)})}
    room, played = asyncio.Semaphore(concurrency), dict[str, Played]()

    async def episode(name: str, scenario: Scenario) -> None:
        async with room:
            start, key = time.monotonic(), leases[name]["api_key"]
            base = f"http://127.0.0.1:{port}/episodes/{name}/v1"
            result = await env.rollout(Episode(name, scenario, 0, 1, base, key, 120.0))
            ended = {"episode": name, "lease": leases[name]["lease"], "api_key": key, "result": result.model_dump()}
            ignored = tuple(batch.ignored)
            batch.report(client, ended)
            trajectory = Trajectory.model_validate(dict(batch.journal.trajectories())[name])
            masked = sum(sum(row.mask) for row in trajectory.flatten())
            assert masked == engine.sampled.get(name, 0), f"{name}: {masked} tokens bear loss"
            seconds, requests = time.monotonic() - start, tuple(engine.requests.get(name, ()))
            played[name] = Played(result, trajectory, masked, seconds, ignored, requests)

    try:
        await asyncio.gather(*(episode(name, scenario) for name, scenario in zip(names, scenarios, strict=True)))
    finally:
        running.should_exit = True
        await serving
    return [played[name] for name in names], counted.refused


# --- A session in the tools of each harness

BROKEN = "def add(a, b):\n    return a - b\n"  # sums.py, which the session mends
SHELLS = {"Bash": "command", "run_shell_command": "command", "exec_command": "cmd", "bash": "command"}
READERS = {"Read": "file_path", "read_file": "file_path", "read": "filePath"}
EDITORS = {
    "Edit": ("file_path", "old_string", "new_string"),
    "edit": ("filePath", "oldString", "newString"),
    "qwen": ("file_path", "old_string", "new_string"),
}
ENDING = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # of mini-swe-agent, which ends by a command


def mending(request: Request) -> Message:
    """Reads sums.py, edits it, calls two tools at once, makes a call that fails, and says that it is done, with words before
    some of the calls. What else is asked, such as a title, is answered in words."""
    names = {tool["function"]["name"] for tool in request.tools}
    asked = max(place for place, message in enumerate(request.messages) if message["role"] == "user")
    step = sum(message["role"] == "assistant" for message in request.messages[asked:])
    if not names:
        return calling("Mending add")
    shell = next(name for name in SHELLS if name in names)
    reader = next((name for name in READERS if name in names), None)
    path = f"{work(request)}/sums.py"

    def run(command: str) -> tuple[str, dict[str, Any]]:
        return shell, {SHELLS[shell]: command}

    def read(name: str) -> tuple[str, dict[str, Any]]:
        return (reader, {READERS[reader]: name}) if reader else run(f"cat {name}")

    editor = next((name for name in ("Edit", "edit") if name in names), None)
    change = run("sed -i 's/a - b/a + b/' sums.py")
    if editor:
        fields = EDITORS["qwen" if "write_file" in names else editor]
        change = editor, dict(zip(fields, (path, "a - b", "a + b"), strict=True))
    steps = [
        calling("I look at it first.", read(path)),
        calling("", change),
        calling("Now I try it, and look again.", run("python3 -c 'import sums; print(sums.add(2, 3))'"), read(path)),
        calling("", read(f"{work(request)}/none.py")),
        calling("", run(ENDING)) if names == {"bash"} else calling("I have mended add: it subtracted."),
    ]
    return steps[min(step, len(steps) - 1)]


def calling(words: str, *calls: tuple[str, dict[str, Any]]) -> Message:
    made = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {"role": "assistant", "content": words} | ({"tool_calls": made} if made else {})


def work(request: Request) -> str:
    """The folder that the harness says it works in."""
    texts = (str(message["content"]) for message in request.messages)
    return next((f"{match[0]}work" for text in texts if (match := WORK.search(text))), ".")
