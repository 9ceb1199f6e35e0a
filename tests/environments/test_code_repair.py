"""Code repair: a sandbox that holds against real attacks, wall by wall; problems that are right; and their reward."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from environments import _mutants, _sandbox
from environments._mutants import mutants
from environments._sandbox import RunResult, run, same
from environments.base import Message, Scenario, Split, split_of, use
from environments.code_repair import LONGEST_CODE, SHARES, CodeRepair, Problems, shorten, submitted
from tests.conftest import ROOT

DATA = ROOT / "tasks_data" / "code_repair"
SPLITS: tuple[Split, ...] = ("train", "val", "test")
REFERENCE = "def double(x):\n    return 2 * x\n"
DOUBLE: dict[str, Any] = {
    "name": "double",
    "signature": "double(x)",
    "statement": "Twice x.",
    "difficulty": 1,
    "examples": [[[1], 2], [[4], 8]],
    "tests": [[[0], 0], [[3], 6], [[-2], -4]],
    "reference": REFERENCE,
}
EMPTY = Problems({split: [] for split in SPLITS}, {})


@pytest.fixture(scope="module")
def data() -> Problems:
    return CodeRepair.load(DATA)


def double() -> CodeRepair:
    return CodeRepair(CodeRepair.from_problem("train", DOUBLE, None), EMPTY)


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
    names = "math cmath re json random itertools functools collections heapq bisect string datetime decimal fractions"
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


@pytest.mark.parametrize("code", ["while True:\n    pass", "import time\ntime.sleep(60)", "9 ** 9 ** 9"])
def test_a_run_without_end_is_stopped(code: str) -> None:
    assert tried(f"x = 9\n{code}".replace("9 ** 9", "x ** x"), seconds=0.4).problem == "stopped after 0.4 s"


def test_a_run_that_ignores_signals_is_stopped() -> None:
    code = "import signal\nfor n in (1, 2, 3, 13, 14, 15, 24):\n    signal.signal(n, signal.SIG_IGN)\n"
    assert tried(code + "while True:\n    pass", seconds=0.4).problem == "stopped after 0.4 s"


@pytest.mark.parametrize(
    "code", ["x = bytearray(10**9)", "x = [0] * 10**9", "x = []\nwhile True:\n    x.append('y' * 10**6 + str(len(x)))"]
)
def test_memory_is_limited(code: str) -> None:
    assert tried(code).problem.startswith("MemoryError")


def test_output_is_limited() -> None:
    outcome = tried("while True:\n    print('x' * 10_000)")
    assert outcome.problem == "stopped: more than 65536 bytes were printed"
    assert len(outcome.output) == _sandbox.MOST_OUTPUT


def test_deep_recursion_is_an_exception_or_the_end_of_the_process() -> None:
    assert run("def f(n):\n    return f(n + 1)", "f", [[0]]).answers[0].value.startswith("RecursionError")
    code = "class A:\n    def __repr__(self):\n        return repr(self)\nrepr(A())"
    assert tried("import sys\nsys.setrecursionlimit(10**9)\n" + code).problem


# None of them does harm where a wall is missing: signal 0 is none, and what they would remove is not there.
PROCESSES = {
    "os.fork()": "os.fork",
    "os.system('true')": "os.system",
    "os.execv('/bin/true', ['true'])": "os.exec",
    "os.posix_spawn('/bin/true', ['true'], {})": "os.posix_spawn",
    "os.popen('true')": "importing _posixsubprocess",
    "__import__('subprocess').run(['true'])": "importing _posixsubprocess",
    "__import__('pty').spawn('/bin/true')": "importing termios",
    "os.kill(os.getppid(), 0)": "os.kill",
    "os.killpg(os.getppid(), 0)": "os.killpg",
    "os.kill(-1, 0)": "os.kill",
}
FILES = {
    "open('/etc/passwd').read()": "opening /etc/passwd",
    "open(b'/etc/passwd').read()": "opening /etc/passwd",
    "open('../../etc/passwd')": "opening ../../etc/passwd",
    "__import__('pathlib').Path('/etc/passwd').read_text()": "opening /etc/passwd",
    "__import__('io').open_code('/etc/passwd')": "opening /etc/passwd",
    "os.open('/etc/passwd', os.O_RDONLY)": "opening /etc/passwd",
    "os.open('/', os.O_RDONLY)": "opening /",
    "open(type('Sly', (str,), {'startswith': lambda *_: True})('/etc/passwd'))": "opening /etc/passwd",
    "open(type('Sly', (str,), {'__class__': property(lambda self: int)})('/etc/passwd'))": "opening /etc/passwd",
    "open(type('Sly', (bytes,), {'__class__': property(lambda self: int)})(b'/etc/passwd'))": "opening what is no path",
    "open(type('Sly', (), {'__fspath__': lambda self: '/etc/passwd'})())": "opening /etc/passwd",
    "open('/proc/self/environ').read()": "opening /proc/self/environ",
    "open('/proc/%d/mem' % os.getppid(), 'rb')": "opening /proc/",
    "open('/dev/shm/x', 'w')": "opening /dev/shm/x",
    "open(os.__file__, 'a')": "opening /",
    "os.listdir('/')": "listing /",
    "os.symlink('/etc', 'etc')": "os.symlink",
    "os.link('/etc/passwd', 'x')": "os.link",
    "os.chdir('/')": "os.chdir",
    "os.remove('/etc/none')": "os.remove of /etc/none",
    "os.rename('/tmp/none', 'x')": "os.rename of /tmp/none",
    "os.chmod('/tmp/none', 0o777)": "os.chmod",
    "os.mkdir('/tmp/made-by-an-attack')": "os.mkdir of /tmp/made-by-an-attack",
    "__import__('shutil').rmtree('/proc/sys')": "opening /proc/sys",
    "__import__('sqlite3').connect('/etc/passwd')": "sqlite3.connect",
}
OTHERS = {
    "__import__('socket').socket()": "socket.__new__",
    "__import__('urllib.request').request.urlopen('http://127.0.0.1:1')": "importing _ssl",
    "__import__('ctypes')": "importing ctypes",
    "__import__('_ctypes')": "importing _ctypes",
    "__import__('readline')": "importing readline",
    "__import__('gc').get_objects()": "gc.get_objects",
    "__import__('sys').settrace(print)": "sys.settrace",
    "__import__('sys').addaudithook(print)": "sys.addaudithook",
    "(lambda: 0).__code__.replace(co_code=b'\\x00')": "code.__new__",
    "__import__('resource').setrlimit(0, (-1, -1))": "resource.setrlimit",
    # os.system by way of all classes, without a name that a filter of words would see
    "one('_wrap_close').__init__.__globals__['sys' + 'tem']('true')": "os.system",
}


@pytest.mark.parametrize(("attack", "named"), (PROCESSES | FILES | OTHERS).items())
def test_the_hook_refuses_and_names(attack: str, named: str) -> None:
    """The hook by itself, without help from the kernel; and code that catches the refusal does not hide it."""
    code = "import os\none = lambda name: [c for c in object.__subclasses__() if c.__name__ == name][0]\n"
    code += f"try:\n    {attack}\nexcept BaseException as problem:\n    print(problem)"
    outcome = tried(code, walls=["hook"])
    assert outcome.refused
    assert outcome.refused[0].startswith(named)
    assert "the sandbox refuses it" in outcome.output or "addaudithook" in attack


KERNEL = {  # attack, and the part of the kernel that is enough
    **dict.fromkeys([one for one in PROCESSES if "fork" not in one and "system" not in one], "calls"),
    "os.fork()": "calls",
    "os.symlink('/etc', 'etc')": "calls",
    "__import__('socket').socket()": "calls",
    "__import__('_posixsubprocess').fork_exec([], [b'/bin/true'], True, (), None, None, -1, -1, -1, -1, -1, -1, -1, -1, "
    "True, True, 0, None, None, None, -1, None, True)": "calls",
    "__import__('threading').Thread(target=print).start()": "calls",
    "__import__('ctypes').CDLL(None).socket(2, 1, 0) == -1 and 1 / 0": "calls",
    "open('/etc/passwd')": "files",
    "open('/proc/self/environ')": "files",
    "os.listdir('/etc')": "files",
    "open('/tmp/made-by-an-attack', 'w')": "files",
    "os.mkdir('/tmp/made-by-an-attack')": "files",
    f"open({str(DATA / 'problems.jsonl')!r})": "files",
    "__import__('socket').create_connection(('1.1.1.1', 53), 1)": "namespace",
}


@pytest.mark.parametrize(("attack", "wall"), KERNEL.items())
def test_the_kernel_refuses_without_the_hook(attack: str, wall: str) -> None:
    code = f"import os\ntry:\n    {attack}\nexcept BaseException as problem:\n    print('held', type(problem).__name__)"
    outcome = tried(code, walls=[wall])
    if wall not in outcome.walls:
        pytest.skip(f"this machine does not permit the wall: {wall}")
    assert outcome.output.startswith("held "), outcome
    assert "TypeError" not in outcome.output  # it was refused, not misspelt


def test_nothing_of_ctypes_is_left() -> None:
    """Neither its modules nor what its classes' methods lead to."""
    code = "import sys\nclasses = [c for c in object.__subclasses__() if c.__name__ in ('CDLL', 'LibraryLoader')]\n"
    code += "print([list(c.__init__.__globals__) for c in classes], [m for m in sys.modules if 'ctypes' in m])"
    assert re.fullmatch(r"\[(\[\](, )?)*\] \[\]\n", tried(code).output)


