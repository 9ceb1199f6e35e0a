"""The sandbox for untrusted code: what a run gives, and real attacks, which are refused, named and counted outside it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from environments.code_repair import CodeRepair
from environments.kit import sandbox
from environments.kit.sandbox import NEEDED, MissingWallsError, RunResult, _calls, needed_walls, run, same
from steps.core.errors import explain
from tests.conftest import ROOT

DATA = ROOT / "tasks_data" / "code_repair"


LOOP = "while True:\n    pass"


def tried(code: str, **more: Any) -> RunResult:
    """A run of code that defines no function and is called by none."""
    return run(code + "\ndef f():\n    pass\n", "f", [], **more)


# --- What a run gives


def test_values_come_back_one_a_call() -> None:
    code = "def f(x):\n    print('got', x)\n    return [x, {'half': x / 2}, None, True, 'é\\ud800']"
    outcome = run(code, "f", [[1], [2]])
    assert [answer.value[:2] for answer in outcome.answers] == [[1, {"half": 0.5}], [2, {"half": 1.0}]]
    assert outcome.answers[0].value[2:] == [None, True, "é\ud800"]
    assert (outcome.problem, outcome.output, outcome.refused) == ("", "got 1\ngot 2\n", [])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("(1, 2)", "a tuple"),
        ("{1, 2}", "a set"),
        ("{1: 2}", "a dict whose keys are not all text"),
        ("b'x'", "a bytes"),
        ("float('nan')", "a float"),
        ("type('Sly', (int,), {'__eq__': lambda *_: True})(3)", "a Sly"),
        ("type('Sly', (list,), {'__len__': lambda *_: 0})([3])", "a Sly"),
        ("[0] * 90_000", "a value of more than 50000 characters"),
        ("(lambda x: (x.append(x), x)[1])([])", "a value of more than 40 levels"),
    ],
)
def test_only_plain_values_come_back(value: str, said: str) -> None:
    outcome = run(f"def f():\n    return {value}", "f", [[], []])
    assert [tuple(answer) for answer in outcome.answers] == [("odd", said)] * 2


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def f(:", "SyntaxError: invalid syntax (line 1)"),
        ("x = 1\ny = z", "NameError: name 'z' is not defined (line 2)"),
        ("g = 1", "it defines no f"),
        ("f = 1\nraise SystemExit(0)", "SystemExit: 0 (line 2)"),
        ("import os\nos._exit(0)", "the process ended before the code did"),
        ("import os\nos._exit(7)", "the process exited with 7"),
        ("import os\nos.abort()", "the process ended by SIG"),
        ("class Bad(Exception):\n    __str__ = None\nraise Bad", "Bad (line 3)"),
    ],
)
def test_what_went_wrong_is_said(code: str, problem: str) -> None:
    outcome = run(code, "f", [[]])
    assert outcome.problem.startswith(problem)
    assert outcome.answers[0].kind == "missing"


def test_the_same_run_gives_the_same_outcome() -> None:
    code = "def f():\n    print(object(), {'a', 'b', 'c', 'd', 'e'})\n    return list({'x', 'y', 'z', 'w'})"
    first, again = run(code, "f", [[]]), run(code, "f", [[]])
    assert first == again
    assert "object at 0x…>" in first.output


def test_usual_modules_can_be_imported() -> None:
    names = "zoneinfo sqlite3 ssl multiprocessing asyncio tempfile "
    names += "math cmath re json random itertools functools collections heapq bisect string datetime decimal fractions"
    names += (
        " statistics dataclasses enum typing copy operator textwrap unicodedata hashlib struct uuid unittest abc io"
    )
    outcome = tried(
        f"import {', '.join(names.split())}\nprint(hashlib.sha256(b'').hexdigest()[:6], random.random() < 1)"
    )
    assert (outcome.problem, outcome.refused, outcome.output) == ("", [], "e3b0c4 True\n")


@pytest.mark.parametrize(
    ("given", "expected", "equal"),
    [
        (1, 1, True),
        (1, 2, False),
        (1, True, False),
        (True, True, True),
        (0, False, False),
        (2, 2.0, True),
        (0.1 + 0.2, 0.3, True),
        (0.30001, 0.3, False),
        (10**400, 1.5, False),
        (10**400, 10**400 + 1, False),
        ("1", 1, False),
        ("a", "a", True),
        (None, None, True),
        (None, False, False),
        ([], {}, False),
        ([1, [2]], [1, [2]], True),
        ([1], [1, 1], False),
        ({"a": [1]}, {"a": [1]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, {"b": 1}, False),
    ],
)
def test_equality_is_strict(given: Any, expected: Any, equal: bool) -> None:
    assert same(given, expected) == same(expected, given) == equal


# --- Attacks


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    pass",
        "x = []\nwhile True:\n    x.append(1)",  # before its memory is used up, which takes about two seconds
        "while True:\n    try:\n        1 / 0\n    except BaseException:\n        pass",
        "exec('while True:\\n    pass')",
        "sum(1 for _ in iter(int, 1))",
    ],
)
def test_a_loop_without_end_is_stopped_by_its_lines(code: str) -> None:
    assert tried(code, seconds=60).problem == "stopped after 100,000 lines"


def test_lines_are_counted_over_all_calls_and_those_of_the_library_are_not() -> None:
    loop = "def f(n):\n    for _ in range(n):\n        pass\n    return string.capwords('a ' * 50_000)[:1]"
    answers = run(f"import string\n{loop}", "f", [[24_000]] * 3, seconds=60).answers
    assert [answer.kind for answer in answers] == ["value", "value", "missing"]
    recursion = "def f(n):\n    while n:\n        n = 1\n    return g(n)\ndef g(n):\n    return g(n)"
    outcome = run(recursion, "f", [[0], [1]], seconds=60)  # the error at the limit of recursion ends no count
    assert [answer.kind for answer in outcome.answers] == ["raised", "missing"]
    assert outcome.problem == "stopped after 100,000 lines"


def test_what_a_loop_without_end_printed_is_always_the_same() -> None:
    code = "n = 0\nwhile True:\n    n += 1\n    if n % 10_000 == 0:\n        print(n)"
    assert tried(code).output == tried(code, seconds=60).output == "10000\n20000\n30000\n"


@pytest.mark.parametrize(
    "code", ["import time\ntime.sleep(60)", "x = 9\nx ** x ** x", "import sys\nsys.settrace(None)\n" + LOOP]
)
def test_a_run_without_end_is_stopped(code: str) -> None:
    assert tried(code, seconds=0.4).problem == "stopped after 0.4 s"


def test_a_run_that_ignores_signals_is_stopped() -> None:
    code = "import signal\nfor n in (1, 2, 3, 13, 14, 15, 24):\n    signal.signal(n, signal.SIG_IGN)\n"
    assert tried(f"{code}import sys\nsys.settrace(None)\n{LOOP}", seconds=0.4).problem == "stopped after 0.4 s"


@pytest.mark.parametrize(
    "code", ["x = bytearray(10**9)", "x = [0] * 10**9", "x = []\nwhile True:\n    x.append('y' * 10**6 + str(len(x)))"]
)
def test_memory_is_limited(code: str) -> None:
    assert tried(code).problem.startswith("MemoryError")


def test_output_is_limited() -> None:
    outcome = tried("while True:\n    print('x' * 10_000)")
    assert outcome.problem == "stopped: more than 65536 bytes were printed"
    assert len(outcome.output) == sandbox.MOST_OUTPUT


def test_deep_recursion_is_an_exception_or_the_end_of_the_process() -> None:
    assert run("def f(n):\n    return f(n + 1)", "f", [[0]]).answers[0].value.startswith("RecursionError")
    code = "class A:\n    def __repr__(self):\n        return repr(self)\nrepr(A())"
    assert tried("import sys\nsys.setrecursionlimit(10**9)\n" + code).problem


# Each is an expression. None does harm where a wall is missing: signal 0 is none, what they would remove is not there, and
# they set what is already set.
PROCESSES = {
    "os.fork()": "starting a process (clone)",
    "os.system('true') and 1 / 0": "starting a process (clone)",
    "os.execv('/bin/true', ['true'])": "running a program (execve)",
    "os.posix_spawn('/bin/true', ['true'], {})": "starting a process (clone)",
    "os.popen('true')": "starting a process (",  # vfork; clone since Python 3.13
    "__import__('subprocess').run(['true'])": "starting a process (vfork)",
    "os.kill(os.getppid(), 0)": "sending a signal (kill)",
    "os.killpg(os.getpgid(os.getppid()), 0)": "sending a signal (kill)",
    "os.kill(-1, 0)": "sending a signal (kill)",
    "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)": "reaching another process (pidfd_open)",
    "signal.pidfd_send_signal(0, 0)": "sending a signal (pidfd_send_signal)",
    "libc.syscall(297, os.getppid(), os.getppid(), 0, None) == -1 and 1 / 0": "sending a signal (rt_tgsigqueueinfo)",
    "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getpid())": "using fcntl for more than flags and locks (fcntl)",
    "fcntl.fcntl(os.pipe()[0], 10, 0)": "using fcntl for more than flags and locks (fcntl)",  # F_SETSIG
    "fcntl.ioctl(os.pipe()[0], 0x8901, b'\\0' * 4)": "controlling a device (ioctl)",  # FIOSETOWN
    "os.sched_setaffinity(0, os.sched_getaffinity(0))": "changing priorities or cores (sched_setaffinity)",
    "os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))": "changing priorities or cores (sched_setaffinity)",
    "os.sched_setscheduler(0, 0, os.sched_param(0))": "changing priorities or cores (sched_setscheduler)",
    "os.sched_setparam(0, os.sched_param(0))": "changing priorities or cores (sched_setparam)",
    "os.setpriority(0, 0, os.getpriority(0, 0))": "changing priorities or cores (setpriority)",
    "os.nice(1)": "changing priorities or cores (setpriority)",
    "libc.syscall(251, 1, 0, 0) == -1 and 1 / 0": "changing priorities or cores (ioprio_set)",
    "libc.syscall(314, 0, None, 0) == -1 and 1 / 0": "changing priorities or cores (sched_setattr)",
    "__import__('resource').prlimit(os.getppid(), 0)": "reaching another process (prlimit64)",
    "libc.ptrace(16, os.getppid(), 0, 0) == -1 and 1 / 0": "reaching another process (ptrace)",
    "libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0) == -1 and 1 / 0": "reaching another process (process_vm_readv)",
    "os.setsid()": "leaving the group of processes (setsid)",
}
FILES = {
    "open('/etc/passwd').read()": "opening /etc/passwd",
    "open(b'/etc/passwd').read()": "opening /etc/passwd",
    "open('../../etc/passwd')": "opening ../../etc/passwd",
    "__import__('pathlib').Path('/etc/passwd').read_text()": "opening /etc/passwd",
    "__import__('io').open_code('/etc/passwd')": "opening /etc/passwd",
    "os.open('/etc/passwd', os.O_PATH)": "opening /etc/passwd",
    "os.open('/', os.O_RDONLY)": "opening /",
    "os.open('../../passwd', 0, dir_fd=os.open('.', 0))": "opening ../../passwd",
    "open(type('Sly', (), {'__fspath__': lambda self: '/etc/passwd'})())": "opening /etc/passwd",
    "libc.open(b'/etc/passwd', 0) == -1 and 1 / 0": "opening /etc/passwd",
    "libc.syscall(257, -100, None, 0) == -1 and 1 / 0": "opening what is no path",
    "__import__('pwd').getpwall() == [] and 1 / 0": "opening /etc/passwd",
    "open('/proc/self/environ').read()": "opening /proc/self/environ",
    "open('/proc/%d/mem' % os.getppid(), 'rb')": "opening /proc/",
    "open('/dev/shm/x', 'w')": "opening /dev/shm/x",
    "open('/dev/null', 'w')": "opening /dev/null",
    "open(os.__file__, 'a')": "opening /",
    "os.open('os.py', os.O_WRONLY, dir_fd=os.open(os.path.dirname(os.__file__), os.O_RDONLY))": "opening os.py",
    "os.listdir('/')": "opening /",
    "os.chdir('/')": "leaving the folder (chdir)",
    "os.fchdir(os.open(os.path.dirname(os.__file__), 0))": "leaving the folder (fchdir)",
    "os.chroot('.')": "leaving the folder (chroot)",
    "os.remove('/etc/none')": "removing /etc/none",
    "os.rmdir('/etc/none')": "removing /etc/none",
    "os.rename('/tmp/none', 'x')": "renaming /tmp/none",
    "os.rename('x', '/tmp/none')": "renaming /tmp/none",
    "os.truncate('/tmp/none', 0)": "cutting /tmp/none",
    "os.mkdir('/tmp/none/made-by-an-attack')": "making the folder /tmp/none/",
    "os.symlink('/etc', 'etc')": "making a link, a pipe with a name or a device (symlink)",
    "os.link('/etc/passwd', 'x')": "making a link, a pipe with a name or a device (link",
    "os.mkfifo('/tmp/none/pipe')": "making a link, a pipe with a name or a device (mknod",
    "os.mknod('device')": "making a link, a pipe with a name or a device (mknod",
    "os.chmod('/tmp/none', 0o777)": "changing a file's owner, mode, times or attributes (",
    "os.chown('/tmp/none', 0, 0)": "changing a file's owner, mode, times or attributes (",
    "os.utime('/tmp/none')": "changing the times of /tmp/none",
    "os.setxattr('/tmp/none', 'user.x', b'')": "changing a file's owner, mode, times or attributes (setxattr)",
    "os.removexattr('/tmp/none', 'user.x')": "changing a file's owner, mode, times or attributes (removexattr)",
    "__import__('sqlite3').connect('/etc/none')": "opening /etc/none",
}
OTHERS = {
    "__import__('socket').socket()": "using a socket (socket)",
    "__import__('socket').socketpair()": "using a socket (socketpair)",
    "__import__('urllib.request').request.urlopen('http://127.0.0.1:1')": "using a socket (socket)",
    "os.memfd_create('x')": "sharing memory or messages (memfd_create)",
    "libc.unshare(0x10000000) == -1 and 1 / 0": "leaving the folder (unshare)",
    "libc.setns(0, 0) == -1 and 1 / 0": "leaving the folder (setns)",
    "libc.mount(None, None, None, 0, None) == -1 and 1 / 0": "leaving the folder (mount)",
    "libc.syscall(321, 0, None, 0) == -1 and 1 / 0": "reaching the kernel (bpf)",
    "libc.syscall(250, 0, 0) == -1 and 1 / 0": "reaching the kernel (keyctl)",
    "libc.syscall(298, None, 0, -1, -1, 0) == -1 and 1 / 0": "reaching the kernel (perf_event_open)",
    "libc.syscall(425, 1, None) == -1 and 1 / 0": "reaching the kernel (io_uring_setup)",
    "libc.prctl(1, 0, 0, 0, 0) == -1 and 1 / 0": "changing the user or rights (prctl)",
    "os.setuid(os.getuid())": "changing the user or rights (setuid)",
}
ATTACK = """
import ctypes, os, fcntl, signal
libc = ctypes.CDLL(None, use_errno=True)
try:
    {}
