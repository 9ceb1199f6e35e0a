"""This machine: its cores, how malloc keeps memory, and who must make room before training starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

_making_room: list[Callable[[], None]] = []  # called before training


def cores() -> list[int]:
    """The processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def use_all_cores() -> None:
    """The same number of threads for torch with and without an engine: sums depend on it."""
    import torch

    threads = max(1, len(cores()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def keep_memory() -> None:
    """Let this process keep what large tensors gave back, where malloc is glibc's.

    glibc returns what is larger than 32 MB to the kernel at once, which makes zeros of its pages when it is asked for the
    next time: up to 30 % of an update at 26 M parameters. Values of mallopt(3) and its header.
    """
    import ctypes

    trim_threshold, top_pad, mmap_max = -1, -2, -4
    with contextlib.suppress(OSError, AttributeError):  # no malloc of that kind
        libc = ctypes.CDLL(None)
        for name, value in ((mmap_max, 0), (trim_threshold, -1), (top_pad, 2**26)):
            libc.mallopt(name, value)


def before_training(make_room: Callable[[], None]) -> None:
    """Have `make_room` called whenever training is about to start, such as to give a GPU's memory to the trainer."""
    _making_room.append(make_room)


def prepare_training() -> None:
    """What a process needs before it trains: all cores, memory that is kept, and room on the device."""
    use_all_cores()
    keep_memory()
    for make_room in _making_room:
        make_room()
