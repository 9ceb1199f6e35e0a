"""Logs what chain.yaml, dvc.lock and run/ hold to MLflow, as the flow does. For use after a plain `dvc repro`.

python -m steps.tracking
python -m steps.tracking second     # a deployed run, or one with a name: refs/runs/second
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from steps.core import dotenv
from steps.core.errors import UserError
from steps.core.ports import every
from steps.core.progress import say
from steps.core.terminal import command_parser, exit_code
from steps.project import store
from steps.project.chain import read_chain
from steps.project.dvc import dvc
from steps.project.git import git
from steps.project.kept_runs import WORKTREES
from steps.tracking.tracker import MlflowTracker


def log(root: Path, name: str = "") -> None:
    """Log every iteration of chain.yaml, the test split, and the files that describe the run, which may have a name."""
    dotenv.load(root)
    tracker = MlflowTracker(root, name=name)
    others = [other for begin in every("tracker") if (other := begin(tracker, False)) is not None]
    logged = [number for number in read_chain(tracker.root).get("iterations") or {} if tracker.iteration(number)]
    for other in others:
        for number in logged:
            other.iteration(number)
    for each in (tracker, *others) if logged else ():
        each.finish()
    if logged:
        say(f"logged: {', '.join(tracker.logged) or 'nothing new'}; in MLflow now: {', '.join(logged)}")
    say(tracker.where())


@contextlib.contextmanager
def kept_run(root: Path, name: str) -> Iterator[Path]:
    """Inside, the folder of a run that was kept under its name, with the project's own MLflow store: its worktree, or one
    that is made of refs/runs/<name> for this time. UserError where no run has the name."""
    root = root.resolve()
    path = root / WORKTREES / name
    is_there = name != ".." and path.parent == root / WORKTREES and path.is_dir()
    if not is_there:
        try:
            commit = git(root, "rev-parse", "--verify", "--quiet", f"refs/runs/{name}^{{commit}}")
        except UserError:
            names = git(root, "for-each-ref", "--format=%(refname:lstrip=2)", "--sort=-committerdate", "refs/runs")
            latest = ", ".join(names.split()[:5]) or "none"
            raise UserError(f"there is no run {name!r} in {root}; the latest runs: {latest}") from None
        path = root / WORKTREES / f"tracking-{os.getpid()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        git(root, "worktree", "add", "--quiet", "--detach", os.fspath(path), commit)
    try:
        if not is_there:
            check_out(root, path)
        with store.variables(MLFLOW_TRACKING_URI=store.address(root)):
            yield path
    finally:
        if not is_there:
            git(root, "worktree", "remove", "--force", os.fspath(path))


def check_out(root: Path, path: Path) -> None:
    """Bring the run's data from the project's DVC cache, in which the seconds of its stages are not. UserError where the
    cache lacks some of them."""
    (path / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {root / '.dvc' / 'cache'}\n")
    if dvc(path, "checkout", "--force", "--quiet", check=False):
        raise UserError(
            "DVC's cache does not hold all of the run: fetch the rest first (`.venv/bin/dvc fetch`), see the lines above"
        )


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = command_parser("steps.tracking", __doc__)
    folder = "the project's folder (default: this one)"
    parser.add_argument("--root", type=Path, default=Path(), metavar="PATH", help=folder)
    parser.add_argument("run", nargs="?", help="the name of a run that was kept (default: what run/ holds)")
    options = parser.parse_args(words)

    def work() -> None:
        if options.run is None:
            log(options.root)
            return
        with kept_run(options.root, options.run) as folder:
            log(folder, options.run)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
