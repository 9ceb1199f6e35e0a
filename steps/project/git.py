"""Git in the project's folder: running its commands, and how the working tree stands to the last commit."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from steps.core.errors import UserError

# A commit needs an author, also where nobody has set a name in git.
IDENTITY = {"GIT_AUTHOR_NAME": "agent-flywheel", "GIT_AUTHOR_EMAIL": "run@localhost"}
IDENTITY |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in IDENTITY.items()}

# What git prints and does here must not depend on a person's settings, whose names git takes from several files.
SETTINGS = {
    "core.quotePath": "false",
    "core.hooksPath": os.devnull,
    "commit.gpgSign": "false",
    "log.showSignature": "false",
    "status.showUntrackedFiles": "normal",
}
DIFF = (
    "--no-color --no-ext-diff --no-textconv --no-renames --no-relative --unified=3 --inter-hunk-context=0 --submodule=short "
    f"--src-prefix=a/ --dst-prefix=b/ --full-index --binary -O{os.devnull}"
).split()
# Variables that lead git to another repository, as inside a hook, or read the words of a command otherwise.
ELSEWHERE = "DIR WORK_TREE INDEX_FILE COMMON_DIR OBJECT_DIRECTORY NAMESPACE PREFIX DIFF_OPTS ATTR_SOURCE".split()
ELSEWHERE += [f"{kind}_PATHSPECS" for kind in ("LITERAL", "GLOB", "NOGLOB", "ICASE")]


def git(folder: Path, *words: str, index: Path | None = None) -> str:
    """A git command's output, without the line break at its end. UserError with git's message where it fails.

    `index` stands for the folder's own index of what the next commit holds, which then stays as it is."""
    return git_bytes(folder, *words, index=index).decode(errors="replace").removesuffix("\n")


def git_bytes(folder: Path, *words: str, index: Path | None = None) -> bytes:
    """`git`, with the output as it is."""
    environment = {name: value for name, value in os.environ.items() if name.removeprefix("GIT_") not in ELSEWHERE}
    environment |= IDENTITY | {"GIT_OPTIONAL_LOCKS": "0"}
    environment |= {"GIT_INDEX_FILE": os.fspath(index)} if index else {}
    settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    command = ["git", "-C", os.fspath(folder), *settings, *words]
    try:
        process = subprocess.run(command, capture_output=True, env=environment)
    except FileNotFoundError:
        raise UserError("git is not installed") from None
    except ValueError as problem:  # a NUL, which no name holds
        raise UserError(f"git {words[0]} failed: {problem}") from None
    if process.returncode:
        raise UserError(f"git {words[0]} failed: {' '.join(process.stderr.decode(errors='replace').split())}")
    return process.stdout


def git_state(root: Path) -> tuple[dict[str, str], str]:
    """(tags with the commit and whether the tree differs from it, the difference), without the files that a run writes."""
    paths = ("--", ".", ":!dvc.lock", ":!chain.yaml", ":!start.dvc")
    try:
        commit = git(root, "rev-parse", "HEAD")
        changed = git(root, "status", "--porcelain", *paths)
        difference = _difference(root, *paths) if changed else ""
    except UserError:
        return {}, ""  # no git, or no commit
    tags = {"git_commit": commit, "mlflow.source.git.commit": commit, "git_dirty": "true" if changed else "false"}
    return tags, "".join(f"{part}\n" for part in (changed, difference) if part)


def _difference(root: Path, *paths: str) -> str:
    """The changes since the last commit as `git apply` takes them, whatever is in the files."""
    try:
        return git_bytes(root, "diff", *DIFF, "HEAD", *paths).decode().removesuffix("\n")
    except UnicodeDecodeError:  # a text in another encoding: all changes as those of binary files
        with tempfile.NamedTemporaryFile("w", prefix="flywheel-") as attributes:
            attributes.write("* -diff\n")
            attributes.flush()
            return git(root, "-c", f"core.attributesFile={attributes.name}", "diff", *DIFF, "HEAD", *paths)
