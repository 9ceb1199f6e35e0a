"""Runs that git keeps by their names: refs/runs/<name>, a commit on no branch with the files that describe the run."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.progress import say
from steps.project import store
from steps.project.git import git

if TYPE_CHECKING:
    from steps.core.params import Params

WORKTREES = Path(".flywheel/worktrees")  # of deployed runs, each in a folder of its name
STARTED = "start.dvc"  # of a run that starts from an adapter or from demonstrations: the hash of start/
KEPT = ("params.yaml", "chain.yaml", "dvc.lock", STARTED)
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"


def ref(name: str) -> str:
    """The git ref that keeps the run of this name. UserError where that cannot be a name."""
    if not re.fullmatch(NAME, name) or ".." in name or name.endswith((".", ".lock")):
        raise UserError(f"{name!r} cannot be a run's name: letters, digits, dots, dashes and underscores, 80 at most")
    return f"refs/runs/{name}"


def refuse_other(root: Path, name: str, params: Params) -> None:
    """UserError where a run of this name is kept that had other settings than these: it would be replaced. What a run may
    choose itself, and how long it goes on, may differ. UserError, too, before the first commit, which a kept run follows."""
    from steps.core.params import Params, parse

    if not git(root, "rev-list", "--all", "--max-count=1"):
        raise UserError(
            f"a named run is kept beside a commit, and {root} has none yet: `git add --all && git commit --message start`, "
            "then the same command again"
        )
    if not git(root, "for-each-ref", ref(name)):
        return
    try:
        kept = parse(git(root, "show", f"{ref(name)}:params.yaml"), Path("params.yaml"), Params)
    except UserError:
        return  # of another version of the project
    before, now = settings_of(kept), settings_of(params)
    if other := sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)):
        raise UserError(
            f"a run {name} is kept that has other settings in {', '.join(other)}, and this one would replace it: choose "
            f"another name, or forget that run with `git update-ref -d {ref(name)}`"
        )


def settings_of(params: Params) -> dict[str, object]:
    """The sections that make a run another one."""
    values = params.model_dump(mode="json", by_alias=True)
    values["update"].pop("reference")  # by the way that the run takes
    return {key: value for key, value in values.items() if key not in ("train", "sft", "register")}


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