def test_an_attack_that_is_not_refused_is_seen_by_these_tests() -> None:
    """Without any wall the same attacks succeed: the tests above can fail."""
    for attack in ("open('/etc/passwd')", "os.fork() or os._exit(0)", "__import__('socket').socket()"):
        code = f"import os\ntry:\n    {attack}\nexcept BaseException:\n    print('held')"
        assert tried(code, walls=[]).output == ""


def test_the_repository_cannot_be_read() -> None:
    for path in (DATA / "problems.jsonl", Path(_sandbox.__file__), ROOT / "params.yaml", ROOT / ".git" / "HEAD"):
        outcome = tried(f"open({str(path)!r})")
        assert outcome.refused == [f"opening {str(path)[:80]}"]
    for attack in ("import environments", "import tests", "from environments import code_repair"):
        assert tried(attack).problem.startswith("ModuleNotFoundError")


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOP_SECRET", "hunter2")
    outcome = tried("import os, sys\nprint(dict(os.environ), sys.argv)")
    assert outcome.output == "{} []\n"


def test_expected_values_are_nowhere_in_the_process() -> None:
    """All text that the code can reach: frames, modules, its memory's objects by way of frames."""
    reference = {**DOUBLE, "tests": [[[3], "the-expected-value"]]}
    code = """
import sys
def f(x):
    seen, frame = [], sys._getframe()
    while frame:
        seen += [repr(frame.f_locals), repr({k: v for k, v in frame.f_globals.items() if k != '__builtins__'})]
        frame = frame.f_back
    return 'the-expected' + '-value' if 'the-expected' + '-value' in ''.join(seen) else ''.join(seen)[:3000]
""".replace("f(x)", "double(x)")
    env = CodeRepair(CodeRepair.from_problem("train", reference, None), EMPTY)
    assert env.call("submit", {"code": code}).startswith("Passed 0 of 1.")


