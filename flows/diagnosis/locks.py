"""Locks of processes that have ended, processes whose parent has ended, and temporary files that nobody will rename.

A number in a lock says little by itself: its process may have ended, and another one may have that number now
(flows/diagnosis/processes.py tells). Processes are never ended here, because a person should look at them first.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from flows.diagnosis.findings import BAD, OK, WARN, Finding, Place, parts
from flows.diagnosis.processes import Process, is_within, processes, read, why_gone
from flows.repro import folder_lock
from steps.core.files import write_text
from steps.kit import sockets
from steps.kit.lock import holder
from steps.runner import handover

MEND = ".venv/bin/python -m flows.doctor --mend"
DVCS = ("lock", "rwlock.lock")  # in .dvc/tmp; the kernel's, so they end with their process
QUIET_SECONDS = 60.0  # for which nothing was written to a leftover; its writer may be in another container
INITS = ("init", "systemd", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan")
ENGINES = ("VLLM::", "vllm.")
SERVERS = ("flows.deployment.mlflow_server", "prefect", "viewer")
SPAWNED = ("from multiprocessing.spawn", "from multiprocessing.resource_tracker")


def written_as(names: str) -> re.Pattern[str]:
    """Temporary names of these, as steps/core/files.py and steps/runner/outputs.py give them; the process is a group."""
    return re.compile(rf"\.tmp-(\d+)(?:-\d+)?\.(?:{names})")


MADE = {  # what is written under a temporary name, by folder
    ".": written_as(r"start|params\.yaml|params\.yaml\.before|chain\.yaml|dvc\.lock"),
    "run": written_as(r"scenarios|code|receipt\.json|summary\.json|report\.html"),
    "run/*": written_as(
        r"(?:successes|judge|base|metrics|drawn|fates)\.json|(?:trajectories|rewards)\.parquet|judgements\.jsonl|"
        "adapter|checkpoint|evaluation|test"
    ),
    ".flywheel": written_as(r"[\w-]+\.(?:key|json|env|db)"),
    ".dvc/tmp": written_as("rwlock"),
    ".dvc/cache": re.compile(r"runs\.tmp-(\d+)"),
}


# --- Locks


def locks(where: Place) -> list[Finding]:
    """The folder's lock, DVC's locks, and those of warm workers."""
    findings = [*command_lock(where.root), *dvc_locks(where.root), *worker_locks(where.root)]
    return findings or [Finding("locks", OK, "no lock is held or left over")]


def command_lock(root: Path) -> list[Finding]:
    path = root / folder_lock.LOCK
    if not path.is_file():
        return []
    written = path.read_text(errors="replace").strip()
    with contextlib.suppress(ValueError):
        owner = json.loads(written)
        if isinstance(owner, dict) and owner.get("host", os.uname().nodename) != os.uname().nodename:
            where = f"of `{owner.get('command')}` on {owner['host']}"
            text = f"{folder_lock.LOCK} is {where}: only there its process can be seen"
            return [Finding("locks", WARN, text)]
    if (owner := named_holder(path)) is not None:
        return [Finding("locks", OK, f"{owner} is at work in this folder and holds {folder_lock.LOCK}")]
    if not written:
        return []
    number = re.search(r'"pid": (\d+)', written)
    gone = why_gone(int(number[1]), path.stat().st_mtime) if number else "it names no process"
    text = f"{folder_lock.LOCK} is left over: {gone or f'process {number[1] if number else 0} does not hold it'}"
    return [Finding("locks", WARN, text, MEND, emptied)]


def named_holder(path: Path) -> str | None:
    """The process that holds the lock of a file, in words; None where nobody does."""
    if (pid := holder(path)) is None:
        return None
    process = read(pid) if pid else None
    return process.named if process else "another process"


def emptied() -> str:
    """`held` empties the file when it ends; whoever mends holds it already."""
    return f"{folder_lock.LOCK} no longer names a process that has ended"


def dvc_locks(root: Path) -> list[Finding]:
    findings, folder = [], root / ".dvc" / "tmp"
    for name in DVCS:
        path = folder / name
        if path.is_file() and (owner := named_holder(path)) is not None:
            findings.append(Finding("locks", OK, f"{owner} holds DVC's lock .dvc/tmp/{name}"))
    path = folder / "rwlock"
    if path.is_file():
        findings += rwlock(path)
    return findings


def rwlock(path: Path) -> list[Finding]:
    """What DVC's list of readers and writers says of processes that have ended."""
    shown, written = ".dvc/tmp/rwlock", path.stat().st_mtime
    try:
        content = json.loads(path.read_bytes())
        gone = sorted({why_gone(info["pid"], written) for _, _, info in entries(content)} - {""})
    except (ValueError, TypeError, LookupError, AttributeError):
        text = f"{shown} was cut short or damaged, and a plain `.venv/bin/dvc repro` refuses it"
        return [Finding("locks", BAD, text, f"rm {shown}", partial(removed, path, shown))]
    if gone:
        text = f"{shown} holds locks of processes that have ended: {'; '.join(gone)}"
        return [Finding("locks", WARN, text, f"rm {shown}", partial(released, path))]
    return []


