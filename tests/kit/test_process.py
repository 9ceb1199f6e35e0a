"""Processes of our own: what they get, that they end with force, and that they end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from steps.kit.process import alive, end, end_all, group_alive, start
from tests.conftest import ROOT

STEPS = ((None, 0.05), (signal.SIGTERM, 0.3), (signal.SIGKILL, 5.0))
READY = "import os, pathlib, signal, sys, time\n"
WAITS = f"{READY}pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\ntime.sleep(60)"
STUBBORN = f"{READY}signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITS}"
PARENT = """
import signal, sys, time
from pathlib import Path
from steps.kit.process import end_with_parent, start
start([sys.executable, "-c", *sys.argv[1:3]], log=Path(sys.argv[3]), preexec_fn=lambda: end_with_parent(signal.SIGTERM))
time.sleep(60)
"""


def until(true: Callable[[], object], seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


def number(path: Path) -> int:
    """The process id that a child writes when it is ready."""
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


@pytest.mark.parametrize(("code", "status"), [(WAITS, -signal.SIGTERM), (STUBBORN, -signal.SIGKILL)])
def test_a_process_ends_with_force_where_it_must(tmp_path: Path, code: str, status: int) -> None:
    process = start([sys.executable, "-c", code, os.fspath(tmp_path / "pid")])
    number(tmp_path / "pid")
    end(process, STEPS)
    assert process.returncode == status


def test_one_that_ends_by_itself_gets_no_signal(tmp_path: Path) -> None:
    process = start([sys.executable, "-c", "import time; time.sleep(0.2)"])
    end(process, ((None, 20.0), (signal.SIGKILL, 5.0)))
    assert process.returncode == 0


def test_a_log_takes_all_that_it_writes_and_it_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    code = "import sys; print(repr(sys.stdin.read()), flush=True); print('late', file=sys.stderr)"
    assert start([sys.executable, "-c", code], log=tmp_path / "log").wait(20) == 0
    assert (tmp_path / "log").read_text() == "before\n''\nlate\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_kernel_ends_it_with_the_process_that_started_it(tmp_path: Path, how: signal.Signals) -> None:
    words = [WAITS, os.fspath(tmp_path / "pid"), os.fspath(tmp_path / "log")]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *words], cwd=ROOT)
    child = number(tmp_path / "pid")
    assert alive(child)
    parent.send_signal(how)
    parent.wait(20)
    until(lambda: not alive(child))


def test_processes_and_groups_end_by_their_numbers(tmp_path: Path) -> None:
    names = ("gentle", "stubborn")
    started = [
        start([sys.executable, "-c", code, os.fspath(tmp_path / name)], start_new_session=True)
        for name, code in zip(names, (WAITS, STUBBORN), strict=True)
    ]
    pids = [number(tmp_path / name) for name in names]
    end_all(pids, ((signal.SIGTERM, 0.3), (signal.SIGKILL, 5.0)))
    assert not any(map(alive, pids)), "nobody has collected them, and they do not count as running"
    assert all(map(group_alive, pids)), "a group that nobody has collected is there"
    assert [process.wait(5) for process in started] == [-signal.SIGTERM, -signal.SIGKILL]
    assert not any(map(group_alive, pids))


def test_a_group_ends_whole(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAITS!r}, sys.argv[1]]).wait()"
    process = start([sys.executable, "-c", code, os.fspath(tmp_path / "pid")], start_new_session=True)
    child = number(tmp_path / "pid")
    end_all([process.pid], ((signal.SIGKILL, 0.2),), is_group=True)
    until(lambda: not alive(child))
    assert process.wait(5) == -signal.SIGKILL
