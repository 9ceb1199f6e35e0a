"""DVC's side of a flow: the chain of iterations that dvc.yaml reads, and running one of its stages.

DVC alone decides what is stale; a stage that is up to date costs some hundredths of a second.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from flows import lockfile

CHAIN = Path("chain.yaml")
HEADER = (
    "# Written by flows.train as a run goes on, read by dvc.yaml: which iterations there are, and which one is best on "
    "validation.\n"
)
BASE = "000"  # the policy before any iteration


class StageFailed(Exception):
    """A stage ended with an error, which it has written to its own output."""

    def __init__(self, stage: str, code: int) -> None:
        super().__init__(f"the stage {stage} failed (exit code {code})")
        self.stage, self.code = stage, code


def name(iteration: int) -> str:
    """001, 002, …"""
    return f"{iteration:03d}"


def write_chain(iterations: int, best: int) -> None:
    """Iterations 1 … `iterations`, of which `best` is tested and offered to the registry. Same chain, same bytes."""
    links = "\n".join(f'  "{name(i)}": {{prev: "{name(i - 1)}"}}' for i in range(1, iterations + 1))
    evaluated = ", ".join(f'"{name(i)}"' for i in range(iterations + 1))
    text = f'{HEADER}iterations:\n{links}\nevaluated: [{evaluated}]\ntested: {{base: "{BASE}", best: "{name(best)}"}}\n'
    if not CHAIN.exists() or CHAIN.read_text() != text:
        temporary = CHAIN.with_suffix(".tmp")
        temporary.write_text(text)
        temporary.replace(CHAIN)


def reproduce(stage: str) -> bool:
    """Run one stage of dvc.yaml if it is stale. True if it ran; StageFailed if it failed; KeyboardInterrupt on Ctrl-C."""
    from dvc.exceptions import ReproductionError
    from dvc.repo import Repo
    from dvc.stage.exceptions import StageCmdFailedError

    logging.getLogger("dvc").setLevel(logging.ERROR)
    with Repo(os.fspath(Path.cwd())) as repo, lockfile.quick():
        try:
            return bool(repo.reproduce(targets=[stage], single_item=True))
        except ReproductionError as problem:
            cause: Any = problem
            while cause is not None and not isinstance(cause, StageCmdFailedError):
                cause = cause.__cause__
            if cause is None:
                raise
            found = re.search(r"exited with (-?\d+)$", str(cause))
            code = int(found[1]) if found else 1
            if code in (130, -2):
                raise KeyboardInterrupt from None
            raise StageFailed(stage, code) from None
