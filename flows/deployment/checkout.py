"""Makes the git worktree that a deployed flow run works in, and prints its path. prefect.yaml's pull steps call it:

    python -m flows.deployment.checkout new       # at HEAD, or as a cancelled run of this name left it
    python -m flows.deployment.checkout judged    # at the revision of the run whose version or iterations are judged

Prefect starts a process for each flow run and runs the pull steps in it. This command has another process, so that the
flow's own process imports the project's code only once, and from the worktree. The flow run is that of PREFECT__FLOW_RUN_ID.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flows.deployment import cards, workspace
from steps.core.errors import UserError
from steps.core.progress import say
from steps.core.terminal import command_parser, exit_code
from steps.project import kept_runs, lock, store
from steps.project.dvc import dvc, dvc_output
from steps.project.git import DIFF, git
from steps.project.kept_runs import WORKTREES
from steps.runner import handover

JUDGED = Path(".flywheel/judged")  # in a worktree whose data are copies of another run's, for the viewer
RESULTS = ("promote", "rescored")  # folders of run/ that judging writes, and that are kept in .flywheel/


def new(root: Path, name: str, settings: dict[str, Any]) -> Path:
    """The worktree of a training run, which has the name that the settings give it, else the flow run's."""
    name = settings.get("name") or name
    kept_runs.ref(name)
    path = root / WORKTREES / name
    if not path.exists():
        workspace.add(root, path, "HEAD")
    return path


def judged(root: Path, name: str, settings: dict[str, Any]) -> Path:
    """The worktree of a flow that judges: as the tree of the judged run was. One of an earlier attempt is removed first."""
    kept_runs.ref(name)
    path = root / WORKTREES / name
    if path.exists():
        workspace.remove(root, path)
    run = settings.get("run") or run_of_version(root, settings.get("model"), settings.get("version") or "challenger")
    made = source(root, run)
    if changed := made.changed_code():
        raise UserError(
            f"the run {run} had uncommitted changes to {', '.join(changed[:5])}, and a deployment runs committed code "
            "alone: commit them and train again, or judge the version by hand with .venv/bin/python -m flows.evaluate"
        )
    listed = made.difference.partition("diff --git ")[0]
    restore(root, path, made._replace(difference=listed))  # made.files has all of params.yaml
    (path / JUDGED).parent.mkdir(exist_ok=True)
    (path / JUDGED).touch()
    return path


def run_of_version(root: Path, model: str | None, version: str) -> str:
    """The id of the MLflow run that made a registered version."""
    from steps.registry.model import logged_model, read_registry

    if not model:
        raise UserError("settings.model is empty: name the registered model, or the run with settings.run")
    registered = read_registry(root, model)
    entry = registered.version(version)
    with store.explained(store.address(root)):
        run_id = entry.run_id or registered.client.get_logged_model(logged_model(entry)).source_run_id
    if not run_id:
        raise UserError(f"{model} version {entry.version} names no MLflow run that made it: give settings.run")
    return str(run_id)


class Source(NamedTuple):
    """The code and the description of a run."""

    commit: str
    difference: str  # between the run's working tree and the commit, as git_state writes it
    files: dict[str, str]  # texts by name, which replace the commit's

    def changed_code(self) -> list[str]:
        """The tracked files that the difference changes, without those that describe a run."""
        described = {f"a/{file} b/{file}" for file in kept_runs.KEPT}
        pairs = re.findall(r"^diff --git (.+)$", self.difference, re.MULTILINE)
        return [pair.partition(" ")[0].removeprefix("a/") for pair in pairs if pair not in described]


def source(root: Path, name: str) -> Source:
    """The source of a run, by its name, a git revision, or the id or the name of its MLflow run, with what was logged there.

    UserError where the MLflow run has no commit, or was never finished.
    """
    if not re.fullmatch(r"[0-9a-f]{32}", name):
        try:
            return Source(workspace.resolve(root, name), "", {})
        except UserError:
            if (named := kept_runs.run_named(root, name)) is None:
                raise
            name = named
    with store.explained(store.address(root)):
        client = store.connect(root)
        run = client.get_run(name)
        if parent := run.data.tags.get("mlflow.parentRunId"):
            run = client.get_run(parent)
        commit = run.data.tags.get("git_commit")
        if commit is None:
            raise UserError(f"the MLflow run {name} has no git commit: it was made outside a repository")
        if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
            raise UserError(f"the MLflow run {name} has no commit's hash in its tag git_commit, but {commit[:80]!r}")
        logged = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
        if missing := [file for file in kept_runs.KEPT if file not in logged and file != kept_runs.STARTED]:
            raise UserError(f"the MLflow run {name} has no {', '.join(missing)}: it was never finished")
        with tempfile.TemporaryDirectory(prefix="flywheel-") as folder:
            files = {
                file: Path(client.download_artifacts(run.info.run_id, file, folder)).read_bytes().decode()
                for file in ({*kept_runs.KEPT, "git.diff"} & logged)
            }
    return Source(commit, files.pop("git.diff", ""), files)


