"""Processes for packages whose dependencies clash with this project's: one process per environment, with the package's own
interpreter, spoken to by lines of JSON over pipes (the other side: environments/_package_process.py).

    child = child_of("verifiers", "sums_env", {})
    child.ask("rows")

A process is started when it is first needed and serves all episodes of this one. It leads a process group, which ends with
this process, however that ends, and when it does not answer in time. An episode whose process is gone is opened in the
next and its turns are taken again. Left out: episodes beside each other in several processes; they wait for each other.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from environments._sandbox import printable
from environments.base import TaskProblem

START_SECONDS = 600.0  # until an environment has to be ready; it may load a data set
SECONDS = 30.0  # until a request has to be answered
PINS = {"verifiers": "verifiers==0.3.1", "openenv": "openenv-core==0.3.0"}
PROCESS = Path(__file__).with_name("_package_process.py")
LAST_WORDS = 300  # characters


class Stopped(TaskProblem):
    """The process hung, ended or raised an error: what happened, in words without a full stop."""


class Child:
    """A process that serves one environment."""

    def __init__(self, package: str, name: str, options: dict[str, Any]) -> None:
        """TaskProblem where it does not start."""
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)
        self.dropped: deque[int] = deque()  # episodes that are over, of which the process learns with the next request
        self.process = subprocess.Popen(
            [interpreter(package), str(PROCESS), package, name, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
            start_new_session=True,
        )
        self.heard = b""
        self.words = ""
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        try:
            self.facts: dict[str, Any] = self._answer(START_SECONDS)
        except Stopped as problem:
            self.end()
            raise TaskProblem(f"{package}:{name}: {problem}") from None

    def ask(self, do: str, seconds: float = SECONDS, **given: Any) -> Any:
        """What the method `do` of the other side returns. Stopped where it does not; after `seconds` the process
        is ended."""
        with self.lock:
            dropped = [self.dropped.popleft() for _ in range(len(self.dropped))]
            line = json.dumps({"do": do, "with": given, "dropped": dropped}) + "\n"
            assert self.process.stdin is not None
            with contextlib.suppress(OSError):  # of a process that has ended: the answer says so
                self.process.stdin.write(line.encode())
                self.process.stdin.flush()
            return self._answer(seconds)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Kill the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.listener.join(2.0)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _answer(self, seconds: float) -> Any:
        assert self.process.stdout is not None
        until, channel = time.monotonic() + seconds, self.process.stdout.fileno()
        while b"\n" not in self.heard:
            if not select.select([channel], [], [], max(0.0, until - time.monotonic()))[0]:
                self.end()
                raise Stopped(f"the environment did not answer within {seconds:g} seconds")
            part = os.read(channel, 1_048_576)
            if not part:
                self.end()
                last = f"; its last words: {self.words}" if self.words else ""
                raise Stopped(f"the environment's process ended ({ending(self.process.returncode)}){last}")
            self.heard += part
        line, _, self.heard = self.heard.partition(b"\n")
        answer = json.loads(line)
        if "problem" in answer:
            raise Stopped(printable(str(answer["problem"]))[:1_000])
        return answer["value"]

    def _listen(self) -> None:
        """Keep the last words of what the process prints."""
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            while part := os.read(stream.fileno(), 65_536):
                text = printable(self.words + " " + part.decode("utf-8", "replace"))
                self.words = " ".join(text.split())[-LAST_WORDS:]


class Episode:
    """An episode in whichever process serves its environment now."""

    def __init__(self, key: tuple[str, str, str], start: dict[str, Any]) -> None:
        self.key, self.start = key, start
        self.turns: list[dict[str, Any]] = []
        self.child: Child | None = None
        self.number = 0

    def take(self, turn: dict[str, Any], seconds: float = SECONDS) -> dict[str, Any]:
        """The other side's answer to a turn. Stopped where there is none: then the episode is as before the turn."""
        child = child_of(*self.key)
        try:
            if self.child is not child:
                self.child, self.number = child, next(child.numbers)
                child.ask("open", seconds, number=self.number, start=self.start)
                for earlier in self.turns:
                    child.ask("step", seconds, number=self.number, turn=earlier)
            answer: dict[str, Any] = child.ask("step", seconds, number=self.number, turn=turn)
        except Stopped:
            self.drop()
            raise
        if "refused" not in answer:
            self.turns.append(turn)
        return answer

    def drop(self) -> None:
        """Free what the process holds of the episode; it is opened again if there are further turns."""
        if self.child is not None:
            self.child.dropped.append(self.number)
            self.child = None

    __del__ = drop


_children: dict[tuple[str, str, str], Child] = {}
_lock = threading.Lock()
_owner = 0  # the process that started them: one that is forked starts its own


def child_of(package: str, name: str, options: str) -> Child:
    """The process that serves an environment; the options are JSON. TaskProblem where none can be started."""
    global _children, _lock, _owner
    if _owner != os.getpid():
        if _owner == 0:
            atexit.register(end_all)
        _children, _lock, _owner = {}, threading.Lock(), os.getpid()
    with _lock:
        key = (package, name, options)
        if key not in _children or not _children[key].is_alive():
            _children[key] = Child(package, name, json.loads(options))
        return _children[key]


def end_all() -> None:
    """End the processes that this one started."""
    if _owner == os.getpid():
        for child in _children.values():
            child.end()
        _children.clear()


def interpreter(package: str) -> str:
    """The interpreter that has a package. TaskProblem with the commands that make it."""
    variable, folder = f"{package.upper()}_PYTHON", f"~/.venvs/{package}"
    commands = f"`.venv/bin/python -m venv {folder}; {folder}/bin/pip install {PINS[package]}`"
    path = str(Path(os.environ[variable]).expanduser()) if os.environ.get(variable) else ""
    if not path:
        raise TaskProblem(
            f"environments of {package} need an interpreter of their own, because its dependencies clash with this "
            f"project's: {commands} makes it; then set {variable}={folder}/bin/python, in .env for example"
        )
    if not os.access(path, os.X_OK):
        raise TaskProblem(f"{variable} is {path}, and there is no program; {commands} makes an interpreter")
    return path


def ending(status: int) -> str:
    return f"by {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
