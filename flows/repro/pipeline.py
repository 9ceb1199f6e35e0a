"""Runs the stages of dvc.yaml through DVC, which alone decides what is stale.

A stage that is up to date takes some hundredths of a second.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from steps.core.errors import UserError, causes


class StageFailed(Exception):
    """A stage ended with an error, which it has written to its own output."""

    def __init__(self, stage: str, code: int) -> None:
        super().__init__(f"the stage {stage} failed (exit code {code})")
        self.stage, self.code = stage, code


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
        from dvc.stage.exceptions import StageCmdFailedError

        from flows.repro.dvc_internals import replaced

        try:
            with replaced(self.lock_file):
                return bool(self.repo.reproduce(targets=[stage], single_item=True))
        except DvcException as problem:
            links = list(causes(problem))
            if any(isinstance(link, KeyboardInterrupt) for link in links):
                raise KeyboardInterrupt from None
            cause = next((link for link in links if isinstance(link, StageCmdFailedError)), None)
            if cause is None:  # no command was run, for example because a file that the stage reads does not exist
                why = (problem.__cause__ or problem) if isinstance(problem, ReproductionError) else problem
                kind = "" if isinstance(why, DvcException) else f"{type(why).__name__}: "
                cure = "; `git checkout dvc.lock` brings the committed one back" if "dvc.lock" in str(why) else ""
                raise UserError(f"DVC cannot run {stage}: {kind}{why}{cure}") from None
            exit_code = re.search(r"exited with (-?\d+)$", str(cause))
            code = int(exit_code[1]) if exit_code else 1
            if code in (130, -2):
                raise KeyboardInterrupt from None
            raise StageFailed(stage, code) from None
