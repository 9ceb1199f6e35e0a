"""A training run that has ended, and whether anything has changed since: the same command again then starts nothing.

To ask DVC about every stage, it and Prefect have to be started, which takes seconds, and more with each iteration. So a run
asks DVC once more at its end whether all stages are up to date, and keeps a hash of what DVC saw: the texts that describe
the run, and for all other files what DVC itself goes by before it hashes a file again, which is its size, inode and time of
change. Packages and variables count too, and so do the stores on this machine, since the end of a run mends what they lack.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.files import own_signatures, signatures, write_text
from steps.project import kept_runs, store
from steps.project.git import git
from steps.registry import publish

KEPT = Path(".flywheel/ended")
TEXTS = ("params.yaml", "chain.yaml", "dvc.yaml", "dvc.lock", ".env")
FOLDERS = ("addons", "environments", "flows", "run", "steps", "tasks_data")
VARIABLES = Path(".env.example")  # lists all that people set; Prefect's change nothing in a run


def keep(name: str, is_up_to_date: Callable[[], bool]) -> None:
    """Keep that the run of this name has ended in the current folder, if it has nothing left to do."""
    with contextlib.suppress(OSError):  # of a file that went meanwhile
        before = state(name)
        if is_up_to_date() and state(name) == before:  # else somebody has changed a file
            write_text(KEPT, before)


def unchanged(name: str) -> dict[str, Any] | None:
    """The content of run/summary.json where nothing has changed since the run of this name ended here, else None. The run
    itself looks whether there is another champion to start from, and mends or refuses what is damaged or away."""
    with contextlib.suppress(OSError, ValueError, KeyError, UserError):
        if KEPT.read_text() == state(name) and not Path(kept_runs.STARTED).exists():
            summary: dict[str, Any] = json.loads(Path("run/summary.json").read_text())
            is_kept = not name or bool(git(Path.cwd(), "for-each-ref", kept_runs.ref(name)))  # else it has been pruned
            return summary if is_kept and is_registered(summary["registered"]) else None
    return None


def is_registered(version: dict[str, str] | None) -> bool:
    """Whether the registry still has this version, which the end of a run gives it again."""
    if version is None:
        return True
    adapter_hash = json.loads(Path("run/receipt.json").read_text())["adapter_hash"]
    return publish.registered_version(version["name"], adapter_hash) == version["version"]


def state(name: str) -> str:
    """A hash of all that decides whether the run of this name has anything left to do in the current folder."""
    listed = re.findall(r"^#?((?!PREFECT_)[A-Z_]+)=", VARIABLES.read_text(), re.MULTILINE)
    variables = [(key, os.environ.get(key)) for key in listed]
    packages = Path(sysconfig.get_path("purelib")).stat().st_mtime_ns
    texts = [Path(text).read_bytes() if Path(text).exists() else None for text in TEXTS]
    parts = [name, sys.version, packages, variables, texts, sorted(signatures(*FOLDERS)), sorted(stores())]
    parts += [sorted(own_signatures(Path.cwd()))]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def stores() -> Iterator[tuple[str, int]]:
    """(path, inode) of the databases on this machine that hold runs, versions and looks."""
    for uri in (store.address(Path.cwd()), store.ledger_address()):
        if uri.startswith(store.SQLITE):
            path = Path(uri.removeprefix(store.SQLITE))
            yield os.fspath(path), path.stat().st_ino if path.exists() else 0
