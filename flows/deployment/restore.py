"""Restores a past run in a worktree of its own: its code, its description, and its data from DVC's cache or remote.

flows/reproduce.py runs it again. The deployments that judge a run (evaluate, promote, rescore) work in such a worktree, so
that they use the run's own scenarios and code. Their results are kept in .flywheel/, and the worktree is removed.
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
from steps.runner import handover

RESULTS = ("promote", "rescored")  # folders of run/ that judging writes, and that are kept in .flywheel/


class Source(NamedTuple):
    """The code and the description of a run."""

    commit: str
    difference: str  # between the run's working tree and the commit, as git_state writes it
    files: dict[str, str]  # texts by name, which replace the commit's


def source(root: Path, name: str) -> Source:
    """The source of a run, by its name, a git revision or the id of its MLflow run, with what was logged there.

    UserError where the MLflow run has no commit, or was never finished.
    """
    if not re.fullmatch(r"[0-9a-f]{32}", name):
        return Source(workspace.resolve(root, name), "", {})
    with store.explained(store.address(root)):
        client = store.connect(root)
        run = client.get_run(name)
        if parent := run.data.tags.get("mlflow.parentRunId"):
            run = client.get_run(parent)
        commit = run.data.tags.get("git_commit")
        if commit is None:
            raise UserError(f"the MLflow run {name} has no git commit: it was made outside a repository")
        logged = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
        if missing := [file for file in workspace.KEPT if file not in logged]:
            raise UserError(f"the MLflow run {name} has no {', '.join(missing)}: it was never finished")
        with tempfile.TemporaryDirectory(prefix="flywheel-") as folder:
            files = {
                file: Path(client.download_artifacts(run.info.run_id, file, folder)).read_text()
                for file in (*workspace.KEPT, *({"git.diff"} & logged))
            }
    return Source(commit, files.pop("git.diff", ""), files)


def restore(root: Path, path: Path, run: Source) -> None:
    """Make a worktree that is as the run's working tree was."""
    workspace.add(root, path, run.commit)
    listed, _, patch = run.difference.partition("diff --git ")
    if untracked := re.findall(r"^\?\? (.+)$", listed, re.MULTILINE):
        say(f"files that git did not track are not restored: {', '.join(untracked[:5])}")
    if patch:
        (path / ".patch").write_text(f"diff --git {patch}")
        git(path, "apply", "--whitespace=nowarn", ".patch")
        (path / ".patch").unlink()
    for name, text in run.files.items():
        (path / name).write_text(text)


def have(path: Path) -> None:
    """Check out the run's data, after fetching what DVC's cache lacks, if there is a DVC remote."""
    if dvc_output(path, "remote", "list").strip():
        dvc(path, "fetch", "--quiet")
    dvc(path, "checkout", "--force", "--quiet")


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Inside, the data of the judged run are there, if the current folder is a worktree of `flows.deployment.checkout`.

    Such a flow counts under the machine's limit, and its worktree is removed afterwards. Elsewhere nothing happens.
    """
    path = Path.cwd().resolve()
    root = path.parents[len(WORKTREES.parts)] if len(path.parents) > len(WORKTREES.parts) else path
    if path.parent != root / WORKTREES:
        yield
        return
    from prefect.concurrency.sync import concurrency

    try:
        with concurrency(LIMIT, occupy=1, strict=True), workspace.here(root, path):
            have(path)
            for name in RESULTS:
                kept = root / ".flywheel" / name
                kept.mkdir(exist_ok=True)
                (path / "run" / name).symlink_to(kept)
            try:
                yield
            finally:
                handover.stop_workers(path)  # while the flow counts under the limit, for they hold memory
    finally:
        os.chdir(root)
        workspace.remove(root, path)
