"""What this machine's cores reach together: operations a second of float32 matrix products, and bytes a second of copies.

    python -m addons.planning.rates 2      # prints both for two threads; under a second

Each thread repeats a short work on numbers of its own, while the others do so, too. What counts is the median of the time
that it was at work: other programs that wait for the same cores hardly count, and those that slow a core down do. It is a
process of its own, because numpy's number of threads is set when it is imported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

SIDE = 512  # of the matrices: 0.27 billion operations, 1 to 5 milliseconds
NUMBERS = 2**22  # float32 numbers that are copied: 16 MiB, more than a core's own caches
SECONDS = 0.2  # that each of the two is repeated for


def measure(threads: int) -> tuple[float, float]:
    """(operations a second, bytes a second, read and written) of all threads."""
    import numpy as np

    def thread_rates(_: int) -> tuple[float, float]:
        left, right, out = (np.ones((SIDE, SIDE), np.float32) for _ in range(3))
        source, target = np.ones(NUMBERS, np.float32), np.zeros(NUMBERS, np.float32)
        product = _usual(lambda: np.matmul(left, right, out=out))
        return 2 * SIDE**3 / product, 2 * source.nbytes / _usual(lambda: np.copyto(target, source))

    with ThreadPoolExecutor(threads) as pool:
        products, copies = zip(*pool.map(thread_rates, range(threads)), strict=True)
    return sum(products), sum(copies)


def _usual(work: Callable[[], object]) -> float:
    """The median time of many repeats, in seconds of this thread."""
    work()
    seconds: list[float] = []
    while sum(seconds) < SECONDS:
        began = time.thread_time()
        work()
        seconds.append(time.thread_time() - began)
    return median(seconds)


if __name__ == "__main__":
    print(*measure(int(sys.argv[1])))
