"""What git says about the project's folder: the commit, and how the working tree differs from it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git_state(root: Path) -> tuple[dict[str, str], str]:
    """(tags with the commit and whether the tree differs from it, the difference), but for what a run itself writes."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        done = subprocess.run(command, check=True, capture_output=True, env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"})
        return done.stdout.decode(errors="replace")

    rest = ("--", ".", ":!dvc.lock", ":!chain.yaml")
    try:
        commit = git("rev-parse", "HEAD").strip()
        changed = git("status", "--porcelain", *rest)
        difference = changed + git("diff", "HEAD", *rest) if changed else ""
    except (subprocess.CalledProcessError, FileNotFoundError):
        return {}, ""  # no git, or no commit
    tags = {"git_commit": commit, "mlflow.source.git.commit": commit, "git_dirty": "true" if changed else "false"}
    return tags, difference
