"""A deployed run works in a git worktree of its own, with the project's DVC cache, MLflow store and ledger.

So runs do not interfere with each other, nor with the user's checkout. Each run is kept under refs/runs/<name>, a commit
on no branch with its params.yaml, chain.yaml and dvc.lock. `git log refs/runs/<name>` shows it, and
`python -m flows.reproduce <name>` runs it again. A cancelled run that is started again goes on in its worktree.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from environments import did_you_mean
from steps.core.errors import UserError
from steps.core.progress import say
from steps.project import kept_runs, store
from steps.project.dvc import dvc, dvc_output
from steps.project.git import git
from steps.project.kept_runs import WORKTREES
from steps.runner import handover

POOL = "local"  # the work pool of `make ui`


def limit(pool: str | None = None) -> str:
    """Prefect's global concurrency limit of how many runs a work pool has at a time. Without a name: of the one that has
    started this process, as its template says."""
    return f"flywheel-{pool or os.environ.get('FLYWHEEL_POOL', POOL)}"


def resolve(root: Path, name: str) -> str:
    """The commit of a kept run or of a git revision. UserError with the latest runs where there is none."""
    for revision in (f"refs/runs/{name}", name):
        with contextlib.suppress(UserError):
            return git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    runs = git(root, "for-each-ref", "--format=%(refname:lstrip=2)", "--sort=-committerdate", "refs/runs").split()
    question, latest = did_you_mean(name, runs), ", ".join(runs[:5]) or "none"
    raise UserError(f"there is no run or revision {name!r} in {root}{question or ';'} The latest runs: {latest}")


def add(root: Path, path: Path, commit: str) -> None:
    """Make a worktree at a commit, whose DVC uses the project's cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    git(root, "worktree", "prune")
    git(root, "worktree", "add", "--quiet", "--detach", os.fspath(path), commit)
    cache = root / ".dvc" / "cache"
    (path / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {cache}\n")


def root_of(path: Path) -> Path:
    """The project's folder, if `path` is a worktree of `flows.deployment.checkout`, else some folder or `path` itself."""
    return path.parents[len(WORKTREES.parts)] if len(path.parents) > len(WORKTREES.parts) else path


def project(path: Path) -> Path:
    """The project's folder: of a run's worktree the one that it belongs to, else `path` itself."""
    whole = path.resolve()
    root = root_of(whole)
    return root if whole.parent == root / WORKTREES else whole


def remove(root: Path, path: Path) -> None:
    """Remove a worktree, and end the workers that were started in it."""
    handover.stop_workers(path)
    git(root, "worktree", "remove", "--force", os.fspath(path))


@contextlib.contextmanager
def here(root: Path, path: Path) -> Iterator[None]:
    """Inside, work in another folder of the same project, with the project's own MLflow store and ledger.

    Afterwards the current folder and the two variables that name the stores are as they were.
    """
    ledger = os.environ.get("FLYWHEEL_LEDGER_URL") or f"sqlite:///{root / store.LEDGER.removeprefix(store.SQLITE)}"
    with store.variables(MLFLOW_TRACKING_URI=store.address(root), FLYWHEEL_LEDGER_URL=ledger), contextlib.chdir(path):
        yield


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Inside, a run in the current folder, which must be a worktree of `flows.deployment.checkout`.

    However it ends, the run is kept under its ref. Its worktree is removed if it succeeds.
    """
    path = Path.cwd().resolve()
    root = root_of(path)
    if path.parent != root / WORKTREES:
        raise UserError(
            f"{path} is no worktree of a run: settings are for deployments (`make ui`); elsewhere use --set"
        )
    with here(root, path):
        try:
            yield path
        finally:
            keep(root, path, kept_runs.ref(path.name), kept_runs.KEPT)
            share(root, kept_runs.ref(path.name))
        # The outputs go to the project's default DVC remote, if it has one. An unreachable remote fails no run.
        if dvc_output(path, "config", "core.remote").strip() and dvc(path, "push", "--quiet", check=False):
            say("`.venv/bin/dvc push` failed: this run's data are in this machine's cache alone")
    remove(root, path)


def share(root: Path, kept: str) -> None:
    """In a container, push the ref of a run to the repository that the code came from: nothing else outlives it. A
    repository that cannot be reached fails no run."""
    if os.environ.get("GIT_CONFIG_KEY_0") == "remote.origin.url":  # as deploy/entrypoint.sh sets it
        try:
            git(root, "push", "--quiet", "origin", f"{kept}:{kept}")
        except UserError as problem:
            say(f"{kept} could not be pushed, and is in this container alone: {problem}")


def keep(root: Path, path: Path, kept: str, files: Sequence[str]) -> str:
    """Commit the files that describe the run, on no branch, and point the ref `kept` to the commit; its hash."""
    existing = [name for name in files if (path / name).exists()]
    git(path, "add", "--force", "--", *existing)
    gone = sorted(set(files) - set(existing))
    listed = [*existing, *(git(path, "ls-files", "--", *gone).splitlines() if gone else [])]
    if git(path, "status", "--porcelain", "--", *listed):
        git(path, "commit", "--quiet", "--no-verify", "-m", f"run {kept.removeprefix('refs/runs/')}", "--", *listed)
    commit = git(path, "rev-parse", "HEAD")
    git(root, "update-ref", kept, commit)
    return commit