except BaseException as problem:
    print('held', type(problem).__name__)
"""
MISSPELT = ("AssertionError", "AttributeError", "ImportError", "NameError", "SyntaxError", "TypeError")


@pytest.mark.parametrize(("attack", "named"), (PROCESSES | FILES | OTHERS).items())
def test_an_attack_is_refused_and_named(attack: str, named: str) -> None:
    """By the kernel and this process alone, without Landlock; and code that catches the refusal does not hide it."""
    outcome = tried(ATTACK.format(attack), walls=["calls"], needed=["calls"])
    assert any(refusal.startswith(named) for refusal in outcome.refused), outcome
    assert outcome.output.startswith("held "), outcome
    assert outcome.output.split()[1] not in MISSPELT


LANDLOCK = (
    "open('/etc/passwd')",
    "open('/proc/self/environ')",
    "os.listdir('/etc')",
    "open('/tmp/made-by-an-attack', 'w')",
    "os.mkdir('/tmp/made-by-an-attack')",
    f"open({str(DATA / 'problems.jsonl')!r})",
)
NETWORK = "__import__('socket').create_connection(('1.1.1.1', 53), 1)"


@pytest.mark.parametrize(("attack", "wall"), [*((attack, "files") for attack in LANDLOCK), (NETWORK, "namespace")])
def test_a_wall_holds_by_itself(attack: str, wall: str) -> None:
    outcome = tried(ATTACK.format(attack), walls=[wall], needed=())
    if wall not in outcome.walls:
        pytest.skip(f"this machine does not permit the wall: {wall}")
    assert outcome.output.startswith("held "), outcome
    assert outcome.output.split()[1] not in MISSPELT


def test_threads_do_not_start_and_are_no_attack() -> None:
    outcome = tried("import threading\nthreading.Thread(target=print).start()")
    assert outcome.problem.startswith("RuntimeError: can't start new thread")
    assert outcome.refused == []


def test_a_call_of_another_architecture_ends_the_process() -> None:
    """x32 has other numbers for the same calls."""
    outcome = tried("import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 39)")
    assert outcome.problem == "the process ended by SIGSYS"
    assert outcome.refused == ["a system call of another architecture"]


PARENT = '''
import ctypes, os
from environments.kit.sandbox import run
libc = ctypes.CDLL(None)
libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())  # as an ordinary user has none,
libc.prctl(38, 1, 0, 0, 0)  # and gets none by starting a program
before = os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(0, 0)
outcome = run("""
import os, signal
for attack in (
    lambda: os.sched_setaffinity(os.getppid(), [min(os.sched_getaffinity(0))]),
    lambda: os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0)),
    lambda: os.setpriority(0, os.getppid(), os.getpriority(0, 0) + 1),
    lambda: signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGTERM),
):
    try:
        attack()
        print('done')
    except OSError:
        print('held')
