"""Runs that git keeps by their names: refs/runs/<name>, a commit on no branch with the files that describe the run."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

from steps.core.errors import UserError
from steps.core.progress import say
from steps.project import store
from steps.project.git import git

WORKTREES = Path(".flywheel/worktrees")  # of deployed runs, each in a folder of its name
STARTED = "start.dvc"  # of a run that starts from an adapter or from demonstrations: the hash of start/
KEPT = ("params.yaml", "chain.yaml", "dvc.lock", STARTED)
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"


def ref(name: str) -> str:
    """The git ref that keeps the run of this name. UserError where that cannot be a name."""
    if not re.fullmatch(NAME, name) or ".." in name or name.endswith((".", ".lock")):
        raise UserError(f"{name!r} cannot be a run's name: letters, digits, dots, dashes and underscores, 80 at most")
    return f"refs/runs/{name}"


def keep_described(root: Path, name: str) -> None:
    """Keep a run of the checkout itself under its ref: the commit that is checked out, with the files that describe the run.

    Neither a branch nor git's index changes. Uncommitted changes to code are not kept, which is said.
    """
    kept = ref(name)
    with tempfile.TemporaryDirectory(prefix="flywheel-") as folder:
        index = Path(folder) / "index"
        git(root, "read-tree", "HEAD", index=index)
        git(root, "add", "--force", "--", *[file for file in KEPT if (root / file).exists()], index=index)
        if gone := [file for file in KEPT if not (root / file).exists()]:
            git(root, "rm", "--cached", "--quiet", "--ignore-unmatch", "--", *gone, index=index)
        commit = git(root, "commit-tree", git(root, "write-tree", index=index), "-p", "HEAD", "-m", f"run {name}")
    git(root, "update-ref", kept, commit)
    if git(root, "status", "--porcelain", "--", ".", *[f":!{file}" for file in KEPT]):
        run = run_named(root, name)
        how = f": `.venv/bin/python -m flows.reproduce {run}` reproduces it with them" if run else ""
        say(f"{kept} holds the last commit without your uncommitted changes; those are with the run in MLflow{how}")


def run_named(root: Path, name: str) -> str | None:
    """The id of the latest MLflow run of this name; None where there is none, or MLflow is away."""
    uri = store.address(root)
    if uri.startswith(store.SQLITE) and not Path(uri.removeprefix(store.SQLITE)).exists():
        return None  # `connect` would make it
    with contextlib.suppress(UserError), store.explained(uri):
        client = store.connect(root)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        quoted = name.replace("'", "")  # which no name of ours holds
        runs = client.search_runs(experiments, f"attributes.run_name = '{quoted}'", max_results=1)
        return str(runs[0].info.run_id) if runs else None
    return None
