"""Runs a program that is not trusted, with walls around it, a time limit, and an end for all that it starts.

    outcome = await run(Job(command=["sh", "-c", "echo hello"], folder="/tmp/episode", seconds=10.0))
    outcome.status, outcome.output          # 0, "hello\n"

For whole programs of other people, such as coding agents with their shells and compilers; __init__.py has the much stricter
walls of single functions in Python. What the program may do:

- files: change its folder; read and run what the system has for all (SYSTEM), and the folders that `readable` adds. Home
  folders, this project, other episodes and all else are out of reach (Landlock, Linux 5.13).
- network: TCP connections to `ports`, at whatever address, and to none without them (Landlock, Linux 6.7). It may
  listen. Other sockets, such as UDP's and those that are files, cannot be made (a seccomp filter, on x86-64).
- processes: it can neither send signals to others (Linux 6.12) nor read their memory; it has no capabilities and gets none.
- It sees its `variables` alone. Memory, disk, cores, and the number of processes are not limited.

A machine without Landlock runs nothing: NotConfinedError, unless the variable FLYWHEEL_UNCONFINED is 1.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from environments.kit.sandbox import _calls, _runner

INSIDE = Path(__file__).with_name("_confined_inside.py")
UNCONFINED = "FLYWHEEL_UNCONFINED"  # 1: run programs with this user's own rights, as in a container made for it
NOT_CONFINED = 125  # the status of _confined_inside.py where the walls cannot stand
MOST_OUTPUT = 65_536  # bytes: the last of what was printed, of stdout and of stderr
SYSTEM = (
    *"/usr /bin /sbin /lib /lib32 /lib64 /libx32 /proc /sys /dev/fd /dev/urandom /dev/random".split(),
    *"/etc/alternatives /etc/ca-certificates /etc/ca-certificates.conf /etc/debian_version /etc/default".split(),
    *"/etc/environment /etc/fonts /etc/gai.conf /etc/gitconfig /etc/group /etc/host.conf /etc/hostname".split(),
    *"/etc/hosts /etc/inputrc /etc/java /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/ld.so.preload".split(),
    *"/etc/localtime /etc/login.defs /etc/magic /etc/manpath.config /etc/mime.types /etc/nsswitch.conf".split(),
    *"/etc/os-release /etc/pki /etc/passwd /etc/profile /etc/profile.d /etc/protocols /etc/python3".split(),
    *"/etc/python3.11 /etc/python3.12 /etc/python3.13 /etc/resolv.conf /etc/services /etc/shells".split(),
    *"/etc/ssl/certs /etc/ssl/openssl.cnf /etc/terminfo /etc/timezone /etc/bash.bashrc /etc/bashrc".split(),
    *"/run/systemd/resolve /run/resolvconf".split(),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")


# System calls of x86-64, and flags of theirs.
SOCKET, SENDTO, SENDMSG, SENDMMSG, IO_URING = 41, 44, 46, 307, (425, 426, 427)
INTERNET, NETLINK, STREAM, TCP = (2, 10), 16, 1, (0, 6)
FAST_OPEN = 0x20000000  # to connect by sending
AND, REFUSED = 0x54, 0x00050000 | 13  # an operation of packet filters; EACCES


class NotConfinedError(PermissionError):
    """This machine has no walls for a program that is not trusted."""


class Job(NamedTuple):
    """A program to run, and what it may reach."""

    command: Sequence[str]  # the program by its path
    folder: Path  # that it may change
    seconds: float  # until it is ended
    cwd: Path | None = None  # where it starts; the folder
    variables: Mapping[str, str] = {}  # its whole environment
    readable: Sequence[str] = ()  # further files and folders that it may read and run
    ports: Sequence[int] = ()  # to which it may connect


class Outcome(NamedTuple):
    """What came of a program."""

    status: int | None  # with which it ended, 128 and more after a signal; None: it was ended at its time limit
    output: str  # the last of stdout
    errors: str  # the last of stderr


def sockets() -> bytes:
    """A seccomp filter: sockets of TCP and netlink alone, and no way around Landlock's rule for connections, such as other
    protocols of streams, connecting by sending, io_uring, and the system calls of other architectures."""
    load, equal, any_bit, answer = _calls.LOAD, _calls.EQUAL, _calls.ANY_BIT, _calls.RETURN
    allow, refuse = (answer, 0, 0, _calls.ALLOW), (answer, 0, 0, REFUSED)
    steps = [(load, 0, 0, 4), (equal, 1, 0, _calls.X86_64), (answer, 0, 0, _calls.KILL_PROCESS)]
    steps += [(load, 0, 0, 0), (_calls.AT_LEAST, 0, 1, _calls.X32), (answer, 0, 0, _calls.KILL_PROCESS)]
    steps += [step for number in IO_URING for step in ((equal, 0, 1, number), (answer, 0, 0, _calls.NO_SUCH_CALL))]
    for number, flags in ((SENDTO, 40), (SENDMSG, 32), (SENDMMSG, 40)):
        steps += [(equal, 0, 4, number), (load, 0, 0, flags), (any_bit, 0, 1, FAST_OPEN), refuse, allow]
    steps += [(equal, 1, 0, SOCKET), allow, (load, 0, 0, 16), (equal, 0, 1, NETLINK), allow]
    steps += [(equal, 2, 0, INTERNET[0]), (equal, 1, 0, INTERNET[1]), refuse]
    steps += [(load, 0, 0, 24), (AND, 0, 0, 0xF), (equal, 1, 0, STREAM), refuse]
    steps += [(load, 0, 0, 32), (equal, 2, 0, TCP[0]), (equal, 1, 0, TCP[1]), refuse, allow]
    return _calls._packed(steps)


def is_confined() -> bool:
    """Whether programs get walls. NotConfinedError where they would need them and this machine has none."""
    if os.environ.get(UNCONFINED) == "1":
        return False
    if _runner.landlock_version(ctypes.CDLL(None, use_errno=True)) < 1:
        raise NotConfinedError(
            "programs that are not trusted need Landlock (Linux 5.13 or later, and a container that permits it), and this "
            f"machine has none. Where that is no danger, as in a container made for this, set {UNCONFINED}=1"
        )
    return True


async def run(job: Job) -> Outcome:
    """Run a program to its end, or to its time limit; then nothing that it started is left. So it is, too, where this is
    cancelled, and where this process dies."""
    request = {
        "command": list(job.command),
        "cwd": str(job.cwd or job.folder),
        "variables": dict(job.variables),
        "confined": is_confined(),
        "readable": [*SYSTEM, *job.readable],
        "writable": [str(job.folder), *DEVICES],
        "ports": list(job.ports),
        "sockets": sockets().hex() if platform.machine() == "x86_64" else "",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(INSIDE)),
        env={},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    reading = [asyncio.create_task(_last(stream)) for stream in (process.stdout, process.stderr)]
    is_late = False
    try:
        await asyncio.wait_for(process.wait(), job.seconds)
    except TimeoutError:
        is_late = True
    finally:
        process.stdin.close()  # ends what still runs
        await asyncio.shield(process.wait())
    output, errors = await asyncio.gather(*reading)
    if process.returncode == NOT_CONFINED and not is_late:
        raise NotConfinedError(f"{job.command[0]} was not run: the kernel refuses its walls. {errors}".strip())
    return Outcome(None if is_late else process.returncode, output, errors)


async def _last(stream: asyncio.StreamReader) -> str:
    """The last of what a stream brings, as text without NUL."""
    kept = b""
    while part := await stream.read(MOST_OUTPUT):
        kept = (kept + part)[-MOST_OUTPUT:]
    return kept.decode("utf-8", "replace").replace("\0", "\\0")


def installed(path: str) -> list[str]:
    """The folders that a program on PATH runs from: where it was installed, and its interpreter."""
    real = Path(os.path.realpath(path))
    folders = [str(real.parent)]
    parts = real.parts
    if "node_modules" in parts:  # with the packages that it needs
        folders.append(str(Path(*parts[: parts.index("node_modules") + 1])))
    if (settings := real.parent.parent / "pyvenv.cfg").is_file():  # a virtual environment, and the Python that made it
        folders.append(str(settings.parent))
        folders += [str(Path(os.path.realpath(each)).parent.parent) for each in real.parent.glob("python3")]
    with real.open("rb") as file:
        first = file.readline(500) if file.read(2) == b"#!" else b""
    if words := first.decode("utf-8", "replace").split():
        is_env = Path(words[0]).name == "env"
        interpreter = shutil.which(words[-1]) if is_env else words[0]
        if interpreter and Path(os.path.realpath(interpreter)) != real:
            folders += [str(Path(interpreter).parent), *installed(interpreter)]
    return sorted(set(folders))