def f(): pass
""", 'f', [])
assert outcome.output == 'held\\n' * 4, outcome
assert len(outcome.refused) == 4, outcome
assert before == (os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(0, 0))
print('as it was')
'''


def test_the_code_cannot_slow_its_parent_or_change_its_cores() -> None:
    """The parent here has no privileges, so that only the sandbox stands between it and its child."""
    process = subprocess.run([sys.executable, "-c", PARENT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout) == (0, "as it was\n"), process.stderr


def test_metadata_of_a_file_cannot_be_changed(tmp_path: Path) -> None:
    """Landlock does not hold these; the file belongs to the user who runs the code."""
    file = tmp_path / "of-the-user.txt"
    file.write_text("kept")
    file.chmod(0o640)
    before = file.stat()
    code = f"""
import os
path = {str(file)!r}
for attack in (
    lambda: os.chmod(path, 0o777),
    lambda: os.chown(path, os.getuid(), os.getgid()),
    lambda: os.utime(path, (1, 1)),
    lambda: os.setxattr(path, 'user.x', b'1'),
    lambda: os.truncate(path, 0),
    lambda: os.mkfifo({str(tmp_path / "pipe")!r}),
):
    try:
        attack()
        print('done')
    except OSError:
        print('held')
"""
    outcome = tried(code)
    assert outcome.output == "held\n" * 6
    assert len(outcome.refused) == 6
    after = file.stat()
    assert (before.st_mode, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_mode,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )
    assert (file.read_text(), os.listxattr(file), list(tmp_path.iterdir())) == ("kept", [], [file])


TRICKS = {  # that defeat checks within the process; attempts at a file follow
    "the functions of a traceback replaced": """
