"""How a flow's command ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import ROOT, python, run

# `exec` is where CPython takes note of an interrupt for its own exit code, which only `python -m` comes to.
MODULE = """
import os, signal, sys
from flows.terminal import command

def work():
    exec("os.kill(os.getpid(), signal.SIGINT); [None for _ in range(10**6)]")
    return 0

command.handover.stop_workers = lambda _: os.kill(os.getpid(), signal.SIGINT)
sys.exit(command.run_command(work))
"""


def test_ctrl_c_at_any_moment_is_exit_code_130_and_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "interrupted_work.py").write_text(MODULE)
    process = run(
        python("interrupted_work"), tmp_path, PYTHONPATH=os.pathsep.join((os.fspath(tmp_path), os.fspath(ROOT)))
    )
    assert (process.returncode, process.stderr) == (130, "Stopped. The same command goes on from here.\n")


def test_only_the_first_signal_stops() -> None:
    from flows.terminal import command

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        command.stop_once()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for number in numbers:
            signal.raise_signal(number)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
