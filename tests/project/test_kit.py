"""Every mechanism once: who else than steps/kit/ and environments/kit/ starts a process that goes on, takes a lock, makes a
socket, speaks HTTP or is ASGI middleware. `subprocess.run` waits for a command's end, and counts as none of these.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import parsed

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("environments", "steps", "flows", "viewer", "addons")
KITS = ("steps/kit/", "environments/kit/")
SANDBOX = "environments/kit/sandbox/"  # has walls of its own, each for a reason: EXCEPTIONS
CALLS = {  # names of functions, wherever they come from -> the mechanism
    **dict.fromkeys("Popen create_subprocess_exec create_subprocess_shell".split(), "process"),
    "prctl": "prctl",
    **dict.fromkeys(("flock", "lockf"), "lock"),
    **dict.fromkeys("create_server create_connection socketpair fromfd".split(), "socket"),
}
CLIENTS = {"httpx", "httpx2", "requests", "urllib.request", "urllib3", "http.client", "aiohttp"}
# (module, mechanism) -> why it has its own. None may be added without a reason; one that is gone leaves this list.
EXCEPTIONS = {
    (
        "environments/kit/sandbox/__init__.py",
        "process",
    ): "untrusted code in one group, killed whole; kit's child speaks JSON lines",
    (
        "environments/kit/sandbox/__init__.py",
        "socket",
    ): "its child hands over a descriptor, by a pair of sockets",
    (
        "environments/kit/sandbox/_runner.py",
        "prctl",
    ): "runs inside the sandbox, where nothing of the project can be imported",
    (
        "environments/kit/sandbox/confined.py",
        "process",
    ): "a command behind walls, whose standard input is its lifeline",
    (
        "environments/kit/sandbox/_confined_inside.py",
        "process",
    ): "puts the walls up between fork and exec",
    (
        "addons/agents/episode.py",
        "http",
    ): "certificates, read once for OpenAI's own client in the agent's Python",
    (
        "steps/project/slow_server.py",
        "http",
    ): "puts limits on the client that MLflow itself brings",
}


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield child
            yield from running(child)


@functools.cache
def mechanisms(tree: ast.Module) -> set[str]:
    """What a module has of its own."""
    has = set[str]()
    for node in running(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="socket"), attr="socket")):
                has.add("socket")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="fork" | "forkpty" | "posix_spawn")):
                has.add("process")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in CALLS:
                has.add(CALLS[name])
            case ast.ImportFrom(module="socket", names=names) if any(alias.name == "socket" for alias in names):
                has.add("socket")
            case ast.Import(names=names) if any(is_client(alias.name) for alias in names):
                has.add("http")
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if is_client(module) or any(is_client(f"{module}.{alias.name}") for alias in names):
                    has.add("http")
            case ast.FunctionDef(name="__call__") | ast.AsyncFunctionDef(name="__call__"):
                if [each.arg for each in node.args.args][1:] == ["scope", "receive", "send"]:
                    has.add("middleware")
    return has


def is_client(module: str) -> bool:
    """Whether a module is a client of HTTP, or within one."""
    return any(module == client or module.startswith(f"{client}.") for client in CLIENTS)


def outside_kit(root: Path) -> set[tuple[str, str]]:
    """(module, mechanism) of each that is not in a kit."""
    pairs = set()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name.startswith(SANDBOX) or not name.startswith(KITS):
                pairs |= {(name, each) for each in mechanisms(parsed(path))}
    return pairs


def test_every_mechanism_is_in_a_kit() -> None:
    assert outside_kit(ROOT) - EXCEPTIONS.keys() == set()


def test_every_exception_is_one_and_says_why() -> None:
    assert EXCEPTIONS.keys() - outside_kit(ROOT) == set()
    assert all(len(reason.split()) > 5 for reason in EXCEPTIONS.values())


def test_the_kits_have_each_mechanism() -> None:
    """Else this page would look for what nobody does."""
    trees = [parsed(path) for kit in KITS for path in (ROOT / kit).glob("*.py")]
    assert set().union(*map(mechanisms, trees)) == {"process", "prctl", "lock", "socket", "http", "middleware"}


@pytest.mark.parametrize(
    ("source", "has"),
    [
        ("import subprocess\ndef f():\n    subprocess.Popen(['a'])", "process"),
        ("from subprocess import Popen\nwith Popen(['a']) as process:\n    pass", "process"),
        ("import asyncio\nasync def f():\n    await asyncio.create_subprocess_exec('a')", "process"),
        ("import os\nif os.fork() == 0:\n    pass", "process"),
        ("import ctypes\nctypes.CDLL(None).prctl(1, 9)", "prctl"),
        ("import fcntl\ndef f(file):\n    fcntl.flock(file, fcntl.LOCK_EX)", "lock"),
        ("from fcntl import lockf, LOCK_EX\nlockf(1, LOCK_EX)", "lock"),
        ("import socket\nwith socket.socket() as s:\n    pass", "socket"),
        ("from socket import socket as make", "socket"),
        ("import socket\nsocket.create_server(('127.0.0.1', 0))", "socket"),
        ("def f():\n    import httpx2", "http"),
        ("import urllib.request", "http"),
        ("from urllib import request", "http"),
        ("from requests.adapters import HTTPAdapter", "http"),
        ("class A:\n    async def __call__(self, scope, receive, send):\n        pass", "middleware"),
        ("import subprocess\nsubprocess.run(['a'])", ""),
        ("import urllib.parse, socket\ndef f(made: socket.socket): ...", ""),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import httpx2", ""),
        ("class A:\n    async def __call__(self, message): ...", ""),
    ],
)
def test_a_planted_mechanism_is_seen(tmp_path: Path, source: str, has: str) -> None:
    for place in ("addons/a/b.py", "steps/kit/b.py"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(source)
    assert outside_kit(tmp_path) == ({("addons/a/b.py", has)} if has else set())
