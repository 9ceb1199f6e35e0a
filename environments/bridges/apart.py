"""Processes for packages whose dependencies clash with this project's: one process per environment, with the package's own
interpreter, spoken to by lines of JSON over pipes (the other side: _package_process.py).

    child = child_of("verifiers", "sums_env", {})
    child.ask("rows")

A process is started when it is first needed and serves all episodes of this one. It ends, with all that it started, as this
process does, however that ends, and when it does not answer in time (environments/kit/child.py). An episode whose process is
gone is opened in the next and its turns are taken again. Left out: episodes beside each other in several processes; they
wait for each other.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

from environments.base import TaskProblem
from environments.kit import child as programs
from environments.kit.sandbox import printable
from environments.kit.waiting import run

START_SECONDS = 600.0  # until an environment has to be ready; it may load a data set
SECONDS = 30.0  # until a request has to be answered
PINS = {"verifiers": "verifiers==0.3.1", "openenv": "openenv-core==0.3.0"}
PROCESS = Path(__file__).with_name("_package_process.py")
ROWS = 2**28  # bytes that an environment may answer with: its rows are among it
MOST_ANSWERS = 1_000  # messages to one turn


class Stopped(TaskProblem):
    """The process hung, ended or raised an error: what happened, in words without a full stop."""


class Child:
    """A process that serves one environment."""

    def __init__(self, package: str, name: str, options: dict[str, Any]) -> None:
        """TaskProblem where it does not start."""
        self.numbers = itertools.count(1)
        self.dropped: deque[int] = deque()  # episodes that are over, of which the process learns with the next request
        command = [interpreter(package), str(PROCESS), package, name, json.dumps(options)]
        variables = os.environ | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
        self.program = run(programs.Child.start(command, "the environment", variables=variables, line=ROWS))
        try:
            self.facts: dict[str, Any] = self.ask("facts", START_SECONDS)
            if not isinstance(self.facts, dict) or not isinstance(self.facts.get("tools"), list):
                raise Stopped(f"it does not say what it is: {printable(str(self.facts))[:100]}")
        except Stopped as problem:
            self.end()
            raise TaskProblem(f"{package}:{name}: {problem}") from None

    def ask(self, do: str, seconds: float = SECONDS, **given: Any) -> Any:
        """What the method `do` of the other side returns. Stopped where it does not; after `seconds` the process
        is ended."""
        dropped = [self.dropped.popleft() for _ in range(len(self.dropped))]
        try:
            answer = run(self.program.ask({"do": do, "with": given, "dropped": dropped}, seconds))
        except programs.Stopped as problem:
            raise Stopped(printable(str(problem))) from None
        if "value" not in answer:
            raise Stopped(printable(str(answer.get("problem")))[:1_000])
        return answer["value"]

    def end(self) -> None:
        """Kill the process and all that it started."""
        run(self.program.end())


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
            answer = checked(child.ask("step", seconds, number=self.number, turn=turn))
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
        if key not in _children or not _children[key].program.is_alive():
            _children[key] = Child(package, name, json.loads(options))
        return _children[key]


def key_of(package: str, name: str, options: dict[str, Any]) -> tuple[tuple[str, str, str], float | None]:
    """(package, name, options as JSON), and the least score that is a success where `options` say so."""
    least = options.pop("success", None)
    return (package, name, json.dumps(options, sort_keys=True)), None if least is None else float(least)


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


def checked(answer: Any) -> dict[str, Any]:
    """An answer to a turn. Stopped where it is none."""
    value: dict[str, Any] = answer if isinstance(answer, dict) else {}
    answers = value.get("answers")
    if "refused" in value:
        return value
    if not (isinstance(answers, list) and "done" in value):
        raise Stopped(f"the environment's answer to a turn is none: {printable(str(answer))[:100]}")
    if len(answers) > MOST_ANSWERS:
        raise Stopped(
            f"the environment answered a turn with {len(answers):,} messages, and {MOST_ANSWERS:,} are the most"
        )
    if not all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in answers):
        raise Stopped("the environment answered a turn with what is no message of a role and a content")
    return value
