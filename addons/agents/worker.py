"""A process that runs rollout functions, many at a time, for addons/agents/client.py.

    python -m addons.agents.worker TASK [--own-loops]

JSON lines come in: {"play": {episode}} and {"cancel": key}. JSON lines go out: {"ready": true} or {"broken": text} once,
then {"ended": key, "result", "error", "left_behind"} for each episode, and {"blocked": place} where a function keeps the
event loop from running the others. What the functions print goes to stderr, with the episode's name before each line.

Functions that are `async def` share one event loop, as in any asyncio program; with --own-loops each has a thread and a loop
of its own, for functions that block theirs. Plain functions have a thread each. Nothing can stop a thread: a function that
goes on after its time limit is left behind, and the client replaces the process. When stdin closes, the client is gone: then
the whole process group ends, with whatever the functions started.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import io
import json
import numbers
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable
from typing import IO, Any, TextIO

from addons.agents.episode import Episode
from environments.base import Scenario, unwritable
from environments.kit.values import Result, number
from steps.core.errors import masked
from steps.core.terminal import command_parser

STOP_SECONDS = 3.0  # that a cancelled function has to end
BLOCKED_SECONDS = 20.0  # that a function may keep the event loop from the others; importing packages takes less
LONGEST_ERROR = 2000  # characters

playing = contextvars.ContextVar[Episode | None]("playing", default=None)


class Log(io.TextIOBase):
    """Stands for stdout and stderr: whole lines, with the episode's name before them, and without secrets."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.lock = file, threading.Lock()
        self.begun: dict[str, str] = {}  # by episode: a line without an end

    def write(self, text: str) -> int:
        episode = playing.get()
        name = episode.id if episode else ""
        with self.lock:
            *lines, rest = (self.begun.pop(name, "") + text).split("\n")
            if rest:
                self.begun[name] = rest
            for line in lines:
                self.file.write(f"{name}: {clean(line, episode)}\n" if name else f"{clean(line, episode)}\n")
        return len(text)

    def flush(self) -> None:
        self.file.flush()

    def fileno(self) -> int:
        return self.file.fileno()


def clean(text: str, episode: Episode | None) -> str:
    """A text without secrets, the episode's key among them."""
    return masked(text.replace(episode.api_key, "[masked]") if episode else text)


def explain(error: BaseException, episode: Episode) -> str:
    """What failed an episode, in one line; its traceback goes to the log."""
    traceback.print_exception(error)
    text = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()  # it may hold half a letter
    return clean(" ".join(text.split()).removesuffix(": "), episode)[:LONGEST_ERROR]


def as_result(value: Any) -> Result:
    """What a rollout function returned. TypeError or ValueError for what it may not return."""
    if value is None:
        return Result()
    if isinstance(value, numbers.Real) or getattr(value, "shape", None) == ():  # of numpy and torch, too
        return Result(reward=number(value, "reward"))
    if not isinstance(value, Result):
        raise TypeError(f"rollout returned {type(value).__name__}; it must return a number, a Result or None")
    if unwritable(value.model_dump()):
        raise ValueError("rollout returned a Result with characters that are no text, such as NUL")
    return value


class Running:
    """An episode under way."""

    def __init__(self, key: str, episode: Episode) -> None:
        self.key, self.episode = key, episode
        self.deadline = time.monotonic() + episode.seconds
        self.task: asyncio.Task[Any] | None = None  # of an `async def`; the event loop alone would forget it

    @property
    def too_long(self) -> str:
        return f"TimeoutError: it took longer than the {self.episode.seconds:g} seconds of agents.episode_seconds"

    def cancel(self) -> None:
        """Cancel an `async def`, from any thread. A plain function cannot be stopped."""
        if self.task is not None:
            with contextlib.suppress(RuntimeError):  # its loop has just ended
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)


