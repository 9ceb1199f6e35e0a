"""The process beside the server that masks and stores what is captured, so that answering does not wait for its work.

`Apart` starts it, by the name of a module that calls `serve`, and talks to it through its standard input, from threads of
its own: a caller never blocks, and the worst that it gets is an answer that says what was lost. A request is a line of JSON
with the sizes of the bytes that follow; its answer is a line of JSON. What is not masked yet is in memory and in this pipe
only, never on the disk, and there is no more of it than ROOM. Calls that came meanwhile are stored with one synchronisation
of the disk, and each is answered when it is there: what the server was told is stored, a kill of either process does not
lose. Where the server is gone, this process stores what it has read, and ends. It gives way to the server where both want
the CPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent.parent.parent
MOST = 8  # calls that are stored at once: more of them would wait for each other, and fewer more often for the disk
ROOM = 256 * 2**20  # bytes that wait at most
REST = 10.0  # seconds until the process is started again where it ended without an answer
Together = Callable[[], contextlib.AbstractContextManager[Any]]
Frame = tuple[dict[str, Any], list[bytes]]  # what is asked, and the bytes that belong to it
Answer = dict[str, Any]  # of the process; {"lost": why} where there is none


@dataclass
class Call:
    """A call that is not answered yet."""

    pieces: tuple[bytes, ...]
    since: float  # moment, of time.monotonic
    future: Future[Answer]
    process: subprocess.Popen[bytes] | None = None  # that got it


class Apart:
    """The process, which starts with the first call, and again where it has ended."""

    def __init__(self, module: str) -> None:
        self.module, self.lock = module, threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.rests_until, self.has_answered = 0.0, False
        self.sending: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # numbers of calls
        self.waiting: dict[int, Call] = {}
        self.size, self.number = 0, 0  # bytes that wait, and the latest call
        self.sender = threading.Thread(target=self._send, daemon=True)
        self.sender.start()

    def start(self) -> None:
        """Have the process started, so that the first call need not wait for that."""
        self.sending.put(0)

    def call(self, fields: dict[str, Any], *bodies: bytes) -> Future[Answer]:
        """What the process will answer, which never fails."""
        head = json.dumps({"sizes": [len(body) for body in bodies], **fields}).encode()
        made = Call((head, *bodies), time.monotonic(), Future())
        size = sum(map(len, bodies))
        with self.lock:
            is_taken = self.size + size <= ROOM
            if is_taken:
                self.number += 1
                self.size += size
                self.waiting[self.number] = made
                self.sending.put(self.number)
        if not is_taken:
            made.future.set_result({"lost": "more waits to be masked than memory may hold"})
        return made.future

    def behind(self) -> float:
        """The seconds for which the oldest call has waited."""
        with self.lock:
            return time.monotonic() - next(iter(self.waiting.values())).since if self.waiting else 0.0

    def close(self) -> None:
        """Let it store what it has, and end."""
        self.sending.put(None)
        self.sender.join(20)
        if process := self.process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)

    def _send(self) -> None:
        while (number := self.sending.get()) is not None:
            try:
                pipe = self._given(number)
                if number:
                    head, *bodies = self.waiting[number].pieces
                    for piece in (b'{"number": %d, ' % number + head[1:] + b"\n", *bodies):
                        pipe.write(piece)
                    pipe.flush()
            except KeyError:  # its process ended meanwhile, which answered it
                pass
            except OSError as problem:
                self._end(number, {"lost": f"the process that masks cannot be reached: {problem.strerror or problem}"})
        if process := self.process:
            with contextlib.suppress(OSError):
                _pipe(process).close()

    def _given(self, number: int) -> IO[bytes]:
        """The pipe to the process, which is started where there is none, and which gets this call. OSError where it cannot
        be started now."""
        while True:
            if self.process is None:
                if time.monotonic() < self.rests_until:
                    raise OSError("it ended as soon as it was started")
                self.rests_until = time.monotonic() + REST
                command = [sys.executable, "-m", self.module]
                paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
                variables = os.environ | {"PYTHONPATH": paths}  # the server may have another folder
                process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                with self.lock:
                    self.process = process
                threading.Thread(target=self._receive, args=(process,), daemon=True).start()
            with self.lock:
                if self.process is not None:  # else it has ended meanwhile
                    if number:
                        self.waiting[number].process = self.process
                    return _pipe(self.process)

    def _receive(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                answer = json.loads(line)
                self.rests_until, self.has_answered = 0.0, True
                self._end(answer["number"], answer)
        process.wait()
        with self.lock:
            self.process = None if self.process is process else self.process
            left = [number for number, call in self.waiting.items() if call.process is process]
        for number in left:
            self._end(number, {"lost": "the process that masks has ended"})
        with contextlib.suppress(OSError):
            _pipe(process).close()

    def _end(self, number: int, answer: Answer) -> None:
        with self.lock:
            call = self.waiting.pop(number, None)
            if call is not None:
                self.size -= sum(map(len, call.pieces[1:]))
        if call is not None:
            call.future.set_result(answer)


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def serve(answer: Callable[[dict[str, Any], list[bytes]], dict[str, Any]], together: Together) -> None:
    """Answer calls until the server is gone. Inside `together`, what several calls store is on the disk at its end. A call
    that fails, or whose disk does, is answered with {"lost": why}."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the server says when it is over
    os.nice(5)
    frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(os.fdopen(os.dup(0), "rb", buffering=2**20), frames), daemon=True).start()
    is_over = False
    while not is_over:
        replies: list[Answer] = []
        frame = frames.get()
        try:
            with together():
                while frame is not None:
                    replies.append(_answered(answer, frame))
                    if len(replies) == MOST or frames.empty():
                        break
                    frame = frames.get()
        except OSError as problem:
            replies = [{"number": reply["number"], "lost": lost(problem)} for reply in replies]
        is_over = frame is None
        with contextlib.suppress(OSError):  # the server is gone: what was read is stored all the same
            sys.stdout.write("".join(f"{json.dumps(reply)}\n" for reply in replies))
            sys.stdout.flush()


def lost(problem: Exception) -> str:
    """Why something was not stored, in words that quote nothing of it."""
    number = problem.errno if isinstance(problem, OSError) else None
    return os.strerror(number) if number else type(problem).__name__


def _answered(answer: Callable[[dict[str, Any], list[bytes]], dict[str, Any]], frame: Frame) -> Answer:
    head, bodies = frame
    try:
        return {"number": head["number"], **answer(head, bodies)}
    except Exception as problem:  # one call that fails ends no other
        return {"number": head["number"], "lost": lost(problem)}


def _read(pipe: IO[bytes], frames: queue.SimpleQueue[Frame | None]) -> None:
    """The calls as they come; None at the end, and for one that the server did not finish."""
    while (line := pipe.readline()).endswith(b"\n"):
        head = json.loads(line)
        bodies = [pipe.read(size) for size in head["sizes"]]
        if [len(body) for body in bodies] != head["sizes"]:
            break
        frames.put((head, bodies))
    frames.put(None)
