"""A program of somebody else that speaks lines of JSON over its pipes. All that it may send has an end.

    child = await Child.start([python, "served.py"], "the environment")
    answer = await child.ask({"do": "rows"}, seconds=30.0)       # {"id": 1, ...}: the same id as the request
    await child.end()

What is limited: the bytes of a line, and of all that comes until an awaited answer has; the time of a request, from sending
it to the whole answer. Its standard error is read to its end, and the last of it kept. A line that is no JSON object, and an
answer to nothing that is asked now (a wrong id, a second time, too late), is passed over and counted. keeper.py ends it with
all that came of it, however this process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.kit import keeper

LINE = 2**26  # bytes of a line, and of all lines until an awaited answer has come
KEPT = 8_192  # bytes of its standard error: the last ones
END_SECONDS = 5.0  # in which the kernel has to have ended it


class Stopped(Exception):
    """There is no answer: what happened, in words without a full stop."""


class Child:
    """A running program. `who` names it in errors, as in "the environment". All but `is_alive` and `words` belongs to one
    event loop."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int, who: str, line: int) -> None:
        self.process, self.lifeline, self.who, self.line = process, lifeline, who, line
        self.passed_over, self.unread = 0, 0  # lines; bytes of standard error that were not kept
        self.problem = ""  # why nothing more is read of it
        self._heard, self._searched, self._since = bytearray(), 0, 0
        self._numbers, self._turn = itertools.count(1), asyncio.Lock()
        self._errors = b""
        self._listener = asyncio.create_task(self._listen()) if process.stderr is not None else None

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        who: str,
        *,
        variables: Mapping[str, str] | None = None,  # its whole environment; None: this process's own
        cwd: Path | None = None,
        line: int = LINE,
        keep_errors: bool = True,  # False: its standard error is this process's own
    ) -> Child:
        """OSError where this machine starts no further process. A program that cannot be run says so as it ends."""
        pipe = asyncio.subprocess.PIPE
        theirs, lifeline = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", keeper.__file__, str(theirs), *command),
                env=variables,
                cwd=cwd,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe if keep_errors else None,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(theirs)
        return cls(process, lifeline, who, line)

    @property
    def words(self) -> str:
        """The last of its standard error as text."""
        return self._errors.decode("utf-8", "replace").replace("\0", "")

    def is_alive(self) -> bool:
        try:  # the event loop may not have heard of its end yet
            ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return ended is None

    async def send(self, message: Mapping[str, Any]) -> None:
        """Write a line, which waits for a program that does not read. One that has ended reads nothing: `read` says so."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            await self.process.stdin.drain()

    async def read(self) -> dict[str, Any] | None:
        """The next message; None after the last, and where it sends more than is taken, which `problem` says."""
        assert self.process.stdout is not None
        while True:
            if (end := self._heard.find(b"\n", self._searched)) >= 0:
                line = bytes(self._heard[:end])
                del self._heard[: end + 1]
                self._searched = 0
                if (message := _read(line)) is not None:
                    return message
                self.passed_over += bool(line.strip())
                continue
            self._searched = len(self._heard)
            if self._since > self.line:
                self.problem = f"{self.who} sent more than {self.line:,} bytes without an answer{self._aside()}"
                return None
            part = await self.process.stdout.read(1_048_576)
            if not part:
                return None
            self._heard += part
            self._since += len(part)

    def took(self) -> None:
        """The message that was read last is one that was waited for: the count of bytes begins anew."""
        self._since = len(self._heard)

    async def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a request, one at a time. Stopped where there is none, and then the program has been ended."""
        async with self._turn:
            number = next(self._numbers)
            try:
                async with asyncio.timeout(seconds):
                    await self.send({"id": number, **request})
                    while (message := await self.read()) is not None:
                        if message.get("id") == number and type(message["id"]) is int:
                            self.took()
                            return message
                        self.passed_over += 1
            except TimeoutError:
                await self.end()
                raise Stopped(f"{self.who} did not answer within {seconds:g} seconds{self._aside()}") from None
            except BaseException:  # given up: what comes later would be another request's
                await self.end()
                raise
            await self.end(grace=0.0 if self.problem else 1.0)  # it closed its output, and is about to end
            if self.problem:
                raise Stopped(self.problem)
            last = " ".join(self.words.split())[-300:]
            words = f"; its last words: {last}" if last else ""
            raise Stopped(f"{self.who}'s process ended ({ending(self.process.returncode)}){words}")

    async def end(self, grace: float = 0.0) -> None:
        """End it and all that came of it; `grace` seconds are for a program that ends when its standard input does."""
        if grace and self.process.stdin is not None:
            self.process.stdin.close()
            await self._ended(grace)
        self.release()
        if not await self._ended(END_SECONDS):
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self._ended(END_SECONDS)
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=END_SECONDS)
            self._listener.cancel()
        transport: Any = self.process._transport  # pyrefly: ignore[missing-attribute]
        transport.close()  # also where a process that nothing could end holds the pipes

    def release(self) -> None:
        """Have it end, without waiting for that."""
        if self.lifeline >= 0:
            lifeline, self.lifeline = self.lifeline, -1
            os.close(lifeline)

    async def _ended(self, seconds: float) -> bool:
        """Whether it has ended by then. (`Process.wait` waits for the ends of pipes that nobody reads, too.)"""
        until = asyncio.get_running_loop().time() + seconds
        while self.process.returncode is None and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.005)
        return self.process.returncode is not None

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        while part := await self.process.stderr.read(65_536):
            errors = self._errors + part
            self._errors = errors[-KEPT:]
            self.unread += len(errors) - len(self._errors)

    def _aside(self) -> str:
        return f" ({self.passed_over} lines that it sent were no answer)" if self.passed_over else ""


def _read(line: bytes) -> dict[str, Any] | None:
    """A line as a message; None where it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def ending(status: int | None) -> str:
    """What an exit status says."""
    if status is None:
        return "it does not end"
    if status >= 0:
        return f"exit code {status}"
    return next((f"by {each.name}" for each in signal.Signals if each == -status), f"by signal {-status}")
