"""Processes of this user, as the system shows them, and whether a file's writer can still be at work.

A process id is used again after its process has ended. A process that started after a file was written did not write it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import psutil

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

    @property
    def named(self) -> str:
        return f"process {self.pid} ({self.command})"


def read(pid: int) -> Process | None:
    """A running process; None where there is none, or it is not ours to look at."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        parent, started, words = process.ppid(), process.create_time(), tuple(process.cmdline()) or ("",)
    except psutil.Error:
        return None
    current = ""
    with contextlib.suppress(psutil.Error):
        current = process.cwd()
    return Process(pid, parent, started, words, current)


def processes() -> dict[int, Process]:
    """This user's processes, by their ids."""
    listed = {}
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).uids().effective == os.getuid() and (process := read(pid)):
                listed[pid] = process
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
    owners = dict[int, int | None]()
    for link in psutil.net_connections("tcp"):
        if link.status == psutil.CONN_LISTEN and link.laddr.port in ports:
            owners[link.laddr.port] = link.pid or owners.get(link.laddr.port)
    return owners
