"""Makes the git worktree that a deployed flow run works in, and prints its path. prefect.yaml's pull steps call it:

    python -m flows.deployment.checkout new       # at HEAD, or as a cancelled run of this name left it
    python -m flows.deployment.checkout judged    # at the revision of the run whose version or iterations are judged

Prefect starts a process for each flow run and runs the pull steps in it. This command has another process, so that the
flow's own process imports the project's code only once, and from the worktree. The flow run is that of PREFECT__FLOW_RUN_ID.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from flows.deployment import workspace
from flows.deployment.restore import restore, source
from flows.deployment.workspace import WORKTREES
from steps.core.errors import UserError
from steps.core.terminal import exit_code
from steps.project import store


def new(root: Path, name: str, settings: dict[str, Any]) -> Path:
    """The worktree of a training run, which has the name that the settings give it, else the flow run's."""
    name = settings.get("name") or name
    workspace.ref(name)
    path = root / WORKTREES / name
    if not path.exists():
        workspace.add(root, path, "HEAD")
    return path


def judged(root: Path, name: str, settings: dict[str, Any]) -> Path:
    """The worktree of a flow that judges: as the tree of the judged run was. One of an earlier attempt is removed first."""
    workspace.ref(name)
    path = root / WORKTREES / name
    if path.exists():
        workspace.remove(root, path)
    run = settings.get("run") or run_of_version(root, settings.get("model"), settings.get("version") or "challenger")
    restore(root, path, source(root, run))
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


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flows.deployment.checkout", description=(__doc__ or "").split("\n\n")[0]
    )
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
