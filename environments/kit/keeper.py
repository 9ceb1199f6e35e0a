"""Starts a program, and ends it with all that came of it. Only child.py and sandbox/_confined_inside.py use it.

    python -I -S keeper.py 5 node server.js         # file descriptor 5 closes when the program shall end

The program leads a session of its own. When the descriptor closes, because it was closed or because the process that held it
is gone, or when the program has ended, every process that came of it is killed, whatever session or group it has made for
itself: this process is the one to which orphans are given. It ends as the program did. Where this process is killed itself,
the kernel kills the program, and what the program had started goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
from typing import NoReturn

PARENTS_DEATH, SUBREAPER = 1, 36  # of prctl


def adopt() -> None:
    """Orphans among this process's descendants become its own children."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def kept(child: int, lifeline: int) -> int:
    """Wait for a child, or for the lifeline to close, and kill all that is left; the child's status as Popen has it."""
    select.select([lifeline, os.pidfd_open(child)], [], [])
    ended, waited = os.waitpid(child, os.WNOHANG)
    status = os.waitstatus_to_exitcode(waited) if ended else -signal.SIGKILL
    while mine := children():  # the children of one that dies become this process's own
        for number in mine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for number in mine:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(number, 0)
    return status


def children() -> list[int]:
    """The processes whose parent is this one."""
    mine = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        with contextlib.suppress(OSError, ValueError):
            number = int(name)
            with open(f"/proc/{number}/stat", "rb") as file:  # noqa: PTH123
                parent = int(file.read().rpartition(b")")[2].split()[1])
            if parent == os.getpid():
                mine.append(number)
    return mine


def become(command: list[str]) -> NoReturn:
    """Become the program, in a session of its own; the kernel kills it when its parent dies."""
    try:
        os.setsid()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python has changed
        ctypes.CDLL(None).prctl(PARENTS_DEATH, signal.SIGKILL, 0, 0, 0)
        os.execvp(command[0], command)
    except OSError as problem:
        os.write(2, f"{command[0]} cannot be run: {problem.strerror}\n".encode())
    os._exit(126)


def main() -> int:
    lifeline = int(sys.argv[1])
    os.set_inheritable(lifeline, False)
    adopt()
    child = os.fork()
    if child == 0:
        become(sys.argv[2:])
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # the pipes are the program's alone: they end with it
        os.dup2(nothing, number)
    status = kept(child, lifeline)
    if status < 0 and -status in signal.valid_signals():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
