"""Makes a command of addons/supervised/generate.py a stage of DVC, in generated/<task>/dvc.yaml.

The stage is frozen, because to ask a model may cost: `dvc repro` of a run takes the file that is there. To write it again,
`dvc unfreeze generated/<task>/dvc.yaml:<name>` and `dvc repro generated/<task>/dvc.yaml`. The file itself is the task's
data, which git has, so DVC keeps no copy of it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from steps.core.errors import UserError
from steps.project.dvc import dvc

FOLDER = Path("generated")
CODE = (Path("environments"), Path("addons/supervised"), Path("steps/data"), Path("addons/models"))
REPORT = ".report.json"  # beside a generated file


def check(task: str, out: Path, failed: Path | None) -> None:
    """UserError where the file would not be the task's data, this folder is no repository of DVC, or the stage would depend
    on itself, by the iteration `failed` that it reads."""
    if failed is not None:
        raise UserError(
            "--dvc: --from-failures reads what a run made of the task's data, and the file that is written belongs to that "
            "data, so the stage would depend on itself; leave one of the two out"
        )
    if out.parent != Path("tasks_data") / task:
        raise UserError(
            f"--dvc: --out must be in tasks_data/{task}/, from where scenarios.generated reads it, not {out}"
        )
    if not Path(".dvc").is_dir():
        raise UserError(f"--dvc: {Path.cwd()} is no repository of DVC; run this from the project's root")


def add(task: str, out: Path, words: Sequence[str], read: Sequence[Path]) -> str:
    """Write the stage that runs the command `words` and depends on the code, the task's data and the files and folders
    `read`, and take what the command has just written as its result; the stage's address."""
    data = sorted(path for path in out.parent.iterdir() if path.name != "policy" and not is_generated(path))
    folder, name = FOLDER / task, re.sub(r"[^A-Za-z0-9_-]", "-", out.stem)
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--force", "--name", name, "--wdir", os.path.relpath(Path.cwd(), folder)]
    for path in (*CODE, *data, *read):
        options += ["--deps", os.fspath(path)]
    for path in (out, out.with_name(out.name + REPORT)):
        options += ["--outs-no-cache", os.fspath(path)]
    command = shlex.join(["steps/python", "-m", "addons.supervised.generate", *words])
    address = f"{folder / 'dvc.yaml'}:{name}"
    dvc(folder, "stage", "add", "--quiet", *options, command)
    dvc(Path.cwd(), "commit", "--quiet", "--force", address)
    dvc(Path.cwd(), "freeze", "--quiet", address)
    return address


def is_generated(path: Path) -> bool:
    """Whether a file of a task's data was generated, or is such a file's report."""
    return path.name.endswith(REPORT) or path.with_name(path.name + REPORT).exists()
