"""The temporary Prefect server of a run answers it, also where Prefect was imported before, and does not outlive it.

The terminal does not show a failed run's traceback, because the command that ran it reports the error.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, end, python, start

PROGRAM = """
import time
from prefect import flow  # first, as flows.promote does
from flows.terminal import command, prefect_server
command.prepare(by_hand=True)
@flow
def work():
    return 1
work()
@flow
def fail():
    raise ValueError("the command says that")
try:
    fail()
except ValueError:
    pass
assert not prefect_server.has_ended()
from prefect.server.api.server import SubprocessASGIServer
server = SubprocessASGIServer().server_process
print("process", server.pid, "of it", flush=True)
time.sleep(600)
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_it_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "dvc.yaml").touch()
    process = start([python()[0], "-c", PROGRAM], tmp_path, log, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1")
    try:
        until = time.monotonic() + 200
        while " of it" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        assert "Beginning flow run" in log.read_text()
        assert "the command says that" not in log.read_text()
        server = psutil.Process(int(log.read_text().rpartition("process ")[2].split()[0]))
        os.kill(process.pid, signal.SIGKILL)
        server.wait(30)
    finally:
        end(process)
