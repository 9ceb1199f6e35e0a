"""Probes by an agent under training: a program of others (a harness), and a rollout function of one's own.

The first runs within the walls of environments/kit/sandbox/confined.py, and each probe is a Python program there that
prints "through" where it got what it wanted. The second runs with its user's rights in a process beside others of its
kind, and what it writes to every pipe that it finds must neither end another's episode nor the client.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from addons.agents.processes import Processes
from environments.base import Scenario
from environments.kit.sandbox import confined
from tests.conftest import ROOT

SECRET = "sk-of-the-user-and-nobody-else"
# Programs; HERE is what the test leaves outside the folder, PORT listens, PARENT is the process that runs the test.
PROBES = {
    "read the ledger": "through = open(HERE + '/ledger.db').read()",
    "list the project": f"import os\nthrough = os.listdir({os.fspath(ROOT)!r})",
    "read the keys in .env": "through = open(HERE + '/.env').read()",
    "read keys in its own environment": "import os\nthrough = [v for v in os.environ.values() if 'sk-of' in v]",
    "read the environment of its parent": (
        "import os\nthrough = [n for n in (PARENT, os.getppid()) if b'sk-of' in open(f'/proc/{n}/environ', 'rb').read()]"
    ),
    "read the memory of its parent": (
        "import ctypes\nb = ctypes.create_string_buffer(8)\n"
        "class V(ctypes.Structure): _fields_ = [('p', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "maps = open(f'/proc/{PARENT}/maps').readline()\n"
        "here, there = V(ctypes.addressof(b), 8), V(int(maps.split('-')[0], 16), 8)\n"
        "through = ctypes.CDLL(None).process_vm_readv(PARENT, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0"
    ),
    "write outside its folder": "open(HERE + '/reward.json', 'w').write('1')\nthrough = True",
    "forge a reward through a link": (
        "import os\nos.symlink(HERE + '/reward.json', 'mine')\nopen('mine', 'w').write('1')\nthrough = True"
    ),
    "read through a link to a folder": "import os\nos.symlink(HERE, 'out')\nthrough = open('out/ledger.db').read()",
    "a second name of a file elsewhere": "import os\nos.link(HERE + '/ledger.db', 'mine')\nthrough = open('mine').read()",
    "another episode's folder": "import os\nthrough = os.listdir(OTHER)",
    "a port that is not the gateway's": (
        "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2)\nthrough = True"
    ),
    "the name server": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nthrough = True",
    "a socket that is a file": "import socket\nsocket.socket(socket.AF_UNIX)\nthrough = True",
    "end the process that runs it": "import os\nos.kill(PARENT, 0)\nthrough = True",
    "end its keeper": "import os\nos.kill(os.getppid(), 0)\nthrough = True",
    "end a sibling": "import os\nos.kill(SIBLING, 0)\nthrough = True",
    "mount": (
        "import ctypes\nthrough = ctypes.CDLL(None).unshare(0x10020000) == 0 and "
        "ctypes.CDLL(None).mount(HERE.encode(), b'.', None, 4096, None) == 0"
    ),
    "trace its parent": "import ctypes\nthrough = ctypes.CDLL(None).ptrace(16, PARENT, 0, 0) == 0",
}


def played(folder: Path, program: str, seconds: float = 20.0) -> confined.Outcome:
    readable = [str(Path(sys.base_prefix))]
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", program]
    return asyncio.run(confined.run(confined.Job(command=command, folder=folder, seconds=seconds, readable=readable)))


@pytest.mark.parametrize("probe", PROBES)
def test_a_program_of_others_gets_nothing_outside(probe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    outside, folder, other = (tmp_path / name for name in ("outside", "episode", "other"))
    for place in (outside, folder, other):
        place.mkdir()
    for name in ("ledger.db", ".env", "reward.json"):
        (outside / name).write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        names = {"HERE": str(outside), "OTHER": str(other), "PORT": listening.getsockname()[1], "PARENT": os.getpid()}
        names["SIBLING"] = os.getppid()
        given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        outcome = played(folder, f"{given}through = False\ntry:\n {PROBES[probe].replace(chr(10), chr(10) + ' ')}\n"
                           "except Exception as problem: print('refused', type(problem).__name__)\n"
                           "else: print('through' if through else 'nothing')")  # fmt: skip
    assert outcome.status == 0, outcome
    assert outcome.output.split()[0] in ("refused", "nothing"), outcome.output
    assert (outside / "reward.json").read_text() == SECRET


def test_processes_without_end_end_with_their_time(tmp_path: Path) -> None:
    """Their number is not limited: what holds is that none of them is left."""
    program = (
        "import os, time\nfor _ in range(150):\n"
        " if os.fork() == 0:\n  os.setsid()\n  if os.fork(): os._exit(0)\n  time.sleep(600)\n"
        "print('started', flush=True)\ntime.sleep(600)"
    )
    mark = f"mark-{os.getpid()}"
    began = time.monotonic()
    outcome = played(tmp_path, f"'{mark}'\n{program}", seconds=3.0)
    assert outcome.status is None
    assert outcome.output == "started\n"
    assert time.monotonic() - began < 20
    assert not [each for each in Path("/proc").glob("[0-9]*") if mark in _command(each)]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_output_without_end_is_read_and_its_last_is_kept(tmp_path: Path) -> None:
    outcome = played(tmp_path, "import os\nfor _ in range(2000): os.write(1, b'x' * 65536)\nos.write(2, b'y' * 10**6)")
    assert (outcome.status, len(outcome.output), len(outcome.errors)) == (
        0,
        confined.MOST_OUTPUT,
        confined.MOST_OUTPUT,
    )


# --- A rollout function of one's own

ROLLOUT = """
import json, os, stat, time