for frame in frames:
    for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
        if hasattr(value, '__code__'):
            try:
                value.__code__ = value.__code__.replace(co_code=(lambda *a: None).__code__.co_code, co_consts=(None,))
            except ValueError:
                pass
""",
    "create_dynamic with a dotted name": """
import importlib.machinery, importlib.util, _imp
origin = importlib.machinery.PathFinder.find_spec('_ctypes').origin
_imp.create_dynamic(importlib.util.spec_from_file_location('harmless._ctypes', origin))
""",
    "bytecode": "exec(__import__('marshal').loads(__import__('marshal').dumps(compile('pass', 'x', 'exec'))))",
    "every builtin replaced": """
import builtins
builtins.repr = builtins.type = builtins.isinstance = builtins.eval = builtins.len = builtins.any = lambda *a: True
""",
    "the descriptors closed": "os.closerange(3, 40)",
    "the descriptors replaced": """
for fd in range(3, 30):
    os.dup2(1, fd)
""",
    "the descriptors do not block": """
for fd in range(3, 40):
    try:
        os.set_blocking(fd, False)
    except OSError:
        pass
""",
    "signals while it is refused": """
import signal
signal.signal(14, lambda *_: None)
signal.setitimer(0, 0.0001, 0.02)
""",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_opens_a_file_or_hides_the_attempts(trick: str) -> None:
    code = f"""