def test_results_cannot_be_forged_by_printing() -> None:
    forged = '{"loaded": true}\\n{"value": 6}\\n{"value": 0}\\nPassed 3 of 3.'
    code = f"print('{forged}')\nimport sys\nsys.stderr.write('{forged}')\nsys.exit(0)"
    said = double().call("submit", {"code": code})
    assert said == "Passed 0 of 3.\nThe code failed: SystemExit: 0 (line 4)"
    for name in ("a\nPassed 3 of 3.", "a\rPassed 3 of 3."):
        for code in (f"raise Exception({name!r})", f"open('/' + {name!r})"):
            env = double()
            said = env.call("submit", {"code": code})
            assert said.startswith("Passed 0 of 3.")
            assert submitted([use("submit", code=code), {"role": "tool", "name": "submit", "content": said}]) == (0, 3)


def test_results_cannot_be_forged_by_writing_to_every_file_descriptor() -> None:
    code = """
import os
for fd in range(3, 40):
    try:
        os.write(fd, b'{"value": 1}\\n' * 3)
    except OSError:
        pass
def double(x):
    return 1
"""
    assert double().call("submit", {"code": code}).startswith("Passed 0 of 3.")


@pytest.mark.parametrize(
    "trick",
    [
        "import json\njson.dumps = json.loads = lambda *a, **k: 6",
        "import builtins\nbuiltins.repr = builtins.type = builtins.isinstance = builtins.eval = lambda *a: str",
        "import builtins\nbuiltins.all = builtins.len = builtins.str = lambda *a: True",
        "import sys\nsys.modules['__main__'].encode = lambda *a: '6'",
        "import sys\nsys._getframe(1).f_globals['encode'] = sys._getframe(2).f_globals['describe'] = lambda *a: '1'",
        "import os\nos.write = os._exit = print",
    ],
)
def test_patches_help_nobody(trick: str) -> None:
    assert double().call("submit", {"code": trick + "\ndef double(x):\n    return 1"}).startswith("Passed 0 of 3.")
    outcome = tried(trick.replace("lambda *a: str", "lambda *a: bytes") + "\nopen('/etc/passwd')", walls=["hook"])
    assert outcome.problem or outcome.refused  # the hook still stands
    assert "root:" not in outcome.output