def uncommitted(root: Path, name: str) -> str:
    """What to give in place of a run's name where the run had changes that were not committed, which its commit does not
    have; empty where it had none, or MLflow does not know."""
    with contextlib.suppress(UserError):
        if (run_id := kept_runs.run_named(root, name)) and (changed := source(root, run_id).changed_code()):
            return (
                f"{name} is a commit, without the changes to {', '.join(changed[:5])} that were not committed when it ran: "
                f"`.venv/bin/python -m flows.reproduce {run_id}` reproduces it with them"
            )
    return ""


def restore(root: Path, path: Path, run: Source) -> None:
    """Make a worktree that is as the run's working tree was.

    UserError where the difference makes a symbolic link: what is written later could follow it out of the worktree. Git
    itself refuses a difference that leaves the folder.
    """
    workspace.add(root, path, run.commit)
    listed, _, patch = f"\n{run.difference}".partition("\ndiff --git ")
    if untracked := re.findall(r"^\?\? (.+)$", listed, re.MULTILINE):
        say(f"files that git did not track are not restored: {', '.join(untracked[:5])}")
    if patch:
        with tempfile.NamedTemporaryFile(prefix="flywheel-", suffix=".patch") as file:
            file.write(f"diff --git {patch}".encode())
            file.flush()
            git(path, "apply", "--whitespace=nowarn", file.name)
        different = git(path, "diff", *DIFF, "--name-only", "-z", "HEAD") + git(path, "ls-files", "--others", "-z")
        if links := [name for name in different.split("\0") if name and (path / name).is_symlink()]:
            raise UserError(f"the run's git.diff makes a symbolic link of {links[0]}: such a run is not restored")
    if run.files and kept_runs.STARTED not in run.files:
        (path / kept_runs.STARTED).unlink(missing_ok=True)  # the commit may have another run's
    for name, text in run.files.items():
        (path / name).unlink(missing_ok=True)  # a link in the commit would be written through
        (path / name).write_text(text)


def have(path: Path, *targets: str) -> None:
    """Check out the run's data, or these of them, after fetching what DVC's cache lacks, if there is a DVC remote. UserError
    where some are nowhere; checkpoints, which flows.prune removes, may be."""
    if dvc_output(path, "remote", "list").strip():
        dvc(path, "fetch", "--quiet", *targets, check=False)
    if not dvc(path, "checkout", "--force", "--quiet", *targets, check=False):
        return
    outs = {out["path"] for entry in lock.read_lock(path).values() for out in entry.get("outs", ())}
    missing = [out for out in sorted(outs & set(targets or outs)) if not (path / out).exists()]
    if not missing or not all(re.fullmatch(r"run/\d{3}/checkpoint", out) for out in missing):
        lost = ", ".join(missing[:5]) or ", ".join(targets)
        raise UserError(f"not in DVC's cache, nor in its remote if there is one: {lost} (see DVC's output above)")
    say(f"without {', '.join(missing)}, which .venv/bin/python -m flows.prune removed")


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Inside, the data of the judged run are there, if the current folder is a worktree of `flows.deployment.checkout`.

    Such a flow counts under its pool's limit, and its worktree is removed afterwards; its results stay in .flywheel/.
    Elsewhere nothing happens.
    """
    path = Path.cwd().resolve()
    root = workspace.root_of(path)
    if path.parent != root / WORKTREES:
        yield
        return
    from prefect.concurrency.sync import concurrency

    try:
        with (
            concurrency(workspace.limit(), occupy=1, strict=True),
            cards.owned(root, cards.needed(path / "params.yaml")),
            workspace.here(root, path),
        ):
            have(path)
            keep_results(root, path)
            try:
                yield
            finally:
                handover.stop_workers(path)  # while the flow counts under the limit, for they hold memory
    finally:
        os.chdir(root)
        workspace.remove(root, path)


def keep_results(root: Path, path: Path) -> None:
    """Have what judging writes in a worktree's run/ stay in the project's .flywheel/."""
    for name in RESULTS:
        kept = root / ".flywheel" / name
        kept.mkdir(exist_ok=True)
        if not (link := path / "run" / name).is_symlink():
            link.symlink_to(kept)


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.deployment.checkout", __doc__)
    parser.add_argument("kind", choices=["new", "judged"], help="of worktree")
    options = parser.parse_args(words)

    def work() -> None:
        from prefect.runtime import flow_run

        settings = (flow_run.get_parameters() or {}).get("settings") or {}
        with contextlib.redirect_stdout(sys.stderr):  # stdout holds the path alone
            path = (new if options.kind == "new" else judged)(Path.cwd().resolve(), str(flow_run.get_name()), settings)
        print(path)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