import os, sys
frames = []
try:
    open('/etc/passwd')
except OSError as problem:
    step = problem.__traceback__
    while step:
        frames.append(step.tb_frame)
        step = step.tb_next
frame = sys._getframe()
while frame:
    frames.append(frame)
    frame = frame.f_back
{TRICKS[trick]}
for _ in range(4):
    try:
        os.open('/etc/passwd', os.O_RDONLY)
    except BaseException:
        pass
    else:
        print('opened')
print('to the end')
"""
    outcome = tried(code, seconds=60)  # on a busy machine each answer of the parent's takes longer
    assert outcome.refused.count("opening /etc/passwd") >= 5
    assert outcome.output.startswith("to the end\n")


def test_a_warning_that_names_the_runner_is_no_attack() -> None:
    """Python looks for the line of the caller, which is in the runner's file."""
    outcome = run("import warnings\ndef f():\n    warnings.warn('careful', stacklevel=2)\n    return 1", "f", [[]])
    assert re.fullmatch(r"_runner\.py:\d+: UserWarning: careful\n", outcome.output)
    assert outcome.refused == []


def test_a_loop_of_attempts_names_twenty_and_is_stopped() -> None:
    attempt = "    try:\n        os.fork()\n    except OSError:\n        for _ in range(100):\n            pass"
    outcome = tried(f"import os\nwhile True:\n{attempt}", seconds=60)
    assert outcome.problem == "stopped after 100,000 lines"
    assert outcome.refused == ["starting a process (clone)"] * _calls.MOST_REFUSED