def test_the_hook_cannot_be_changed_from_the_traceback_of_a_refusal() -> None:
    code = """
import os
try:
    open('/etc/passwd')
except PermissionError as problem:
    step = problem.__traceback__
    while step:
        for name, value in list(step.tb_frame.f_locals.items()):
            if step.tb_frame.f_code.co_name in ('hook', 'refuse', 'inside') and type(value) in (dict, set, list):
                print('can be changed:', name)
        step.tb_frame.f_locals.update(starts=lambda *_: False, inside=lambda *_: True)
        step = step.tb_next
print(open('/etc/passwd').read())
"""
    outcome = tried(code, walls=["hook"])
    assert outcome.refused == ["opening /etc/passwd"] * 2
    assert "root:" not in outcome.output
    assert outcome.output == ""


def test_the_scratch_folder_is_the_codes_own_and_goes_away() -> None:
    code = """
import os
open('a.txt', 'w').write('kept')
os.mkdir('b'), open('b/c.txt', 'w').close(), os.rename('a.txt', 'b/a.txt')
print(os.listdir(), sorted(os.listdir('b')), open('b/a.txt').read())
for name in os.listdir('b'):
    os.remove('b/' + name)
os.rmdir('b')
print(os.listdir())
print(os.getcwd())
"""
    for walls in (["hook"], _sandbox.WALLS):
        outcome = tried(code, walls=walls)
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
    for walls in (_sandbox.WALLS, ()):  # without walls they do start, and go with the group
        outcome = tried(code, seconds=0.5, walls=walls)
        assert outcome.problem == "stopped after 0.5 s"
        assert len(outcome.refused) == (3 if walls else 0)
        time.sleep(0.2)
        assert left(outcome.output.splitlines()[0]) == []
    with subprocess.Popen(["sleep", "30"], cwd=tmp_path) as process:  # so that this can fail
        assert left(str(tmp_path)) == [str(process.pid)]
        process.kill()


def test_a_fork_bomb_is_refused() -> None:
    outcome = tried(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", seconds=0.5
    )
    assert outcome.problem == "stopped after 0.5 s"
    assert outcome.refused == ["os.fork"] * 20  # more are not told


# --- Problems


