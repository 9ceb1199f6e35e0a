"""Processes of this user, as /proc shows them, and whether a file's writer can still be at work.

A process id is used again after its process has ended. A process that started after a file was written did not write it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from steps.kit.process import alive

SLACK = 2.0  # seconds by which a start time, which counts from a rounded boot time, may be off


class Process(NamedTuple):
    pid: int
    parent: int
    started: float  # seconds since 1970
    words: tuple[str, ...]  # its command line
    folder: str  # its current folder; empty where that cannot be read

    @property
    def command(self) -> str:
        text = " ".join(self.words)
        return text if len(text) <= 120 else f"{text[:120]} …"


def boot_time() -> float:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    raise OSError("/proc/stat names no boot time")


def read(pid: int, booted: float | None = None) -> Process | None:
    """A running process; None where there is none, or it is not ours to look at."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX":
            return None
        words = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        started = (boot_time() if booted is None else booted) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
    current = ""
    with contextlib.suppress(OSError):
        current = os.readlink(folder / "cwd")  # noqa: PTH115 (a text, also where the folder is gone)
    return Process(pid, int(fields[1]), started, tuple(words), current)


def processes() -> dict[int, Process]:
    """This user's processes, by their ids."""
    booted, me = boot_time(), os.getuid()
    listed = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == me and (process := read(int(entry.name), booted)):
                listed[process.pid] = process
    return listed


def why_gone(pid: int, written: float) -> str:
    """Why the process that wrote a file at this time, under this id, is no longer at work; empty where it may be."""
    if not alive(pid):
        return f"process {pid} has ended"
    process = read(pid)
    if process is not None and process.started > written + SLACK:
        return f"process {pid} has ended, and its number is another process's now"
    return ""


def is_within(folder: str, root: Path) -> bool:
    return bool(folder) and Path(folder.removesuffix(" (deleted)")).is_relative_to(root)


def listeners(ports: set[int]) -> dict[int, int | None]:
    """Port -> the process that listens there, on any address; None where it is another user's."""
    sockets = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                number = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == "0A" and number in ports:  # 0A: it listens
                    sockets[f"socket:[{fields[9]}]"] = number
    owners: dict[int, int | None] = dict.fromkeys(sockets.values())
    for pid in processes() if sockets else {}:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    port = sockets.get(os.readlink(descriptor))  # noqa: PTH115 (no path)
                    if port is not None:
                        owners[port] = pid
    return owners
