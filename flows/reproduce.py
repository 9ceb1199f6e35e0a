"""Reproduce: runs a run of the past again, in a worktree of its own, and says output by output whether it is the same.

    python -m flows.reproduce nightly-7              # a run's name (refs/runs/<name>), or any git revision
    python -m flows.reproduce 3f2a9c...              # an MLflow run: the parent, or one of its iterations
    python -m flows.reproduce nightly-7 --kept       # what the DVC cache or remote holds of it, without running anything

An MLflow run brings its own dvc.lock, params.yaml and chain.yaml, and the difference of its tree to the commit, where there
was one. Every stage runs again (`dvc repro --force`), but the frozen ones; nothing is taken from DVC's run cache.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from flows.deployment import workspace
from flows.deployment.restore import have, restore, source
from flows.deployment.workspace import dvc
from steps.core import dotenv
from steps.core.errors import UserError
from steps.core.terminal import exit_code
from steps.project import lock
from steps.project.git import git


def outputs(path: Path) -> dict[str, str]:
    """The hash of every output in dvc.lock, by its path."""
    entries = lock.read_lock(path)
    return {out["path"]: str(out.get("md5")) for entry in entries.values() for out in entry.get("outs", [])}


def compare(before: dict[str, str], after: dict[str, str]) -> list[dict[str, Any]]:
    """A row an output: {"path", "recorded", "now", "same"}."""
    return [
        {
            "path": path,
            "recorded": before.get(path),
            "now": after.get(path),
            "same": before.get(path) == after.get(path),
        }
        for path in sorted(before.keys() | after.keys())
    ]


def reproduce(root: Path, name: str, kept: bool = False, remove: bool = True) -> list[dict[str, Any]]:
    """Run it again, or (`kept`) fetch what is kept of it; the rows of `compare`."""
    found = source(root, name)
    path = root / workspace.WORKTREES / f"reproduce-{found.commit[:8]}-{os.getpid()}"
    try:
        restore(root, path, found)
        before = outputs(path)
        if not before:
            raise UserError(f"{name} has no outputs in its dvc.lock: nothing was run there")
        with workspace.here(root, path):
            if kept:
                have(path)
                dvc(path, "checkout", "--force", "--quiet")
                after = {out: recorded for out, recorded in before.items() if (path / out).exists()}
                rows = compare(before, after)
                if dvc(path, "status", "--quiet", check=False):
                    raise UserError(f"what is kept of {name} is not what its dvc.lock recorded: `dvc status` in {path}")
                return rows
            dvc(path, "repro", "--force", "--no-run-cache")
        return compare(before, outputs(path))
    finally:
        if remove and path.exists():
            workspace.remove(root, path)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.reproduce", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", help="an MLflow run id, a run's name, or a git revision")
    parser.add_argument("--kept", action="store_true", help="fetch what is kept of it, and run nothing")
    parser.add_argument("--keep-worktree", action="store_true", help="leave the worktree, to look into")
    parser.add_argument("--json", action="store_true", help="one JSON object an output")
    options = parser.parse_args(words)
    same = True

    def run() -> None:
        nonlocal same
        dotenv.load(Path.cwd())
        root = Path(git(Path.cwd(), "rev-parse", "--path-format=absolute", "--git-common-dir")).parent
        rows = reproduce(root, options.run, options.kept, not options.keep_worktree)
        for row in rows:
            shown = f"{'same' if row['same'] else 'DIFFERS':8}{row['recorded']}  {row['now']}  {row['path']}"
            print(json.dumps(row) if options.json else shown)
        differing = [row["path"] for row in rows if not row["same"]]
        same = not differing
        if not options.json:
            print(f"{len(rows) - len(differing)} of {len(rows)} outputs are the same")

    return exit_code(run) or (0 if same else 1)


if __name__ == "__main__":
    sys.exit(main())