def test_references_pass_their_tests_and_broken_programs_do_not(data: Problems) -> None:
    problems = [problem for split in SPLITS for problem in data.problems[split]]
    assert len(problems) >= 60
    assert (
        len({problem["reference"] for problem in problems})
        == len({problem["name"] for problem in problems})
        == len(problems)
    )
    for problem in problems:
        assert len(problem["tests"]) >= 6
        assert len(problem["examples"]) == 2
        names: dict[str, Any] = {}
        exec(problem["reference"], names)  # ours, so no sandbox: this is what makes all of them fast enough
        for arguments, expected in problem["examples"] + problem["tests"]:
            assert same(names[problem["name"]](*json.loads(json.dumps(arguments))), expected), problem["name"]
        shown = {json.dumps(arguments) for arguments, _ in problem["examples"]}
        assert not shown & {json.dumps(arguments) for arguments, _ in problem["tests"]}
    broken = [(problem, one) for problem in problems for one in data.broken[problem["name"]]]
    assert len(broken) > 500
    for problem, one in broken[::40]:
        outcome = run(one["code"], problem["name"], [arguments for arguments, _ in problem["tests"]])
        assert not outcome.problem
        assert _mutants.passed(outcome.answers, problem["tests"]) < len(problem["tests"])


def test_broken_programs_are_made_the_same_again(data: Problems) -> None:
    [problem] = [one for split in SPLITS for one in data.problems[split] if one["name"] == "to_seconds"]
    assert _mutants.broken(problem) == data.broken["to_seconds"]


def test_mutants_of_a_small_function() -> None:
    """A hand-made table: each small mistake, once."""
    bodies = ["x > 0 and x <= 9", "x >= 0 and x < 9", "x >= 0 and x >= 9", "x >= 1 and x <= 9"]
    bodies += ["x < 0 and x <= 9", "x >= 0 and x <= 10", "x >= 0 and x <= 8", "x >= 0 or x <= 9"]
    assert sorted(mutants("def f(x):\n    return x >= 0 and x <= 9")) == sorted(
        f"def f(x):\n    return {body}\n" for body in [*bodies[:4], "x <= 0 and x <= 9", *bodies[5:]]
    )
    swapped = mutants("def f(x):\n    if x:\n        return 'a'\n    else:\n        return 'b'")
    assert swapped == ["def f(x):\n    if x:\n        return 'b'\n    else:\n        return 'a'\n"]
    for code in mutants("def f(x):\n    return x[1:] + [-1, True, min(x)]"):
        ast.parse(code)


def test_splits_share_no_problem(data: Problems) -> None:
    names = [{problem["name"] for problem in data.problems[split]} for split in SPLITS]
    assert all(len(one) >= 10 for one in names)
    assert sum(map(len, names)) == len(set.union(*names))
    assert all(split_of(problem["reference"], SHARES) == split for split in SPLITS for problem in data.problems[split])
    for split, known in zip(SPLITS, names, strict=True):
        assert {one.data["name"] for one in CodeRepair.scenarios(data, split, 60, 3)} <= known


