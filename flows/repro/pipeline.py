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

from flows.repro import lockfile
from steps.core.errors import UserError, causes
from steps.runner.stage import command, find, is_warm, parse

_repos: dict[str, Any] = {}  # opened once; DVC forgets what it knows of files before each command


class StageFailed(Exception):
    """A stage ended with an error, which it has written to its own output."""

    def __init__(self, stage: str, code: int) -> None:
        super().__init__(f"the stage {stage} failed (exit code {code})")
        self.stage, self.code = stage, code


@contextlib.contextmanager
def commands_here() -> Iterator[None]:
    """Inside, DVC 3.67 hands a stage's command over to the warm worker from this process, not through a shell and another
    Python: 0.03 s less for each. The worker, and what DVC records, are the same; other commands run as ever."""
    from dvc.stage import run
    from dvc.stage.exceptions import StageCmdFailedError

    original = run._run

    def here(executable: str, line: str, **options: Any) -> None:
        words = shlex.split(line)
        module = words[2] if words[:2] == ["python", "-m"] else ""
        if not module.startswith("steps.") or not is_warm():
            original(executable, line, **options)
            return
        name = module.rpartition(".")[2]
        arguments = parse(find(module, name), module, words[3:])
        if code := command(module, name, arguments, warm=True):
            if code == 130:
                raise KeyboardInterrupt
            raise StageCmdFailedError(line, code)

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
            links = list(causes(problem))
            if any(isinstance(link, KeyboardInterrupt) for link in links):
                raise KeyboardInterrupt from None
            cause = next((link for link in links if isinstance(link, StageCmdFailedError)), None)
            if cause is None:  # nothing was run: as a file that it reads and that is not there
                why = (problem.__cause__ or problem) if isinstance(problem, ReproductionError) else problem
                kind = "" if isinstance(why, DvcException) else f"{type(why).__name__}: "
                cure = "; `git checkout dvc.lock` brings the committed one back" if "dvc.lock" in str(why) else ""
                raise UserError(f"DVC cannot run {stage}: {kind}{why}{cure}") from None
            found = re.search(r"exited with (-?\d+)$", str(cause))
            code = int(found[1]) if found else 1
            if code in (130, -2):
                raise KeyboardInterrupt from None
            raise StageFailed(stage, code) from None
