"""The process beside the server that masks and stores what is captured, so that answering does not wait for its work.

`Apart` starts it, by the name of a module that calls `serve`, and talks to it through its standard input. A request is a
line of JSON with the sizes of the bytes that follow; its answer is a line of JSON. What is not masked yet is in memory and
in this pipe only, never on the disk. Calls that came meanwhile are stored with one synchronisation of the disk, and each is
answered when it is there: what the server was told is stored, a kill of either process does not lose. Where the server is
gone, this process stores what it has read, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import IO, Any

MOST = 8  # calls that are stored at once: more of them would wait for each other, and fewer more often for the disk
Together = Callable[[], contextlib.AbstractContextManager[Any]]
Frame = tuple[dict[str, Any], list[bytes]]  # what is asked, and the bytes that belong to it


class Apart:
    """The process, which starts with the first call, and again where it has ended."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.sending: queue.SimpleQueue[tuple[bytes, ...] | None] = queue.SimpleQueue()
        self.waiting: dict[int, Future[dict[str, Any]]] = {}
        self.number = 0

    def start(self) -> None:
        with self.lock:
            if self.process is None:
                command = [sys.executable, "-m", self.module]
                self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                self.sending = queue.SimpleQueue()
                for work in (self._send, self._receive):
                    threading.Thread(target=work, args=(self.process, self.sending), daemon=True).start()

    async def call(self, fields: dict[str, Any], *bodies: bytes) -> dict[str, Any]:
        """What the process answers. RuntimeError where it has ended meanwhile."""
        self.start()
        answer: Future[dict[str, Any]] = Future()
        with self.lock:
            self.number += 1
            self.waiting[self.number] = answer
            head = {"number": self.number, "sizes": [len(body) for body in bodies], **fields}
            self.sending.put((json.dumps(head).encode() + b"\n", *bodies))
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """Let it store what it has, and end."""
        with self.lock:
            process, self.process = self.process, None
            self.sending.put(None)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)

    def _send(self, process: subprocess.Popen[bytes], sending: queue.SimpleQueue[tuple[bytes, ...] | None]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin as pipe:
            while (pieces := sending.get()) is not None:
                for piece in pieces:
                    pipe.write(piece)
                pipe.flush()

    def _receive(self, process: subprocess.Popen[bytes], sending: queue.SimpleQueue[tuple[bytes, ...] | None]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                answer = json.loads(line)
                with self.lock:
                    future = self.waiting.pop(answer["number"])
                if future.set_running_or_notify_cancel():
                    future.set_result(answer)
        with self.lock:
            if self.process is process:
                self.process = None
            left, self.waiting = (self.waiting, {}) if self.process is None else ({}, self.waiting)
            sending.put(None)
        for future in left.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(RuntimeError("the process that masks has ended"))
        process.wait()


def serve(answer: Callable[[dict[str, Any], list[bytes]], dict[str, Any]], together: Together) -> None:
    """Answer calls until the server is gone. Inside `together`, what several calls store is on the disk at its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the server says when it is over
    frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(os.fdopen(os.dup(0), "rb", buffering=2**20), frames), daemon=True).start()
    frame, is_over = frames.get(), False
    while frame is not None:
        replies: list[dict[str, Any]] = []
        with together():
            while frame is not None:
                replies.append({"number": frame[0]["number"], **answer(*frame)})
                if len(replies) == MOST or frames.empty():
                    break
                frame = frames.get()
                is_over = frame is None
        sys.stdout.write("".join(f"{json.dumps(reply)}\n" for reply in replies))
        sys.stdout.flush()
        frame = None if is_over else frames.get()


def _read(pipe: IO[bytes], frames: queue.SimpleQueue[Frame | None]) -> None:
    """The calls as they come; None at the end, and for one that the server did not finish."""
    while (line := pipe.readline()).endswith(b"\n"):
        head = json.loads(line)
        bodies = [pipe.read(size) for size in head["sizes"]]
        if [len(body) for body in bodies] != head["sizes"]:
            break
        frames.put((head, bodies))
    frames.put(None)
