"""Tools that take their time: a limit in seconds for any call, and one event loop for everything that is `async`.

The loop runs in a thread of its own, which is started when it is first needed and ends with the process. Python cannot stop
a thread: a plain call that takes too long goes on, and what it returns in the end is thrown away. A coroutine is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")


class TookTooLong(Exception):
    """A call was not answered within its limit."""


_asking = threading.Lock()
os.register_at_fork(before=_asking.acquire, after_in_parent=_asking.release, after_in_child=_asking.release)


def loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process's async tools and connections; a process that was forked has one of its own."""
    with _asking:  # else threads that ask at the same moment would get two
        return _loop(os.getpid())


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    running = asyncio.new_event_loop()
    threading.Thread(target=running.run_forever, name="async tools", daemon=True).start()
    return running


def run(coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """The coroutine's result, from the loop. After `seconds` (None: never) it is cancelled, and TookTooLong is raised."""
    asked = asyncio.run_coroutine_threadsafe(coroutine, loop())
    try:
        return result_of(asked, seconds)
    except TookTooLong:
        asked.cancel()
        raise


def result_of(asked: Future[T], seconds: float | None) -> T:
    """The result once it is there, or what was raised in its place. TookTooLong after `seconds` (None: never)."""
    try:
        return asked.result(seconds)
    except NotInTime:
        if asked.done():  # the work itself raised a TimeoutError
            raise
        raise TookTooLong from None


class Limited:
    """Calls that are made one after another, each with a limit in seconds: those of one episode."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._latest: Future[Any] = Future()
        self._latest.set_result(None)

    def __call__(self, work: Callable[[], T]) -> T:
        """The work's result, or what it raised. TookTooLong after the limit, which includes waiting for an earlier call
        that went past its own: two never run at the same time."""
        due = monotonic() + self.seconds
        with contextlib.suppress(Exception):
            result_of(self._latest, self.seconds)
        if not self._latest.done():
            raise TookTooLong
        asked: Future[T] = Future()

        def answer() -> None:
            try:
                asked.set_result(work())
            except BaseException as problem:
                asked.set_exception(problem)

        self._latest = asked
        threading.Thread(target=answer, name="tool", daemon=True).start()  # the process ends though it hangs
        return result_of(asked, max(0.0, due - monotonic()))
