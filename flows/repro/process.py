"""Runs a command as a process of its own: shows what it writes, and keeps the error that it ended with.

However this process is interrupted, the other one ends first.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from steps.kit.process import end, start

KEPT = 20_000  # bytes of what the command wrote last
# Ctrl-C on a terminal reaches the command as well, so it first has a moment to end by itself.
ENDING = ((None, 1.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))  # signals, and the seconds each of them gets


def run_process(words: Sequence[str], **options: Any) -> tuple[int, str]:
    """(exit code as subprocess gives it, the error that the command printed or nothing). `options` are those of Popen."""
    process = start(words, stderr=subprocess.PIPE, **options)
    assert process.stderr is not None
    try:
        with process.stderr as pipe:
            written = passed_on(pipe.fileno(), process)
        code = process.wait()
    except BaseException:
        end(process, ENDING)
        raise
    return code, printed_error(written.decode(errors="replace")) if code else ""


def passed_on(pipe: int, process: subprocess.Popen[bytes]) -> bytes:
    """Write what comes through the pipe to this process's stderr, and return the last of it.

    A program that the command has left behind may hold the pipe open: this ends with the command."""
    last = b""
    while True:
        if select.select([pipe], [], [], 0.2)[0]:
            chunk = os.read(pipe, 65536)
            if not chunk:
                return last
            last = (last + chunk)[-KEPT:]
            with contextlib.suppress(OSError):  # a full disk, which the command itself will report
                os.write(2, chunk)
        elif process.poll() is not None:
            return last


def printed_error(text: str) -> str:
    """The last error in a command's output: an `error:` line with the indented lines below it, or a traceback's end."""
    lines = text.splitlines()
    starts = [place for place, line in enumerate(lines) if line.startswith(("error: ", "Traceback "))]
    if not starts:
        return ""
    first, *rest = lines[starts[-1] :]
    if not first.startswith("error: "):
        return last_line("\n".join([first, *rest]))
    below = []
    for line in rest:
        if not line.startswith("    "):
            break
        below.append(line)
    return "\n".join([first.removeprefix("error: "), *below])


def last_line(traceback: str) -> str:
    """The line of a traceback that names the exception."""
    named = [line for line in traceback.splitlines() if re.match(r"[A-Za-z_][\w.]*(: |$)", line)]
    return named[-1] if named else traceback.strip().splitlines()[-1]
