"""The processor cores of this process, also after vLLM has bound the thread that called it to one of them.

A thread or process started from a bound thread is bound to the same core, beside the engine's own work.
"""

from __future__ import annotations

import os

_cores: set[int] = set()


def allowed_cores() -> set[int]:
    """The cores that this process might use when this was first called, which must be before an engine starts."""
    if not _cores and hasattr(os, "sched_getaffinity"):
        _cores.update(os.sched_getaffinity(0))
    return _cores


def use_allowed_cores() -> None:
    """Let the calling thread, and what it starts, use all of them."""
    if cores := allowed_cores():
        os.sched_setaffinity(0, cores)
