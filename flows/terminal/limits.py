"""A limit on how long the main thread waits, for libraries that have none of their own for a whole answer."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class TakesTooLong(BaseException):
    """Raised in the middle of whatever the main thread waits for. No library takes it for an error that it should retry."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Inside, the main thread gets TakesTooLong after so many seconds, and then every second. Others have no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise TakesTooLong(f"no answer within {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
