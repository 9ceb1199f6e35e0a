"""Runs untrusted Python code and reports what it printed, what its calls returned and what it was refused.

    outcome = run("def double(x):\n    return 2 * x", "double", [[3], [4]])
    outcome.answers        # [Answer("value", 6), Answer("value", 8)]

Each run is a separate process (`_runner.py`) in a session of its own, and the whole process group is killed at the end.
The defences:

1. An audit hook refuses to open files outside a fresh scratch folder (the standard library may be read), to start
   processes, to send signals, to use sockets, ctypes, links or modules of C that could do so. It names what it refused.
2. Limits: 2 s of wall clock and of CPU, 256 MiB of memory, files of 1 MiB, 32 open files, no process; 64 KiB of output.
3. The kernel, where it permits: a user namespace without network whose scratch folder is 4 MiB of memory, Landlock on
   files, seccomp on system calls, no capabilities, no new privileges. `RunResult.walls` says which of them stood.
4. The child gets only the code and the arguments. Expected values stay in this process, and returned values come back as
   JSON of plain types, so that there is nothing to steal and a forged answer must still be the right value. No pickle.

The limits of these defences: an audit hook does not stop code that runs machine code or corrupts the interpreter's memory
(crafted bytecode suffices). Then only 2 and 3 remain, and where the kernel permits none of 3, such code has the rights of
this process's user. Names and sizes of files are visible (os.stat). Time can be measured.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

SECONDS = 2.0  # of wall clock, once the walls are up
START_SECONDS = 20.0  # to put the walls up; usually 20 ms, but a busy machine must not make the code look slow
MOST_OUTPUT = 65_536  # bytes
MOST_RESULTS = 1_048_576  # bytes
WALLS = ("hook", "namespace", "files", "calls")
# As `-I -S` (that is `-E -P -s -S`), but without -E, which would ignore the variable that fixes the order of sets.
FLAGS = ("-P", "-s", "-S", "-u", "-X", "utf8")
# Imported rather than run as a script, so that its bytecode is cached.
START = "import sys; sys.path.insert(0, sys.argv[1]); import _runner; del sys.path[0]; _runner.main(int(sys.argv[2]))"


class Answer(NamedTuple):
    """The result of a call: its value, or the text of its error."""

    kind: Literal["value", "raised", "odd", "missing"]
    value: Any


class RunResult(NamedTuple):
    """The result of a run."""

    problem: str  # why the code could not be loaded or was stopped; empty if it ran to its end
    answers: list[Answer]  # one per call
    output: str
    refused: list[str]
    walls: list[str]


def run(
    code: str, name: str, calls: Sequence[Sequence[Any]], seconds: float = SECONDS, walls: Sequence[str] = WALLS
) -> RunResult:
    """Load the code and call its function `name` with each list of plain arguments."""
    request = repr({"code": code, "name": name, "calls": [list(call) for call in calls], "walls": list(walls)})
    results, channel = os.pipe()
    with tempfile.TemporaryDirectory(prefix="code-", ignore_cleanup_errors=True) as folder:
        child = subprocess.Popen(
            [sys.executable, *FLAGS, "-c", START, str(Path(__file__).parent), str(channel)],
            cwd=os.path.realpath(folder),
            env={"PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(channel,),
            start_new_session=True,
        )
        os.close(channel)
        try:
            output, reported, stopped = _listen(child, results, request.encode("utf-8", "surrogatepass"), seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
            os.close(results)
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
    return _read(reported, output, stopped or _ending(status), len(calls))


def _listen(child: subprocess.Popen[bytes], results: int, request: bytes, seconds: float) -> tuple[bytes, bytes, str]:
    """(what the child printed, what it reported, why it was stopped); the last is empty if it ended by itself."""
    assert child.stdin is not None
    assert child.stdout is not None
    until, limit, started = time.monotonic() + START_SECONDS, START_SECONDS, False
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(request)
        child.stdin.close()
    heard = {child.stdout.fileno(): bytearray(), results: bytearray()}
    most = {child.stdout.fileno(): (MOST_OUTPUT, "printed"), results: (MOST_RESULTS, "returned")}
    stopped = ""
    with selectors.DefaultSelector() as selector:
        for source in heard:
            selector.register(source, selectors.EVENT_READ)
        while selector.get_map() and not stopped:
            remaining = until - time.monotonic()
            ready = selector.select(remaining) if remaining > 0 else []
            if remaining <= 0:
                stopped = f"stopped after {limit:g} s"
            for key, _ in ready:
                part = os.read(key.fd, 65_536)
                heard[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
                if not started and b"\n" in heard[results]:
                    until, limit, started = time.monotonic() + seconds, seconds, True
                if len(heard[key.fd]) > most[key.fd][0]:
                    stopped = f"stopped: more than {most[key.fd][0]} bytes were {most[key.fd][1]}"
    output, reported = (bytes(part) for part in heard.values())
    return output[:MOST_OUTPUT], reported, stopped


def _ending(status: int) -> str:
    if status == 0:
        return ""
    if status == -signal.SIGXCPU:
        return f"stopped after {SECONDS:g} s"
    return f"the process ended by {signal.Signals(-status).name}" if status < 0 else f"the process exited with {status}"


def _read(reported: bytes, output: bytes, stopped: str, calls: int) -> RunResult:
    """The result in the child's report. The child is not trusted: lines of any other form are ignored."""
    problem, loaded, answers, refused, walls = "", False, list[Answer](), list[str](), list[str]()
    for line in reported.split(b"\n"):
        try:
            [(kind, value)] = json.loads(line).items()
        except (ValueError, AttributeError, RecursionError):
            continue
        if kind == "value":
            answers.append(Answer("value", value))
        elif kind in ("raised", "odd"):
            answers.append(Answer(kind, printable(str(value))))
        elif kind == "failed":
            problem = problem or str(value)
        elif kind == "refused":
            refused.append(printable(str(value)))
        elif kind == "loaded":
            loaded = True
        elif kind == "walls" and not walls:
            walls = [str(name) for name in value] if isinstance(value, list) else []
    if not problem and (not loaded or len(answers) < calls):
        problem = stopped or "the process ended before the code did"
    answers = [*answers[:calls], *[Answer("missing", "no answer")] * max(0, calls - len(answers))]
    text = printable(output.decode("utf-8", "backslashreplace"))
    return RunResult(printable(problem), answers, text, refused, walls)


def printable(text: str) -> str:
    """Text that every file and database accepts. Memory addresses, which differ between runs, become 0x…."""
    text = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return re.sub(r"\b0x[0-9a-f]{6,}", "0x…", text)


def same(value: Any, expected: Any) -> bool:
    """Whether plain values are equal. True does not equal 1, and floats may differ by one part in 10^9."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        if isinstance(value, int) and isinstance(expected, int):
            return value == expected
        with contextlib.suppress(OverflowError):  # an integer larger than any float
            return math.isclose(value, expected, rel_tol=1e-9)
        return False
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in value)
    return type(value) is type(expected) and bool(value == expected)
