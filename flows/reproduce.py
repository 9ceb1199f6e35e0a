"""Reproduce: runs a past run again, in a worktree of its own, and says for each output whether it is the same.

    python -m flows.reproduce nightly-7              # a run's name (refs/runs/<name>), or any git revision
    python -m flows.reproduce 3f2a9c...              # an MLflow run, by id or name: the parent, or one of its iterations
    python -m flows.reproduce nightly-7 --kept       # fetch it from the DVC cache or remote, and run nothing

An MLflow run brings its own dvc.lock, params.yaml and chain.yaml, and the difference of its working tree to the commit.
Every stage runs again (`dvc repro --force`) except frozen ones, and nothing is taken from DVC's run cache.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from flows.deployment import workspace
from flows.deployment.checkout import have, restore, source, uncommitted
from steps.core import dotenv, params
from steps.core.errors import UserError
from steps.core.terminal import command_parser, exit_code
from steps.project import kept_runs, lock
from steps.project.chain import read_chain
from steps.project.dvc import dvc
from steps.project.git import git


def outputs(path: Path) -> dict[str, str]:
    """The hash of every output in dvc.lock, by its path."""
    entries = lock.read_lock(path)
    return {out["path"]: str(out.get("md5")) for entry in entries.values() for out in entry.get("outs", [])}


def md5_of(path: Path) -> str:
    """The md5 of a file or a folder that is there, as DVC computes it."""
    return lock.folder_md5(path) if path.is_dir() else lock.file_md5(path)


def compare(before: dict[str, str], after: dict[str, str]) -> list[dict[str, Any]]:
    """One row per output: {"path", "recorded", "now", "same"}."""
    rows = ((path, before.get(path), after.get(path)) for path in sorted(before.keys() | after.keys()))
    return [{"path": path, "recorded": recorded, "now": now, "same": recorded == now} for path, recorded, now in rows]


def reproduce(root: Path, name: str, kept: bool = False, remove: bool = True) -> list[dict[str, Any]]:
    """Run a past run again, or with `kept` fetch its outputs; the rows of `compare`."""
    run = source(root, name)
    if not run.files and (advice := uncommitted(root, name)):
        print(advice, file=sys.stderr, flush=True)
    path = root / workspace.WORKTREES / f"reproduce-{run.commit[:8]}-{os.getpid()}"
    try:
        restore(root, path, run)
        before = outputs(path)
        if not before:
            raise UserError(f"the dvc.lock of {name} has no outputs: it ran no stage")
        params.load(path / "params.yaml", params.Params)  # DVC writes names of these two into the stages' commands
        read_chain(path)
        with workspace.here(root, path):
            if not kept:
                if (path / kept_runs.STARTED).exists():
                    have(path, kept_runs.STARTED)
                dvc(path, "repro", "--force", "--no-run-cache")
                return compare(before, outputs(path))
            have(path)
            here = {out: recorded for out, recorded in before.items() if (path / out).exists()}
            return compare(here, {out: md5_of(path / out) for out in here})
    finally:
        if remove and path.exists():
            workspace.remove(root, path)


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.reproduce", __doc__)
    parser.add_argument("run", help="a run's name, an MLflow run's id or name, or a git revision")
    parser.add_argument("--kept", action="store_true", help="fetch its outputs from DVC, and run nothing")
    parser.add_argument("--keep-worktree", action="store_true", help="do not remove the worktree")
    parser.add_argument("--json", action="store_true", help="print one JSON object per output")
    options = parser.parse_args(words)
    differing: list[str] = []

    def work() -> None:
        dotenv.load(Path.cwd())
        root = Path(git(Path.cwd(), "rev-parse", "--path-format=absolute", "--git-common-dir")).parent
        rows = reproduce(root, options.run, options.kept, not options.keep_worktree)
        for row in rows:
            shown = f"{'same' if row['same'] else 'DIFFERS':8}{row['recorded']}  {row['now']}  {row['path']}"
            print(json.dumps(row) if options.json else shown)
        differing.extend(row["path"] for row in rows if not row["same"])
        if not options.json:
            print(f"{len(rows) - len(differing)} of {len(rows)} outputs are the same")

    return exit_code(work) or int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
