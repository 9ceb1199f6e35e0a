"""The kernel's locks on files, which end with the process that holds them, however that ends.

    with alone(path): ...                       # waits until no other process or thread is inside
    if not take(file): ...                      # does not wait; the lock goes when the file is closed
    holder(path)                                # who holds it now

Only the standard library is imported, because the command of each stage loads this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Inside, no other process or thread holds the same lock. The file is made if there is none, for its owner alone. What
    is read, changed and written again belongs inside, all three."""
    number = opened(path)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def opened(path: Path) -> int:
    """The descriptor of a lock's file, which is made for its owner alone if there is none. No program that is started gets
    it, unless it is passed on."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def take(file: IO[Any] | int) -> bool:
    """Whether the lock of an open file is this one's from now on; False where another has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(path: Path) -> int | None:
    """The process that holds the lock of a file, 0 where the system does not tell which; None where nobody does."""
    inode = path.stat().st_ino
    table = Path("/proc/locks")
    if table.is_file():
        for line in table.read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                return int(fields[4])
        return None
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
    return None