JUNK = {
    "no json": [b"{no\\n", b"[" * 100_000 + b"\\n", b"\\xff\\n", b"5\\n", b"null\\n"],
    "another's end": [b'{"ended": "other", "result": {"reward": 1.0}, "error": null, "left_behind": false}\\n'],
    "half an end": [b'{"ended": "mine"}\\n', b'{"ended": ["mine"]}\\n', b'{"ended": {}}\\n', b'{"ready": true}\\n'],
    "a task that is broken": [],
}


def rollout(episode):
    do = episode.data["do"]
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                for line in JUNK.get(do, ()):
                    os.write(int(name), line)
                while do == "endless":
                    os.write(int(name), b"x" * 65536)
        except OSError:
            pass
    if do == "waits":
        time.sleep(1.5)
    if do == "ends its parent":
        os.kill(os.getppid(), 9)
        time.sleep(30)
    return 0.25
"""


@pytest.mark.parametrize("do", ["no json", "another's end", "half an end", "endless", "ends its parent"])
def test_what_a_rollout_writes_ends_no_other_and_not_the_client(
    do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_rollout").mkdir()
    (tmp_path / "hostile_rollout" / "agent.py").write_text(ROLLOUT)
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    outcomes: dict[str, list[Any]] = {}

    def entry(what: str) -> dict[str, Any]:
        scenario = Scenario.make("hostile_rollout.agent", "train", [{"role": "user", "content": "?"}], {"do": what})
        fields = {"scenario": scenario.model_dump(mode="json"), "attempt": 0, "seed": 1, "seconds": 30.0}
        return {"id": what, "base_url": "http://127.0.0.1:1/v1", "api_key": "k", **fields}

    async def play() -> None:
        made = Processes(
            "hostile_rollout.agent",
            2,
            dict(os.environ),
            lambda key, told: outcomes.setdefault(key, []).append(told),
            print,
        )
        while len(await made.start()) < 2:  # functions in one process can do to each other what they like
            await asyncio.sleep(0.02)
        await made.play("other", entry("waits"))
        await made.play("mine", entry(do))
        for _ in range(1_000):
            if {"other", "mine"} <= outcomes.keys():
                break
            await asyncio.sleep(0.02)
        await made.play("next", entry("plain"))  # the client goes on
        for _ in range(1_000):
            if "next" in outcomes:
                break
            await asyncio.sleep(0.02)
        await made.stop()

    asyncio.run(play())
    assert {key: len(told) for key, told in outcomes.items()} == {"mine": 1, "other": 1, "next": 1}
    assert outcomes["other"][0]["result"]["reward"] == outcomes["next"][0]["result"]["reward"] == 0.25
    if do in ("endless", "ends its parent"):
        assert "the process that ran it ended" in outcomes["mine"][0]["lost"]
    else:
        assert outcomes["mine"][0]["result"]["reward"] == 0.25