class Worker:
    """The episodes of this process."""

    def __init__(self, function: Any, own_loops: bool, messages: IO[bytes]) -> None:
        self.function, self.messages = function, messages
        call = getattr(function, "__call__", None)  # noqa: B004 - of an object whose class has an asynchronous one
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        self.in_threads = own_loops or not self.is_async
        self.running: dict[str, Running] = {}
        self.lock, self.writing = threading.Lock(), threading.Lock()
        self.loop = asyncio.new_event_loop()
        self.ticked = time.monotonic()

    def send(self, message: dict[str, Any]) -> None:
        with self.writing:
            self.messages.write(json.dumps(message).encode() + b"\n")
            self.messages.flush()

    def end(self, key: str, result: Result | None, error: str | None, left_behind: bool = False) -> None:
        """Say what an episode came to, the first time only: a function that was left behind may end later."""
        with self.lock:
            if self.running.pop(key, None) is not None:
                shown = result.model_dump(mode="json") if result is not None else None
                self.send({"ended": key, "result": shown, "error": error, "left_behind": left_behind})

    # --- Requests

    def listen(self, requests: IO[bytes]) -> None:
        """Take requests until the client has gone; then end."""
        for line in requests:
            request = json.loads(line)
            if "cancel" in request:
                if (running := self.running.get(request["cancel"])) is not None:
                    running.cancel()
                continue
            fields = request["play"]
            key = fields.pop("key")
            scenario = Scenario.model_validate(fields.pop("scenario"))
            running = self.running[key] = Running(key, Episode(scenario=scenario, **fields))
            if self.in_threads:
                threading.Thread(target=self.play_in_thread, args=(running,), daemon=True).start()
            else:
                asyncio.run_coroutine_threadsafe(self.play(running), self.loop)
        os._exit(1)  # what was started here ends with this process (environments/kit/keeper.py)

    def play_in_thread(self, running: Running) -> None:
        if self.is_async:
            asyncio.run(self.play(running))
            return
        playing.set(running.episode)
        try:
            value = self.function(running.episode)
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
            self.end(running.key, as_result(value), None)
        except BaseException as error:  # SystemExit as well: an agent's script may end so
            self.end(running.key, None, explain(error, running.episode))

    async def play(self, running: Running) -> None:
        """Run an `async def` and cancel it at its time limit. If it does not end then, `watch` says so."""
        playing.set(running.episode)
        running.task = asyncio.current_task()
        limit = asyncio.timeout(running.episode.seconds)
        try:
            async with limit:
                result = as_result(await self.function(running.episode))
            self.end(running.key, result, None)
        except BaseException as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            self.end(running.key, None, running.too_long if late else explain(error, running.episode))

    # --- A thread that sees to time

    def watch(self) -> None:
        """Leave functions behind that go on after their time, and say where the event loop is blocked."""
        is_told = False
        while True:
            time.sleep(0.2)
            now = time.monotonic()
            for running in list(self.running.values()):
                patience = STOP_SECONDS if self.is_async else 0.0
                if now > running.deadline + patience:
                    self.end(running.key, None, running.too_long, left_behind=True)
            self.loop.call_soon_threadsafe(self._tick)
            if now - self.ticked > BLOCKED_SECONDS and len(self.running) > 1 and not (self.in_threads or is_told):
                is_told = True
                self.send({"blocked": self._place()})

    def _tick(self) -> None:
        self.ticked = time.monotonic()

    def _place(self) -> str:
        """Where the main thread is: the innermost line of the rollout function's own file, or of any."""
        ident = threading.main_thread().ident
        stack = traceback.extract_stack(sys._current_frames()[ident]) if ident is not None else []
        own = [frame for frame in stack if frame.filename == getattr(self.function, "__globals__", {}).get("__file__")]
        frame = (own or stack)[-1]
        return f"{frame.filename}, line {frame.lineno} ({frame.line})"


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def main() -> int:
    parser = command_parser("addons.agents.worker", __doc__)
    parser.add_argument("task", help="the agent's module, as in params.yaml")
    parser.add_argument("--own-loops", action="store_true", help="a thread and an event loop for each episode")
    options = parser.parse_args()
    requests, messages = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the functions and their processes neither read requests …
    os.dup2(2, 1)  # … nor write messages
    log: Any = Log(os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace"))
    sys.stdout = sys.stderr = log
    try:
        import environments

        env: Any = environments.load(options.task)
        if not env.is_agent:
            raise ValueError(f"{options.task} has no function `rollout`: it is an environment, which needs no client")
        env.ready()
    except BaseException as error:
        traceback.print_exception(error)
        text = masked(f"{options.task} cannot be loaded: {type(error).__name__}: {error}")
        messages.write(json.dumps({"broken": text}).encode() + b"\n")
        messages.flush()
        return 2
    worker = Worker(env.rollout, options.own_loops, messages)
    for target, words in ((worker.listen, (requests,)), (worker.watch, ())):
        threading.Thread(target=target, args=words, daemon=True).start()
    worker.send({"ready": True})
    asyncio.set_event_loop(worker.loop)
    worker.loop.run_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
