"""Runs untrusted Python code and reports what it printed, what its calls returned and what it was refused.

    outcome = run("def double(x):\n    return 2 * x", "double", [[3], [4]])
    outcome.answers        # [Answer("value", 6), Answer("value", 8)]

Each run is a separate process (`_runner.py`) in a session of its own, and the whole process group is killed at the end.
All decisions are made outside that process, where its code cannot reach them:

1. calls: a seccomp filter allows the system calls that a Python program needs. On those that would reach files, processes,
   signals, priorities, sockets or the kernel, the kernel asks this process (`_calls.py`), which refuses and counts them.
2. files: Landlock allows a fresh scratch folder and, for reading, the standard library and the system's C libraries.
3. namespace: a user namespace without network, whose scratch folder is 4 MiB of memory. Not every machine permits it, and
   the others hold without it.
4. Limits: 100,000 lines, so that code without an end always ends at the same place; for what lines do not count, 2 s of
   wall clock and of CPU. 256 MiB of memory, files of 1 MiB, 32 open files, one process with one thread; 64 KiB of output.
   No capabilities, no new privileges.
5. The child gets only the code and the arguments. Expected values stay in this process, and returned values come back as
   JSON of plain types, so that there is nothing to steal and a forged answer must still be the right value. No pickle.

Where `calls` or `files` cannot stand (they need Linux 5.13 on x86-64, and a container that permits seccomp and Landlock), no
code runs: MissingWallsError. `needed=()` allows it nevertheless; `needed_walls` decides on that for a task.

The limits of these defences: a bug in the kernel's part of an allowed call. Names and sizes of files are visible (os.stat).
Time can be measured.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
import os
import re
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from environments.kit.sandbox import _calls, _runner

SECONDS = 2.0  # of wall clock, once the walls are up
START_SECONDS = 20.0  # to put the walls up; usually 20 ms, but a busy machine must not make the code look slow
MOST_OUTPUT = 65_536  # bytes
MOST_RESULTS = 1_048_576  # bytes
TOO_LONG = f"stopped after {_runner.LINES:,} lines"
WALLS = ("namespace", "files", "calls")
NEEDED = ("files", "calls")
# As `-I -S` (that is `-E -P -s -S`), but without -E, which would ignore the variable that fixes the order of sets.
FLAGS = ("-P", "-s", "-S", "-u", "-X", "utf8")
CORES = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))
RUNNER = Path(__file__).with_name("_runner.py")
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


MISSING = (
    "the sandbox for untrusted code lacks walls on this machine: %s. They need Linux 5.13 or later on x86-64 with Landlock "
    "(files) and seccomp notifications (calls), and a container must permit both"
)


class MissingWallsError(PermissionError):
    """This machine does not permit the walls without which no untrusted code may run."""


def run(
    code: str,
    name: str,
    calls: Sequence[Sequence[Any]],
    seconds: float = SECONDS,
    walls: Sequence[str] = WALLS,
    needed: Sequence[str] = NEEDED,
) -> RunResult:
    """Load the code and call its function `name` with each list of plain arguments.

    Threads may do this together: as many processes run as there are cores, so that none lacks time because of the others.
    MissingWallsError, and nothing was run, where one of the `needed` walls does not stand.
    """
    with (
        CORES,
        tempfile.TemporaryDirectory(prefix="code-", ignore_cleanup_errors=True) as folder,
        _Child(folder) as child,
    ):
        pid = child.process.pid
        wanted = [wall for wall in walls if wall != "calls" or child.watch.memory >= 0]
        request: dict[str, Any] = {"code": code, "name": name, "calls": [list(call) for call in calls]}
        request |= {"walls": wanted, "needed": list(needed)}
        request |= {"program": _calls.program(pid), "last_program": _calls.last_program()}
        stopped = child.listen(repr(request).encode("utf-8", "surrogatepass"), seconds)
        status = child.end()
    if child.walls is not None and (missing := [wall for wall in needed if wall not in child.walls]):
        raise MissingWallsError(MISSING % ", ".join(missing))
    refused = [printable(refusal) for refusal in child.watch.refused]
    if status == -signal.SIGSYS:
        refused.append("a system call of another architecture")
    problem, answers = _read(bytes(child.reported), stopped or _ending(status), len(calls))
    output = printable(child.output[:MOST_OUTPUT].decode("utf-8", "backslashreplace"))
    output = output.replace(f"{RUNNER}:", f"{RUNNER.name}:")  # of warnings: the same text wherever the project is
    return RunResult(problem, answers, output, refused, child.walls or [])


class _LateError(Exception):
    """Trusted code took too long."""


def run_trusted(code: str, name: str, calls: Sequence[Sequence[Any]], seconds: float = SECONDS) -> RunResult:
    """The same in this process, which takes a tenth of the time: for code that the task's own data were made of. In the
    main thread alone, whose clock stops it."""
    reported: list[str] = []
    late: list[str] = []  # why it was stopped

    def stop(why: str) -> None:
        late.append(why)
        raise _LateError

    def tell(kind: str, value: str) -> None:
        if late:
            raise _LateError
        reported.append(f'{{"{kind}": {value}}}')

    before, traced = signal.signal(signal.SIGVTALRM, lambda *_: stop(f"stopped after {seconds:g} s")), sys.gettrace()
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)  # of the processor: a busy machine changes nothing
    try:
        with _little_memory():
            _runner.serve(code, name, copy.deepcopy([list(call) for call in calls]), tell, lambda: stop(TOO_LONG))
    except _LateError:
        pass
    finally:
        sys.settrace(traced)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    problem, answers = _read("\n".join(reported).encode(), "".join(late[:1]), len(calls))
    return RunResult(problem, answers, "", [], [])


@contextlib.contextmanager
def _little_memory() -> Iterator[None]:
    """This process gets at most as much more memory as a process of the code's own has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _runner.MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def needed_walls(settings: Path) -> tuple[str, ...]:
    """The walls without which a task's code must not run, by its settings: {"allow_missing_walls": false} needs them all.

    MissingWallsError where this machine does not permit them. Where the settings allow that, there is a warning instead.
    """
    missing = [wall for wall in NEEDED if wall not in _standing()]
    if not missing:
        return NEEDED
    if json.loads(settings.read_text())["allow_missing_walls"] is not True:
        advice = f"To run the code nevertheless, with your own rights, set allow_missing_walls to true in {settings}"
        raise MissingWallsError(f"{MISSING % ', '.join(missing)}. {advice}")
    effect = "without the first it may read your files, without the second it may do what you may, and is not counted"
    warnings.warn(f"{MISSING % ', '.join(missing)}. Code runs nevertheless: {effect}", RuntimeWarning, stacklevel=2)
    return tuple(wall for wall in NEEDED if wall not in missing)