def test_the_repository_cannot_be_read() -> None:
    for path in (DATA / "problems.jsonl", Path(sandbox.__file__), ROOT / "params.yaml", ROOT / ".git"):
        outcome = tried(f"open({str(path)!r})")
        assert outcome.refused == [f"opening {str(path)[:80]}"]
    for attack in ("import environments", "import tests", "from environments import code_repair"):
        assert tried(attack).problem.startswith("ModuleNotFoundError")


# --- Machines with fewer walls


def test_no_code_runs_where_a_wall_is_missing(tmp_path: Path) -> None:
    """The file would be made where code ran: the last lines show it."""
    made = tmp_path / "made"
    code = f"open({str(made)!r}, 'w')"
    for walls, missing in (((), "files, calls"), (("files",), "calls"), (("calls",), "files")):
        with pytest.raises(MissingWallsError, match=rf"lacks walls on this machine: {missing}\. They need Linux 5\.13"):
            tried(code, walls=walls)
    assert not made.exists()
    assert tried(code, walls=(), needed=()).problem == ""
    assert made.exists()


def test_calls_are_no_wall_where_paths_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_calls, "MEMORY", "/proc/%d/none")
    with pytest.raises(MissingWallsError, match="machine: calls"):
        tried("pass")


def test_the_task_is_refused_where_a_wall_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_standing", lambda: ["namespace", "files"])
    with pytest.raises(
        MissingWallsError, match=r"machine: calls\..* set allow_missing_walls to true in .*\.json"
    ) as caught:
        CodeRepair.load(DATA)
    assert explain(caught.value) == (str(caught.value), 2)
    settings = tmp_path / "sandbox.json"
    settings.write_text('{"allow_missing_walls": true}')
    with pytest.warns(RuntimeWarning, match="machine: calls"):
        assert needed_walls(settings) == ("files",)
    settings.write_text('{"allow_missing_walls": "no"}')
    with pytest.raises(MissingWallsError):
        needed_walls(settings)


