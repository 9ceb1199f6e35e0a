"""Processes of this project's own: started, and ended with force where they do not end by themselves.

    process = start([sys.executable, "-m", "steps.runner.worker", "a.sock"], log=Path("worker.log"))
    end(process)

A program of somebody else that speaks lines of JSON is a `Child` of environments/kit/child.py, which ends it with all that
came of it. Only the standard library is imported, and `subprocess` where a process is started, because the command of each
stage loads this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import Popen

# Signals (None: none), and the seconds each of them gets (None: no end).
Steps = Sequence[tuple[int | None, float | None]]
GENTLY: Steps = ((signal.SIGTERM, 5.0), (signal.SIGKILL, None))
AT_ONCE: Steps = ((signal.SIGKILL, None),)


def start(
    command: Sequence[str],
    *,
    log: Path | None = None,  # takes all that it writes; then it has no standard input, unless `options` give it one
    **options: Any,  # of Popen
) -> Popen[bytes]:
    """A process, without waiting for it. To end it with this one, its `preexec_fn` calls `end_with_parent`. OSError where
    it cannot be started."""
    from subprocess import DEVNULL, STDOUT, Popen

    if log is None:
        return Popen(command, **options)
    with log.open("ab") as file:
        return Popen(command, **dict[str, Any](stdin=DEVNULL, stdout=file, stderr=STDOUT) | options)


def end_with_parent(number: int) -> None:
    """In a new process: the kernel sends it this signal when the thread that has started it ends, for any reason."""
    import ctypes

    ctypes.CDLL(None).prctl(1, number, 0, 0, 0)  # PR_SET_PDEATHSIG


def end(process: Popen[bytes], steps: Steps = GENTLY) -> None:
    """End a process that this one has started, and collect it. A step without a signal is a moment to end by itself."""
    from subprocess import TimeoutExpired

    for number, seconds in steps:
        if number is not None and process.poll() is None:
            process.send_signal(number)
        with contextlib.suppress(TimeoutExpired):
            process.wait(seconds)
            return


def end_all(numbers: Sequence[int], steps: Sequence[tuple[int, float]], is_group: bool = False) -> None:
    """End processes, or process groups, by their numbers, each signal to all that are left."""
    send, is_there = (os.killpg, group_alive) if is_group else (os.kill, alive)
    for number, seconds in steps:
        for each in filter(is_there, numbers):
            with contextlib.suppress(ProcessLookupError):
                send(each, number)
        until = time.monotonic() + seconds
        while any(map(is_there, numbers)) and time.monotonic() < until:
            time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and that its parent has not collected yet does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it ended just now, or this system has no /proc
        return not Path("/proc/self").exists()
    except OSError:
        return True


def group_alive(group: int) -> bool:
    """Whether a process group has a process, one that nobody has collected included."""
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False
