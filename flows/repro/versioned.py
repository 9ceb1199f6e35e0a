"""Versions of a folder that no stage makes: DVC stores its files, and writes a small file beside it for git."""

from __future__ import annotations

import os
from pathlib import Path

from steps.core.errors import UserError
from steps.core.files import private_folder
from steps.core.progress import say
from steps.project.dvc import own_cache


def versioned(root: Path, folder: Path) -> None:
    """Have DVC store this version of a folder and write <folder>.dvc, where the project is one of DVC's. The project's own
    cache is closed to other users then, unless `dvc config cache.shared group` opens it: DVC gives files its own modes."""
    if not (root / ".dvc").is_dir():
        say(f"{root} is no project of DVC's: no version of {folder} was stored")
        return
    os.environ["DVC_NO_ANALYTICS"] = "1"
    own_cache(root)
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(os.fspath(root)) as repo:
            repo.scm_context.quiet = True  # else it prints what to do with git; the command that called says it, once
            repo.add([os.fspath(folder)])
            if (root / ".dvc/cache").is_dir() and repo.config["cache"].get("shared") != "group":
                private_folder(root / ".dvc/cache")
    except DvcException as problem:
        raise UserError(
            f"{folder} was written, but DVC cannot store it ({problem}): `.venv/bin/dvc add {folder}` once that is mended"
        ) from None
