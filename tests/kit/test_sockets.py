"""Ports that are free, servers that answer, and connections by a path."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steps.kit.sockets import IPV4, check_server, dial, gaierror, hold, listen, listen_at, peer
from tests.conftest import ROOT


def test_a_port_is_taken_once_and_free_again() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        check_server("127.0.0.1", port, 5.0)
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", port)
    with pytest.raises(ConnectionRefusedError):
        check_server("127.0.0.1", port, 5.0)
    listen("127.0.0.1", port).close()


def test_addresses_and_ports_that_there_are_not() -> None:
    with pytest.raises(OverflowError):
        listen("127.0.0.1", 70_000)
    with pytest.raises(OSError, match="assign"):
        listen("192.0.2.1", 0)
    with pytest.raises(gaierror):
        listen("::1", 0, IPV4)


def test_small_answers_are_sent_at_once() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_path_is_this_users_and_tells_who_calls(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert dial(path) is None
    with listen_at(path) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        connection = dial(path)
        assert connection is not None
        with connection, listener.accept()[0] as accepted:
            assert peer(accepted) == (os.getpid(), os.getuid())
    assert dial(path) is None, "the file is left, and nobody listens"


def test_a_port_that_is_held_is_nobody_elses_and_its_process_listens_there() -> None:
    holder = hold("127.0.0.1")
    port = holder.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        check_server("127.0.0.1", port, 5.0)
    with pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", port)
    program = """import sys
from steps.kit.sockets import handed
socket = handed(int(sys.argv[1]))
assert socket.proto == 6  # TCP, whose small answers asyncio sends at once
socket.listen()
socket.accept()"""
    with subprocess.Popen([sys.executable, "-c", program, str(holder.fileno())], cwd=ROOT, pass_fds=[holder.fileno()]):
        holder.close()
        until = time.monotonic() + 60
        while True:
            try:
                return check_server("127.0.0.1", port, 5.0)
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.05)