def test_the_same_seed_gives_the_same_scenarios(data: Problems) -> None:
    first, again, other = (CodeRepair.scenarios(data, "val", 20, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({one.id for one in first}) == 20
    assert sorted(one.data["kind"] for one in first) == ["mend"] * 10 + ["write"] * 10
    most = len(data.problems["val"]) + sum(len(data.broken[one["name"]]) for one in data.problems["val"])
    assert len({one.id for one in CodeRepair.scenarios(data, "val", most, 1)}) == most
    with pytest.raises(ValueError, match=f"ask for {most} or fewer"):
        CodeRepair.scenarios(data, "val", most + 1, 1)


def test_the_policy_sees_no_hidden_test_and_no_reference(data: Problems) -> None:
    for one in CodeRepair.scenarios(data, "train", 80, 5):
        shown = json.dumps(one.messages)
        assert one.data["reference"] not in one.messages[1]["content"]
        assert json.dumps(one.data["tests"])[1:-1] not in shown
        assert 1 <= one.data["difficulty"] <= 5
        assert one.data["signature"] in shown


# --- Tools and reward


def test_examples_are_compared_one_a_line() -> None:
    env = double()
    assert env.call("run_code", {"code": REFERENCE}) == "double(1) == 2: right\ndouble(4) == 8: right"
    wrong = env.call("run_code", {"code": "def double(x):\n    print('hm')\n    return x + 1"})
    assert wrong == "double(1) == 2: right\ndouble(4) == 5, not 8\nPrinted:\nhm\nhm"
    raised = env.call("run_code", {"code": "def double(x):\n    return (x,) if x == 1 else 1 / 0"})
    assert raised == "double(1) returned a tuple, not 2\ndouble(4) raised ZeroDivisionError: division by zero (line 2)"
    refused = env.call(
        "run_code",
        {"code": "def double(x):\n    try:\n        open('/etc/passwd')\n    except OSError:\n        return 2 * x"},
    )
    assert refused == "Refused 2: opening /etc/passwd\ndouble(1) == 2: right\ndouble(4) == 8: right"
    assert env.call("run_code", {"code": "class Error(Exception): pass\nraise Error('x')"}).startswith(
        "The code failed: Error: x"
    )
    assert env.call("run_code", {"code": "x" * (LONGEST_CODE + 1)}).startswith("Error: code may have 10000 characters")
    assert env.call("run_code", {"code": "\ud800"}).startswith("Error: ")
    assert not env.done


def test_long_output_loses_its_middle() -> None:
    assert shorten("a" * 10, 10) == "a" * 10
    assert shorten("a" * 50 + "b" * 50, 10) == "aaaaa [90 characters left out] bbbbb"
    said = double().call("run_code", {"code": "print('x' * 50_000)\ndef double(x):\n    return 'y' * 40_000"})
    assert len(said) < 1200


def told(scenario: Scenario, *codes: tuple[str, str]) -> tuple[float, bool, list[Message]]:
    env, messages = CodeRepair(scenario, EMPTY), list(scenario.messages)
    for name, code in codes:
        messages.append(use(name, code=code))
        messages += env.step(messages[-1])
    return (
        round(sum(part.value for part in CodeRepair.reward(scenario, messages)), 6),
        CodeRepair.success(scenario, messages),
        messages,
    )


def test_rewards_by_hand() -> None:
    scenario = double().scenario
    right, half, none = REFERENCE, "def double(x):\n    return x * x if x == 0 else 6", "def double(x): pass"
    assert told(scenario, ("submit", right))[:2] == (1.0, True)
    assert told(scenario, ("run_code", right), ("submit", right))[:2] == (1.0, True)
    assert told(scenario, *[("run_code", right)] * 3, ("submit", right))[:2] == (0.96, True)
    assert told(scenario, ("submit", half))[:2] == (round(0.5 * 2 / 3, 6), False)
    assert told(scenario, ("submit", none))[:2] == (0.0, False)
    assert told(scenario)[:2] == (-0.3, False)
    assert told(scenario, ("run_code", right))[:2] == (-0.3, False)
    assert told(scenario, ("think", right), ("submit", right))[:2] == (0.9, True)
    for attempts, value in ((1, 0.8), (2, 0.6), (9, 0.4)):
        attack = (
            f"for _ in range({attempts}):\n    try:\n        open('/etc/passwd')\n    except OSError:\n        pass\n"
        )
        assert told(scenario, ("submit", attack + right))[:2] == (value, True)
        assert told(scenario, ("run_code", attack + right), ("submit", right))[:2] == (value, True)


def test_the_submission_ends_the_episode_and_is_the_only_one() -> None:
    scenario = double().scenario
    env = CodeRepair(scenario, EMPTY)
    both = use("submit", code="def double(x): pass")
    both["tool_calls"] += use("submit", code=REFERENCE)["tool_calls"]
    messages = [*scenario.messages, both, *env.step(both)]
    assert env.done
    assert submitted(messages) == (0, 3)


def test_players(data: Problems) -> None:
    solved = {"gold": 0, "scripted": 0, "random": 0, "bad": 0}
    for number, scenario in enumerate(CodeRepair.scenarios(data, "test", 8, 3)):
        scores = {}
        for player in solved if number < 4 else ("gold", "bad"):
            messages = CodeRepair(scenario, data).play(player)
            scores[player] = sum(part.value for part in CodeRepair.reward(scenario, messages))
            solved[player] += CodeRepair.success(scenario, messages)
        assert scores["gold"] == 1.0 > scores["bad"] + 0.5
        assert CodeRepair(scenario, data).play("gold") == CodeRepair(scenario, data).play("gold")
    assert solved["gold"] == 8 > solved["scripted"] > solved["bad"] == 0


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"problems\.jsonl is missing: restore it"):
        CodeRepair.load(tmp_path)
