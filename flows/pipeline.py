"""DVC's side of a flow: the chain of iterations that dvc.yaml reads, and running one of its stages.

DVC alone decides what is stale; a stage that is up to date costs some hundredths of a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import steps.stage
from flows import lockfile

CHAIN = Path("chain.yaml")
HEADER = (
    "# Written by flows.train as a run goes on, read by dvc.yaml: which iterations there are, and which one is best on "
    "validation.\n"
)
BASE = "000"  # the policy before any iteration

_repos: dict[str, Any] = {}  # opened once; DVC forgets what it knows of files before each command


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
        steps.stage.write_text(CHAIN, text)


@contextlib.contextmanager
def commands_here() -> Iterator[None]:
    """Inside, DVC 3.67 hands a stage's command over to the warm worker from this process, not through a shell and another
    Python: 0.03 s less for each. The worker, and what DVC records, are the same; other commands run as ever."""
    from dvc.stage import run
    from dvc.stage.exceptions import StageCmdFailedError

    original = run._run

    def here(executable: str, command: str, **options: Any) -> None:
        words = shlex.split(command)
        module = words[2] if words[:2] == ["python", "-m"] else ""
        if not module.startswith("steps.") or not steps.stage.is_warm():
            original(executable, command, **options)
            return
        name = module.rpartition(".")[2]
        arguments = steps.stage.parse(steps.stage.find(module, name), module, words[3:])
        if code := steps.stage.command(module, name, arguments, warm=True):
            if code == 130:
                raise KeyboardInterrupt
            raise StageCmdFailedError(command, code)

    run._run = here
    try:
        yield
    finally:
        run._run = original


def reproduce(stage: str) -> bool:
    """Run one stage of dvc.yaml if it is stale. True if it ran; StageFailed if it failed; KeyboardInterrupt on Ctrl-C."""
    from dvc.exceptions import DvcException, ReproductionError
    from dvc.repo import Repo
    from dvc.stage.exceptions import StageCmdFailedError

    logging.getLogger("dvc").setLevel(logging.ERROR)
    root = os.fspath(Path.cwd())
    if root not in _repos:
        _repos[root] = Repo(root)
    with lockfile.quick(), commands_here():
        try:
            return bool(_repos[root].reproduce(targets=[stage], single_item=True))
        except DvcException as problem:
            links = list(steps.stage.behind(problem))
            if any(isinstance(link, KeyboardInterrupt) for link in links):
                raise KeyboardInterrupt from None
            cause = next((link for link in links if isinstance(link, StageCmdFailedError)), None)
            if cause is None:  # nothing was run: as a file that it reads and that is not there
                why = (problem.__cause__ or problem) if isinstance(problem, ReproductionError) else problem
                kind = "" if isinstance(why, DvcException) else f"{type(why).__name__}: "
                cure = "; `git checkout dvc.lock` brings the committed one back" if "dvc.lock" in str(why) else ""
                raise steps.stage.UserError(f"DVC cannot run {stage}: {kind}{why}{cure}") from None
            found = re.search(r"exited with (-?\d+)$", str(cause))
            code = int(found[1]) if found else 1
            if code in (130, -2):
                raise KeyboardInterrupt from None
            raise StageFailed(stage, code) from None
