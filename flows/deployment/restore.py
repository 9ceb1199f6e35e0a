"""Restore: a run of the past in a worktree of its own: its code, its description, and what DVC's cache or remote has.

flows/reproduce.py runs it again. The deployments that judge a run (evaluate, promote, rescore) work in one: on the run's own
scenarios, with its own code, whatever the checkout is at. What they find is kept in .flywheel/, and the worktree is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flows.deployment import workspace
from flows.deployment.workspace import LIMIT, WORKTREES, dvc, dvc_output
from steps.core.errors import UserError
from steps.core.progress import say
from steps.project import store
from steps.project.git import git

FOUND = ("promote", "rescored")  # folders of run/ that judging writes: kept in .flywheel/


class Source(NamedTuple):
    """Where a run's code and description come from."""

    commit: str
    difference: str  # of the tree to the commit
    files: dict[str, str]  # that replace the commit's


def source(root: Path, name: str) -> Source:
    """By MLflow run id, run name or git revision."""
    if re.fullmatch(r"[0-9a-f]{32}", name):
        return from_mlflow(root, name)
    return Source(workspace.resolve(root, name), "", {})


def from_mlflow(root: Path, run_id: str) -> Source:
    """Commit, difference and files that an MLflow run was logged with."""
    with store.explained(store.address(root)):
        client = store.connect(root)
        run = client.get_run(run_id)
        if parent := run.data.tags.get("mlflow.parentRunId"):
            run = client.get_run(parent)
        commit = run.data.tags.get("git_commit")
        if commit is None:
            raise UserError(f"the MLflow run {run_id} has no git commit: it was made outside a repository")
        there = {one.path for one in client.list_artifacts(run.info.run_id)}
        if missing := [name for name in workspace.KEPT if name not in there]:
            raise UserError(f"the MLflow run {run_id} has no {', '.join(missing)}: it was never finished")
        with tempfile.TemporaryDirectory(prefix="flywheel-") as folder:
            found = {
                name: Path(client.download_artifacts(run.info.run_id, name, folder)).read_text()
                for name in (*workspace.KEPT, *({"git.diff"} & there))
            }
    difference = found.pop("git.diff", "")
    return Source(commit, difference, found)


def restore(root: Path, path: Path, found: Source) -> None:
    """A worktree as the run's tree was."""
    workspace.add(root, path, found.commit)
    listed, _, patch = found.difference.partition("diff --git ")
    if unknown := re.findall(r"^\?\? (.+)$", listed, re.MULTILINE):
        say(f"files that git did not know are not restored: {', '.join(unknown[:5])}")
    if patch:
        (path / ".patch").write_text(f"diff --git {patch}")
        git(path, "apply", "--whitespace=nowarn", ".patch")
        (path / ".patch").unlink()
    for name, text in found.files.items():
        (path / name).write_text(text)


def have(path: Path) -> None:
    """Fetch from the DVC remote what the cache lacks, where there is a remote."""
    if dvc_output(path, "remote", "list").strip():
        dvc(path, "fetch", "--quiet")


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """In a worktree that `checkout` made: with the run's data, under the limit, gone afterwards. Elsewhere, nothing."""
    path = Path.cwd().resolve()
    root = path.parents[len(WORKTREES.parts)] if len(path.parents) > len(WORKTREES.parts) else path
    if path.parent != root / WORKTREES:
        yield
        return
    from prefect.concurrency.sync import concurrency

    try:
        with concurrency(LIMIT, occupy=1, strict=True), workspace.here(root, path):
            have(path)
            dvc(path, "checkout", "--force", "--quiet")
            for name in FOUND:
                kept = root / ".flywheel" / name
                kept.mkdir(exist_ok=True)
                (path / "run" / name).symlink_to(kept)
            yield
    finally:
        os.chdir(root)
        workspace.remove(root, path)