def entries(content: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(read or write, path, process) of each entry."""
    for mode in ("read", "write"):
        for path, infos in content.get(mode, {}).items():
            for info in infos if isinstance(infos, list) else [infos] if infos else []:
                yield mode, path, {**info, "pid": int(info["pid"])}


def released(path: Path) -> str:
    """Take the entries of processes that have ended out of DVC's list."""
    written, kept, count = path.stat().st_mtime, dict[str, Any](read={}, write={}), 0
    for mode, place, info in entries(json.loads(path.read_bytes())):
        if why_gone(info["pid"], written):
            count += 1
        elif mode == "read":
            kept["read"].setdefault(place, []).append(info)
        else:
            kept["write"][place] = info
    write_text(path, json.dumps(kept))
    return f".dvc/tmp/rwlock: {count} locks of processes that have ended are released"


def removed(path: Path, shown: str) -> str:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return f"{shown} is removed"


def worker_locks(root: Path) -> list[Finding]:
    """Sockets and locks of warm workers that no longer run; a worker that answers holds its lock."""
    findings = []
    for lock in sorted(handover.socket_folder().glob(f"{handover._root_hash(root)}-*.lock")):
        path = lock.with_suffix(".sock")
        connection = sockets.dial(path)
        if connection is not None:
            with connection:
                pid = sockets.peer(connection)[0]
            text = f"process {pid} is the warm worker of this project; it ends by itself when it has had nothing to do"
            findings.append(Finding("locks", OK, text))
        elif holder(lock) is None:
            text = f"{lock.name} is left over by a warm worker that has ended"
            findings.append(Finding("locks", WARN, text, MEND, partial(tidied, path)))
    return findings


def tidied(path: Path) -> str:
    handover.tidy(path, handover.take_lock(path))
    return f"the socket and the lock of the worker {path.stem} are removed"


# --- Orphans


def orphans(where: Place) -> list[Finding]:
    """Workers, engines and servers of this project whose parent has ended, and temporary files of ended processes."""
    listed = processes()
    findings = [
        Finding("orphans", WARN, f"{what} has lost its parent: {process.named}", f"kill {process.pid}")
        for process in listed.values()
        if is_within(process.folder, where.root) and is_parentless(process, listed) and (what := kind(process))
    ]
    findings += leftovers(where.root)
    return findings or [Finding("orphans", OK, "no process has lost its parent, and no temporary file is left over")]


def kind(process: Process) -> str:
    """What a process of ours is that should have a parent; empty for others, and for a worker that can be reached."""
    if any(word.startswith(ENGINES) for word in process.words):
        return "vLLM's engine"
    if any(mark in word for word in process.words for mark in SPAWNED):
        return "a process of an engine or a trainer"
    if "steps.runner.worker" in process.words:
        socket_path = Path(next((word for word in process.words if word.endswith(".sock")), "/nowhere"))
        connection = sockets.dial(socket_path)
        if connection is None:
            return "a warm worker that nobody can reach"
        connection.close()
        return ""
    servers = (*SERVERS, *(name for part in parts() for name in part.servers))
    return "a server" if any(word.startswith(servers) for word in process.words[1:]) else ""


def is_parentless(process: Process, listed: dict[int, Process]) -> bool:
    """Whether the parent has ended, so that the system's first process has taken its place."""
    if process.parent <= 1:
        return True
    parent = listed.get(process.parent)
    return parent is not None and Path(parent.words[0]).name in INITS


# --- Temporary files


def leftovers(root: Path) -> list[Finding]:
    """Files and folders of this project under their temporary names (MADE, and add-ons'), whose writer has ended."""
    findings = []
    for path, pid in temporary_files(root):
        with contextlib.suppress(OSError):
            written = newest(path)
            gone = why_gone(pid, written)
            if gone and time.time() - written >= QUIET_SECONDS:
                shown = os.fspath(path.relative_to(root))
                words = f"rm -r '{shown}'" if path.is_dir() else f"rm '{shown}'"
                text = f"{shown} is left over: {gone}"
                findings.append(Finding("orphans", WARN, text, words, partial(removed, path, shown)))
    return findings


def temporary_files(root: Path) -> Iterator[tuple[Path, int]]:
    """(path, process) of each: of this user, and neither a link nor behind one."""
    others = {place: written_as(names) for part in parts() for place, names in part.made.items()}
    for place, form in (MADE | others).items():
        for folder in sorted(root.glob(place)) if place != "." else [root]:
            within = [each for each in (folder, *folder.parents) if each.is_relative_to(root) and each != root]
            if not folder.is_dir() or any(each.is_symlink() for each in within):
                continue
            for path in sorted(folder.iterdir()):
                match = form.fullmatch(path.name)
                if match and not path.is_symlink() and path.lstat().st_uid == os.getuid():
                    yield path, int(match[1])


def newest(path: Path) -> float:
    """When anything in a file or folder was last written, in seconds since 1970."""
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return max(entry.lstat().st_mtime for entry in (path, *inside))
