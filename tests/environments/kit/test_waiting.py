"""environments/kit/waiting.py: the event loop that all threads of a process share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from environments.kit import waiting


def test_threads_that_ask_at_the_same_moment_get_one_loop() -> None:
    for _ in range(20):
        waiting._loop.cache_clear()
        together = threading.Barrier(8)

        def ask(_: int, together: threading.Barrier = together) -> int:
            together.wait()
            return id(waiting.loop())

        with ThreadPoolExecutor(8) as threads:
            assert len(set(threads.map(ask, range(8)))) == 1
