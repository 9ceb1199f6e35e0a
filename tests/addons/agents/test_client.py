"""Clients against a fake gateway (tests/support/fake_gateway.py): they lease, report, survive its absence, end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from addons.agents import client as clients
from addons.agents.client import main
from steps.kit.process import alive
from tests.conftest import ROOT, python
from tests.support.fake_gateway import FakeGateway
from tests.support.openai_server import Server

ROLLOUTS = "tests.support.rollouts"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts clients, which write to the file log; those that live are ended after the test."""
    started = []

    def start_client(gateway: FakeGateway, *words: str) -> subprocess.Popen[bytes]:
        command = python("addons.agents.client", "--server", gateway.url, *words)
        variables = os.environ | {clients.KEY: gateway.key}
        with (tmp_path / "log").open("ab") as log:
            started.append(subprocess.Popen(command, cwd=ROOT, env=variables, stderr=log))
        return started[-1]

    yield start_client
    for process in started:
        process.kill()
        process.wait()


def test_a_batch_is_played_though_the_gateway_is_killed_on_the_way(tmp_path: Path, start: Start) -> None:
    file = tmp_path / "file"
    data: list[dict[str, Any]] = [{"do": "wait", "file": str(file), "place": place} for place in range(3)]
    data += [{"do": "number"} for _ in range(6)] + [{"do": "error"}, {"do": "die"}, {"do": "too much"}]
    with FakeGateway(ROLLOUTS, data) as gateway:
        client = start(gateway, "--capacity", "6", "--processes", "2", "--name", "first")
        while len(gateway.results) < 8:
            assert client.poll() is None
            time.sleep(0.02)
        gateway.kill()
        file.touch()  # three episodes end while the gateway is away
        time.sleep(0.3)
        gateway.start()
        gateway.wait()
        client.terminate()
        assert client.wait(10) == 0
        log = (tmp_path / "log").read_text()
        status = gateway.leases.status(time.monotonic())
    assert set(gateway.ends.values()) == {1}
    assert len(gateway.ends) == len(data)
    rewards = [gateway.results[f"e{place}"][0]["reward"] for place in range(9)]
    assert rewards == [0.0, 1.0, 2.0, *[1.0] * 6]
    assert gateway.results["e9"] == (None, "RuntimeError: no luck with [masked]")
    died = "lost 2 times, more than agents.retries (1) allows: the process that ran it ended (exit code 7)"
    assert gateway.results["e10"] == (None, died)
    refused = "its result could not be reported: the gateway at http://127.0.0.1"
    assert gateway.results["e11"][1].startswith(refused), "and it is not given again"
    assert status["clients"] == [], "it has said goodbye"
    assert gateway.answers[401] == 0
    assert "e9: RuntimeError: no luck with [masked]" in log
    assert "secret-of" not in log
    assert gateway.key not in log


def test_a_killed_client_takes_its_processes_along_and_another_goes_on(tmp_path: Path, start: Start) -> None:
    pids = tmp_path / "pids"
    file = tmp_path / "file"
    data = [{"do": "child", "file": str(pids)}, *({"do": "wait", "file": str(file)} for _ in range(3))]
    with FakeGateway(ROLLOUTS, data, heartbeat=1.0, seconds=8.0) as gateway:
        first = start(gateway, "--name", "first")
        while not (pids.exists() and pids.read_text()):
            assert first.poll() is None
            time.sleep(0.02)
        running = [int(pid) for pid in pids.read_text().split()]
        second = start(gateway, "--name", "second", "--task", ROLLOUTS)
        first.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(map(alive, running)):
            assert time.monotonic() < deadline, "the processes of a killed client go on"
            time.sleep(0.02)
        file.touch()
        while len(gateway.results) < 3:
            assert second.poll() is None
            time.sleep(0.02)
        [client] = gateway.leases.status(time.monotonic())["clients"]
        assert (client["name"], client["under_way"], client["ended"]) == ("second", 1, 3)
        second.terminate()
        assert second.wait(10) == 0
    assert [gateway.keys[f"e{place}"][0] for place in range(4)] == [2] * 4
    assert set(gateway.ends) == {"e1", "e2", "e3"}
    assert set(gateway.ends.values()) == {1}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "the gateway's key is needed: set FLYWHEEL_GATEWAY_KEY, or name a file with --key-file"),
        (["--key-file", "none"], "--key-file none cannot be read: "),
        (["--key-file", "empty"], "--key-file empty is empty; write the gateway's key into it"),
        (["--key-file", "key", "--server", "10.0.0.5:8700"], "it must be an address, as in http://10.0.0.5:8700"),
        (["--key-file", "key", "--capacity", "0"], "--capacity must be at least 1, not 0"),
        (["--key-file", "key", "--server", "gateway"], "refuses the key: set FLYWHEEL_GATEWAY_KEY"),
        (["--key-file", "key", "--server", "other"], "is no gateway; see --server"),
        (
            ["--key-file", "key", "--server", "nobody"],
            "has not answered for 0 seconds (All connection attempts failed)",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    words: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(clients.KEY, raising=False)
    monkeypatch.setattr(clients, "ABSENCE", 0.2)
    (tmp_path / "key").write_text("another key\n")
    (tmp_path / "empty").write_text("\n")
    with FakeGateway(ROLLOUTS, []) as gateway, Server(lambda body: "5") as other:
        servers = {"gateway": gateway.url, "other": other.url, "nobody": "http://127.0.0.1:1"}
        if "--server" not in words:
            words = [*words, "--server", "nobody"]
        assert main([servers.get(word, word) for word in words]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "Traceback" not in said
    assert "another key" not in said


def test_an_agent_that_cannot_be_loaded_ends_the_client(tmp_path: Path, start: Start) -> None:
    with FakeGateway("no.such.agent", [{"do": "number"}]) as gateway:
        client = start(gateway)
        assert client.wait(20) == 2
        assert gateway.keys == {}, "it has leased nothing"
        assert "error: no.such.agent cannot be loaded: ModuleNotFoundError" in (tmp_path / "log").read_text()


def test_a_machine_with_clients_alone_needs_no_heavy_packages() -> None:
    words = (
        "import sys, environments, addons.agents.client, addons.agents.worker; environments.load('_agent_template');"
    )
    words += "print({'torch', 'vllm', 'transformers', 'numpy', 'pandas', 'pyarrow', 'openai'} & sys.modules.keys())"
    done = subprocess.run([*python()[:1], "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
