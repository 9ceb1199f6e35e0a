"""The temporary Prefect server of a run answers it and nobody else, also where Prefect was imported before, and does not
outlive it.

The terminal does not show a failed run's traceback, because the command that ran it reports the error.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.conftest import ROOT, end, python, start

PROGRAM = """
import time
from prefect import flow  # first, as flows.promote does
from flows.terminal import command, prefect_server
command.prepare(by_hand=True)
from prefect.server.api.server import SubprocessASGIServer
SubprocessASGIServer._port_range = range(0)  # Prefect would look here for a port that another run may find, too
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
server = SubprocessASGIServer()
print("at", server.api_url, "process", server.server_process.pid, "of it", flush=True)
time.sleep(600)
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Run(NamedTuple):
    """A process that has run a flow and waits, and its server."""

    process: subprocess.Popen[str]
    log: Path
    url: str
    server: psutil.Process


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("run")
    log = folder / "log"
    (folder / "dvc.yaml").touch()
    process = start([python()[0], "-c", PROGRAM], folder, log, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1")
    try:
        until = time.monotonic() + 200
        while " of it" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        [(url, pid)] = re.findall(r"^at (\S+) process (\d+) of it$", log.read_text(), re.MULTILINE)
        yield Run(process, log, url, psutil.Process(int(pid)))
    finally:
        end(process)


@pytest.mark.parametrize("path", ["flows/filter", "admin/settings", "flow_runs/filter", "variables/"])
def test_it_answers_nobody_else(own: Run, path: str) -> None:
    """No key, and another site's page."""
    headers = {"content-type": "application/json", "origin": "http://evil.example"}
    body = None if path == "admin/settings" else b"{}"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(f"{own.url}/{path}", body, headers), timeout=60)
    assert (refused.value.code, refused.value.headers.get("access-control-allow-origin")) == (401, None)


def test_it_ends_with_a_run_that_is_killed(own: Run) -> None:
    """The last test of the file."""
    assert "Beginning flow run" in own.log.read_text()
    assert "the command says that" not in own.log.read_text()
    os.kill(own.process.pid, signal.SIGKILL)
    own.server.wait(30)
