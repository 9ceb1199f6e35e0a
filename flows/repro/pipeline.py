"""Runs the stages of dvc.yaml through DVC, which alone decides what is stale.

A stage that is up to date takes some hundredths of a second.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flows.repro.process import last_line
from steps.core.errors import UserError, causes, masked


class StageFailed(Exception):
    """A stage ended with an error: its text is the stage's own sentence, or the last line of its traceback."""

    def __init__(self, stage: str, code: int, text: str) -> None:
        self.stage, self.code = stage, code
        self.reason = masked(last_line(text) if text.startswith("Traceback ") else text or f"exit code {code}")
        super().__init__(self.sentence())

    def sentence(self, log: Path | None = None) -> str:
        """What is printed; `log` is where the rest of the stage's output is."""
        return f"the stage {self.stage} failed{f' (log: {log})' if log else ''}: {self.reason}"


class Pipeline:
    """The dvc.yaml of a folder. DVC opens the repository once, and still looks at all files anew for each stage."""

    def __init__(self, root: Path) -> None:
        from dvc.repo import Repo

        from flows.repro.dvc_internals import LockFile

        logging.getLogger("dvc").setLevel(logging.ERROR)
        self.repo = Repo(os.fspath(root))
        self.lock_file = LockFile()

    def reproduce(self, stage: str) -> bool:
        """Run a stage if it is stale: whether it ran. StageFailed where it failed; KeyboardInterrupt on Ctrl-C."""
        from dvc.exceptions import DvcException, ReproductionError

        from flows.repro.dvc_internals import CommandFailed, replaced

        try:
            with replaced(self.lock_file):
                return bool(self.repo.reproduce(targets=[stage], single_item=True))
        except DvcException as problem:
            links = list(causes(problem))
            if any(isinstance(link, KeyboardInterrupt) for link in links):
                raise KeyboardInterrupt from None
            cause = next((link for link in links if isinstance(link, CommandFailed)), None)
            if cause is None:  # no command was run, for example because a file that the stage reads does not exist
                why = (problem.__cause__ or problem) if isinstance(problem, ReproductionError) else problem
                kind = "" if isinstance(why, DvcException) else f"{type(why).__name__}: "
                cure = "; `git checkout dvc.lock` brings the committed one back" if "dvc.lock" in str(why) else ""
                raise UserError(f"DVC cannot run {stage}: {kind}{why}{cure}") from None
            raise StageFailed(stage, cause.code, cause.text) from None
