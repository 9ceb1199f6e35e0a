"""Ends services when the process that started them ends, even where that was killed.

    python -m flows.deployment.guardian    # flows/deployment/services.py starts it

The starter writes the process group of each service, one a line, to this process's standard input, which closes when the
starter ends. Then every group gets SIGINT, and SIGKILL if it is still there after 15 seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

STEPS = ((signal.SIGINT, 15.0), (signal.SIGKILL, 5.0))  # seconds to wait after each


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


def end(groups: Sequence[int], steps: Sequence[tuple[int, float]] = STEPS) -> None:
    """End these process groups, the last one first."""
    for number, seconds in steps:
        for group in reversed(groups):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
        until = time.monotonic() + seconds
        while any(map(alive, groups)) and time.monotonic() < until:
            time.sleep(0.05)


if __name__ == "__main__":
    end([int(line) for line in sys.stdin])