def test_the_task_needs_all_walls_where_they_stand() -> None:
    assert tuple(CodeRepair.load(DATA).needed) == NEEDED


# --- What is the code's own


def test_an_attack_that_is_not_refused_is_seen_by_these_tests() -> None:
    """Without any wall the same attacks succeed: the tests above can fail."""
    for attack in ("open('/etc/passwd')", "os.fork() or os._exit(0)", "__import__('socket').socket()"):
        code = f"import os\ntry:\n    {attack}\nexcept BaseException:\n    print('held')"
        assert tried(code, walls=[], needed=()).output == ""


def test_the_environment_holds_nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOP_SECRET", "hunter2")
    outcome = tried("import os, sys\nprint(dict(os.environ), sys.argv)")
    assert outcome.output == "{'HOME': '/'} []\n"


def test_the_scratch_folder_is_the_codes_own_and_goes_away() -> None:
    code = """
import os
open('a.txt', 'w').write('kept')
os.mkdir('b'), open('b/c.txt', 'w').close(), os.rename('a.txt', 'b/a.txt')
print(os.listdir(), sorted(os.listdir('b')), open('b/a.txt').read())
os.utime('b/a.txt'), os.truncate('b/a.txt', 1), __import__('pathlib').Path('d.txt').touch(), os.remove('d.txt')
__import__('shutil').rmtree('b')
print(os.listdir())
print(os.getcwd())
"""
    for walls in (["calls"], sandbox.WALLS):
        outcome = tried(code, walls=walls, needed=["calls"])
        first, second, folder = outcome.output.splitlines()
        assert (first, second, outcome.refused) == ("['b'] ['a.txt', 'c.txt'] kept", "[]", [])
        assert not Path(folder).exists()


def test_files_are_limited() -> None:
    assert "File too large" in tried("open('x', 'wb').write(bytes(5_000_000))").problem
    outcome = tried("for n in range(300):\n    open(str(n), 'wb').write(bytes(900_000))")
    if "namespace" in outcome.walls:
        assert "No space left" in outcome.problem


def left(folder: str) -> list[str]:
    """The processes of this machine that are in a folder, or were before it was removed."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += [process.name] if str((process / "cwd").readlink()).startswith(folder) else []
    return found


def test_no_process_is_left(tmp_path: Path) -> None:
    """Every way to a second process, with walls and without; and all processes looked at afterwards."""
    code = """
import os, time
print(os.getcwd())
for way in (
    lambda: os.fork(),
    lambda: os.posix_spawn('/bin/sleep', ['sleep', '30'], {}),
    lambda: os.system('sleep 30 &'),
):
    try:
        way()
    except BaseException:
        pass
time.sleep(30)
"""
    for walls in (sandbox.WALLS, ()):  # without walls they do start, and go with the group
        outcome = tried(code, seconds=0.5, walls=walls, needed=())
        assert outcome.problem == "stopped after 0.5 s"
        assert len(outcome.refused) == (3 if walls else 0)
        time.sleep(0.2)
        assert left(outcome.output.splitlines()[0]) == []
    with subprocess.Popen(["sleep", "30"], cwd=tmp_path) as process:  # so that this can fail
        assert left(str(tmp_path)) == [str(process.pid)]
        process.kill()
