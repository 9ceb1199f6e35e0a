"""A stage's command in a process of its own: what it printed last is kept, and it never outlives who waits for it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from flows.repro import process
from flows.repro.process import printed_error, run_process


def words(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, signal, time\n{code}"]


def test_what_it_prints_is_passed_on_and_the_error_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    code = "print('error: no mailbox\\n    line 1\\n    line 2\\nbye', file=sys.stderr); sys.exit(3)"
    assert run_process(words(code)) == (3, "no mailbox\n    line 1\n    line 2")
    assert capfd.readouterr().err == "error: no mailbox\n    line 1\n    line 2\nbye\n"
    assert run_process(words("raise ValueError('a bug')")) == (1, "ValueError: a bug")
    assert run_process(words("print('error: a warning of old', file=sys.stderr)")) == (0, "")
    assert run_process(words("os.kill(os.getpid(), signal.SIGKILL)")) == (-signal.SIGKILL, "")


def test_a_program_that_it_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, file=open('child', 'w'))"
    started = time.monotonic()
    assert run_process(words(code), cwd=tmp_path) == (0, "")
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert time.monotonic() - started < 50


@pytest.mark.parametrize("stubborn", [False, True])
def test_it_ends_with_who_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: bool) -> None:
    """A SIGTERM reaches the flow alone, and not its processes, as Ctrl-C on a terminal does."""
    monkeypatch.setattr(process, "ENDING", ((None, 0.05), (signal.SIGTERM, 0.3), (signal.SIGKILL, 5.0)))
    ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
    code = f"{ignores}open('pid', 'w').write(str(os.getpid())); os.kill(os.getppid(), signal.SIGUSR1); time.sleep(60)"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_process(words(code), cwd=tmp_path)
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ""),
        ("all is well\n", ""),
        ("error: first\nmore\nerror: second\n", "second"),
        (
            "Traceback (most recent call last):\n  File x\nsteps.core.errors.X: why\n    more\n",
            "steps.core.errors.X: why",
        ),
        ("Traceback (most recent call last):\n  File x\nKeyError\nerror: it is said\n", "it is said"),
    ],
)
def test_the_error_in_a_command_s_output(text: str, error: str) -> None:
    assert printed_error(text) == error
