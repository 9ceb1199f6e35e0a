"""Makes a command of steps/data/generate.py a stage of DVC, in generated/<task>/dvc.yaml.

The stage is frozen, because to ask a model may cost: `dvc repro` of a run takes the file that is there. To write it again,
`dvc unfreeze generated/<task>/dvc.yaml:<name>` and `dvc repro generated/<task>/dvc.yaml`. The file itself is the task's
data, which git has, so DVC keeps no copy of it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from steps.core.errors import UserError

FOLDER = Path("generated")
CODE = (Path("environments"), Path("steps/data"), Path("steps/llm"))
REPORT = ".report.json"  # beside a generated file


def check(task: str, out: Path) -> None:
    """UserError where the file would not be the task's data, or this folder is no repository of DVC."""
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
    depends = [*(path for path in CODE if path.exists()), *(path for path in data if path != out), *read]
    folder, name = FOLDER / task, re.sub(r"[^A-Za-z0-9_-]", "-", out.stem)
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--force", "--name", name, "--wdir", os.path.relpath(Path.cwd(), folder)]
    for path in depends:
        options += ["--deps", os.fspath(path)]
    for path in (out, out.with_name(out.name + REPORT)):
        options += ["--outs-no-cache", os.fspath(path)]
    command = shlex.join(["python", "-m", "steps.data.generate", *words])
    address = f"{folder / 'dvc.yaml'}:{name}"
    dvc(folder, "stage", "add", *options, command)
    dvc(Path.cwd(), "commit", "--force", address)
    dvc(Path.cwd(), "freeze", address)
    return address


def is_generated(path: Path) -> bool:
    """Whether a file of a task's data was generated, or is such a file's report."""
    return path.name.endswith(REPORT) or path.with_name(path.name + REPORT).exists()


def dvc(folder: Path, *words: str) -> None:
    """Run DVC. UserError with its message where it fails."""
    variables = os.environ | {"DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *words], cwd=folder, env=variables, capture_output=True, text=True
    )
    if done.returncode:
        raise UserError(f"dvc {words[0]} failed: {' '.join(done.stderr.split())}")