@functools.cache
def _standing() -> list[str]:
    """The walls that this machine permits, seen in a run."""
    return run("def f():\n    pass", "f", [], needed=()).walls


class _Child:
    """The process of one run, its two channels, and the watch over its system calls."""

    def __init__(self, folder: str) -> None:
        self.scratch = os.path.realpath(folder)
        self.results, channel = socket.socketpair()
        with channel:
            self.process = subprocess.Popen(
                [sys.executable, *FLAGS, "-c", START, str(RUNNER.parent), str(channel.fileno())],
                cwd=self.scratch,
                env={"PYTHONHASHSEED": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(channel.fileno(),),
                start_new_session=True,
            )
        self.output, self.reported = bytearray(), bytearray()
        self.watch = _calls.Watch(self.process.pid, self.scratch)
        self.walls: list[str] | None = None  # that stand, once the child has said so

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.watch.close()
        self.results.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def end(self) -> int:
        """Kill the whole process group, and return the status with which the process ended."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def listen(self, request: bytes, seconds: float) -> str:
        """Send the request and serve the child to its end. Returns why it was stopped; empty if it ended by itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(request)
            self.process.stdin.close()
        limit = START_SECONDS
        until = time.monotonic() + limit
        channels = {self.process.stdout.fileno(), self.results.fileno()}
        with selectors.DefaultSelector() as selector:
            for channel in channels:
                selector.register(channel, selectors.EVENT_READ)
            while channels:
                remaining = until - time.monotonic()
                if remaining <= 0:
                    return f"stopped after {limit:g} s"
                for key, _ in selector.select(remaining):
                    if not self._serve(key.fd):
                        selector.unregister(key.fd)
                        channels.discard(key.fd)
                if self.walls is None and b"\n" in self.reported:
                    limit, until = seconds, time.monotonic() + seconds
                    self._begin()
                    if self.watch.listener >= 0:
                        selector.register(self.watch.listener, selectors.EVENT_READ)
                for heard, most, what in (
                    (self.output, MOST_OUTPUT, "printed"),
                    (self.reported, MOST_RESULTS, "returned"),
                ):
                    if len(heard) > most:
                        return f"stopped: more than {most} bytes were {what}"
        return ""

    def _serve(self, channel: int) -> bool:
        """Take what waits in a channel; False at its end."""
        if channel == self.watch.listener:
            return self.watch.answer()
        if channel != self.results.fileno():
            part = os.read(channel, 65_536)
            self.output += part
            return bool(part)
        try:
            part, listeners, _, _ = socket.recv_fds(self.results, 65_536, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return False
        self.reported += part
        for listener in listeners:
            if self.watch.listener < 0:
                self.watch.listener = listener
            else:
                os.close(listener)
        return bool(part)

    def _begin(self) -> None:
        """Read the first line, which the child writes before it runs any code: the walls that stand, and its library."""
        first = json.loads(self.reported.partition(b"\n")[0])
        self.walls = first["walls"]
        self.watch.allow_reading([*first["library"], str(RUNNER)])  # Python shows its lines in tracebacks


def _ending(status: int) -> str:
    if status == 0:
        return ""
    if status == _runner.LATE:
        return TOO_LONG
    if status == -signal.SIGXCPU:
        return f"stopped after {SECONDS:g} s"
    return f"the process ended by {signal.Signals(-status).name}" if status < 0 else f"the process exited with {status}"


def _read(reported: bytes, stopped: str, calls: int) -> tuple[str, list[Answer]]:
    """(the problem, one answer per call) in the child's report, which is not trusted: other lines are ignored."""
    problem, loaded, answers = "", False, list[Answer]()
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
        elif kind == "loaded":
            loaded = True
    if not problem and (not loaded or len(answers) < calls):
        problem = stopped or "the process ended before the code did"
    return printable(problem), [*answers[:calls], *[Answer("missing", "no answer")] * max(0, calls - len(answers))]


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
