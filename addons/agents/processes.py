"""The processes in which a client runs rollout functions (addons/agents/worker.py): started, replaced, and ended.

A process that dies loses the episodes in it; when they come again, each gets a process of its own. One with a function that
was left behind gets no more episodes, another takes its place, and it ends when the others in it are done. Each leads a
process group, which ends with it, and by itself when this process is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments.kit.child import Child, ending
from steps.core.errors import UserError

ALONE = 8  # most processes that end with the episodes in them, up to which a suspect gets its own
PROBE = """
import json, sys
try: from importlib.metadata import version; pydantic = version("pydantic")
except Exception: pydantic = None
print(json.dumps([list(sys.version_info[:2]), pydantic]))
"""
DEATHS = 3  # of processes one after another that have not loaded the task, before it counts as broken

# The key of an episode, and {"result", "error"}, or {"lost": why its process died; None where nothing is wrong with it}.
Ended = Callable[[str, dict[str, Any]], None]


class Process:
    """One process, and the keys of the episodes in it."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.keys: set[str] = set()
        self.is_retired = False  # it gets no more episodes
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reader: asyncio.Task[None] | None = None


class Processes:
    """`count` processes for a task. `ended` is told of each episode, once; `say` of what a person should know."""

    def __init__(
        self,
        task: str,
        count: int,
        variables: dict[str, str],
        ended: Ended,
        say: Callable[[str], None],
        python: str | None = None,  # another interpreter than this one
    ) -> None:
        self.task, self.count, self.variables, self.ended, self.say = task, count, variables, ended, say
        self.command = [interpreter(python) if python else sys.executable, "-m", "addons.agents.worker"]
        if python:  # programs that its environment has are those that its agents start
            folders = (os.fspath(Path(self.command[0]).parent), variables.get("PATH"))
            self.variables = variables | {"PATH": os.pathsep.join(filter(None, folders))}
        self.all: list[Process] = []
        self.own_loops = False  # the functions were seen to block their event loop
        self.broken: str | None = None  # why the task cannot be loaded
        self.starting, self.early_deaths = asyncio.Lock(), 0
        self.sending: set[asyncio.Task[None]] = set()

    async def start(self) -> list[Process]:
        """Start those that are missing, and return those that are ready. UserError where the task cannot be loaded."""
        async with self.starting:
            while True:
                if self.broken is not None:
                    raise UserError(self.broken)
                current = [process for process in self.all if not process.is_retired]
                for _ in range(self.count - len(current)):
                    await self._start()
                if ready := [process for process in current if process.ready.done()]:
                    return ready
                coming = [process.ready for process in self.all if not process.is_retired]
                await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)

    async def _start(self) -> Process:
        words = [*self.command, self.task, *(["--own-loops"] if self.own_loops else [])]
        child = await Child.start(words, self.task, variables=self.variables, keep_errors=False)
        process = Process(child)
        self.all.append(process)
        process.reader = asyncio.create_task(self._read(process))
        return process

    async def play(self, key: str, entry: dict[str, Any], is_suspect: bool = False) -> None:
        """Run an episode in the process that has fewest; a suspect, which may have ended the process that it was in, in one
        of its own, as far as there are not too many. UserError where the task cannot be loaded."""
        processes = await self.start()
        if is_suspect and sum(process.is_retired for process in self.all) < ALONE:
            process = await self._start()
            process.is_retired = True
            process.keys.add(key)
            await process.ready
            if key not in process.keys:
                return  # it has died, and `ended` was told
        else:
            process = min(processes, key=lambda each: len(each.keys))
        process.keys.add(key)
        await process.child.send({"play": {"key": key, **entry}})

    def cancel(self, key: str) -> None:
        """Cancel an episode. `ended` is told when its function has ended."""
        for process in self.all:
            if key in process.keys:
                self.sending.add(sent := asyncio.create_task(process.child.send({"cancel": key})))
                sent.add_done_callback(self.sending.discard)

    def overdue(self, key: str) -> None:
        """An episode has not ended long after its time: not even the process's own watch could say so. It ends."""
        for process in self.all:
            if key in process.keys:
                process.keys.remove(key)
                process.is_retired = True
                process.child.release()

    async def _read(self, process: Process) -> None:
        while (message := await process.child.read()) is not None:
            match message:
                case {"ready": _} if not process.ready.done():
                    self.early_deaths = 0
                    process.ready.set_result(None)
                case {"broken": broken}:
                    self.broken = str(broken)
                case {"blocked": place}:
                    self._separate(process, str(place))
                case {"ended": str(key), "result": result, "error": error, "left_behind": left} if key in process.keys:
                    process.keys.remove(key)
                    process.is_retired |= bool(left)
                    self.ended(key, {"result": result, "error": error})
                case _:
                    continue  # of an episode that is over, or of none
            process.child.took()
            if process.is_retired and not process.keys:
                process.child.release()
        await process.child.end(grace=0.0 if process.child.problem else 5.0)
        why = process.child.problem or ending(process.child.process.returncode)
        self.all.remove(process)
        if not process.ready.done():
            self.early_deaths += 1
            if self.early_deaths == DEATHS and self.broken is None:
                self.broken = f"{self.task} cannot be loaded: its process ended {DEATHS} times ({why}); see the log"
            process.ready.set_result(None)
        while process.keys:
            self.ended(process.keys.pop(), {"lost": f"the process that ran it ended ({why})"})

    def _separate(self, process: Process, place: str) -> None:
        """Run functions that block their event loop in loops of their own, from the beginning."""
        self.say(
            f"a rollout function keeps the others from running, at {place}: it is run again with an event loop for each "
            "episode. Make it a plain function (`def rollout`), or await what it waits for"
        )
        self.own_loops = process.is_retired = True
        for key in list(process.keys):
            process.keys.remove(key)
            self.ended(key, {"lost": None})

    async def stop(self) -> None:
        """End all of them at once; `ended` is told of nothing more."""
        readers = [process.reader for process in self.all if process.reader is not None]
        for process in self.all:
            process.is_retired = True
            process.keys.clear()
            process.child.release()
        if readers:
            await asyncio.wait(readers)


def interpreter(python: str) -> str:
    """The path of an interpreter that can run rollout functions. UserError where it cannot, with what it lacks."""
    path = shutil.which(Path(python).expanduser())
    if path is None:
        raise UserError(
            f"agents.python: there is no program {python}; name an interpreter, as in ../agent/.venv/bin/python"
        )
    path = os.fspath(Path(path).absolute())  # of a link, which says whose packages are meant
    try:
        asked = subprocess.run([path, "-c", PROBE], capture_output=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UserError(f"agents.python: {python} is no Python interpreter: {problem}") from None
    try:
        version, pydantic = json.loads(asked.stdout)
    except ValueError:
        output = (asked.stderr or asked.stdout)[-200:]
        raise UserError(f"agents.python: {python} is no Python interpreter: {output}") from None
    if tuple(version) < (3, 11):
        raise UserError(f"agents.python: {python} is Python {'.'.join(map(str, version))}; 3.11 or later is needed")
    if pydantic is None or int(pydantic.split(".")[0]) < 2:
        have = f"has pydantic {pydantic}" if pydantic else "has no pydantic"
        raise UserError(
            f"agents.python: {python} {have}; install pydantic 2 there (`{python} -m pip install 'pydantic>=2'`)"
        )
    return path
