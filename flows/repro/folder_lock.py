"""One command at a time may change what a folder holds: params.yaml, chain.yaml, dvc.lock, run/.

The lock is the kernel's, on .flywheel/command.lock, so it ends with the process that holds it, however that ends. Commands
that only read do not take it. A git worktree has a lock of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from steps.core.errors import UserError
from steps.kit.lock import take

LOCK = Path(".flywheel/command.lock")


@contextlib.contextmanager
def held(folder: Path, command: str) -> Iterator[None]:
    """Inside, this process alone changes the folder. UserError, which names the other command, where one does already."""
    path = folder / LOCK
    path.parent.mkdir(exist_ok=True)
    with path.open("a+") as file:  # closed when a process starts another program, so no child keeps the lock
        if not take(file):
            file.seek(0)
            raise UserError(refusal(folder, file.read()))
        since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        file.truncate(0)
        json.dump({"pid": os.getpid(), "host": os.uname().nodename, "command": command, "since": since}, file)
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def refusal(folder: Path, written: str) -> str:
    """What a second command is told, by what the first one has written about itself."""
    holder, stop = "another command", "stop it"
    with contextlib.suppress(ValueError, KeyError):
        owner = json.loads(written)
        there = "" if owner["host"] == os.uname().nodename else f" on {owner['host']}"
        holder = f"`{owner['command']}` (process {owner['pid']}{there}, since {owner['since']})"
        stop = f"stop it with `kill {owner['pid']}`{there}"
    return (
        f"{holder} is at work in {folder.resolve()}, and two at once would spoil each other's files: wait for its end, or "
        f"{stop} (it can go on later); this command has changed nothing. For runs side by side, `make ui` gives each a git "
        "worktree"
    )


def command_line() -> str:
    """The command of this process as a person would type it."""
    spec = sys.modules["__main__"].__spec__
    program = f"python -m {spec.name}" if spec is not None else Path(sys.argv[0]).name
    return " ".join([program, *sys.argv[1:]])
