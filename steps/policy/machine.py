"""This machine: its cores, how malloc keeps memory, and what must free memory before training starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

# Called before training. Global, because one process has one device: an engine that sampled in this process holds memory
# that the trainer needs, and the two rooms do not know each other.
_making_room: list[Callable[[], None]] = []


def cores() -> list[int]:
    """The processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def use_all_cores() -> None:
    """Set torch's threads to the same number with and without an engine: rounding of sums depends on it."""
    import torch

    threads = max(1, len(cores()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def keep_memory() -> None:
    """Let this process keep the memory of freed large tensors, where malloc is glibc's.

    glibc returns blocks above 32 MB to the kernel at once, and the kernel fills their pages with zeros for the next
    allocation: up to 30 % of an update at 26 M parameters. The values are those of mallopt(3) and its header.
    """
    import ctypes

    trim_threshold, top_pad, mmap_max = -1, -2, -4
    with contextlib.suppress(OSError, AttributeError):  # another malloc
        libc = ctypes.CDLL(None)
        for name, value in ((mmap_max, 0), (trim_threshold, -1), (top_pad, 2**26)):
            libc.mallopt(name, value)


def before_training(make_room: Callable[[], None]) -> None:
    """Call `make_room` whenever training is about to start, for example to leave a GPU's memory to the trainer."""
    _making_room.append(make_room)


def prepare_training() -> None:
    """Prepare this process for training: all cores, memory that is kept, and room on the device."""
    use_all_cores()
    keep_memory()
    for make_room in _making_room:
        make_room()
