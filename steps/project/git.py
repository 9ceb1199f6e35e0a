"""Git in the project's folder: running its commands, and how the working tree stands to the last commit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from steps.core.errors import UserError

# A commit needs an author, also where nobody has set a name in git.
IDENTITY = {"GIT_AUTHOR_NAME": "agent-flywheel", "GIT_AUTHOR_EMAIL": "run@localhost"}
IDENTITY |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in IDENTITY.items()}


def git(folder: Path, *words: str, index: Path | None = None) -> str:
    """A git command's output, without the line break at its end. UserError with git's message where it fails.

    `index` stands for the folder's own index of what the next commit holds, which then stays as it is."""
    environment = os.environ | IDENTITY | {"GIT_OPTIONAL_LOCKS": "0"}
    environment |= {"GIT_INDEX_FILE": os.fspath(index)} if index else {}
    try:
        process = subprocess.run(["git", "-C", os.fspath(folder), *words], capture_output=True, env=environment)
    except FileNotFoundError:
        raise UserError("git is not installed") from None
    except ValueError as problem:  # a NUL, which no name holds
        raise UserError(f"git {words[0]} failed: {problem}") from None
    if process.returncode:
        raise UserError(f"git {words[0]} failed: {' '.join(process.stderr.decode(errors='replace').split())}")
    return process.stdout.decode(errors="replace").removesuffix("\n")


def git_state(root: Path) -> tuple[dict[str, str], str]:
    """(tags with the commit and whether the tree differs from it, the difference), without the files that a run writes."""
    paths = ("--", ".", ":!dvc.lock", ":!chain.yaml", ":!start.dvc")
    try:
        commit = git(root, "rev-parse", "HEAD")
        changed = git(root, "status", "--porcelain", *paths)
        difference = git(root, "diff", "HEAD", *paths) if changed else ""
    except UserError:
        return {}, ""  # no git, or no commit
    tags = {"git_commit": commit, "mlflow.source.git.commit": commit, "git_dirty": "true" if changed else "false"}
    return tags, "".join(f"{part}\n" for part in (changed, difference) if part)
