"""The programs of harnesses, from their registries: each is installed once, into .flywheel/harnesses/ of this project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from environments.bridges.harness import HARNESSES
from steps.core.errors import UserError
from tests.conftest import ROOT

FOLDER = ROOT / ".flywheel" / "harnesses"


def install(name: str) -> Path:
    """The folder with a harness's program. UserError where its registry cannot be reached, or npm is missing."""
    program, package = HARNESSES[name].command[0], HARNESSES[name].install.split()[-1]
    is_npm, folder = HARNESSES[name].install.startswith("npm"), FOLDER / name
    programs = folder / "node_modules" / ".bin" if is_npm else folder / "bin"
    if (programs / program).exists():
        return programs
    if is_npm and shutil.which("npm") is None:
        raise UserError(f"npm is not on PATH, which installs {package}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    uv = str(Path(sys.executable).with_name("uv"))
    if is_npm:
        run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), package], package)
    else:
        run([uv, "--quiet", "venv", "--clear", str(folder)], package)
        run(
            [
                uv,
                "--quiet",
                "pip",
                "install",
                "--compile-bytecode",
                "--python",
                str(folder / "bin" / "python"),
                package,
            ],
            package,
        )
    return programs


def run(words: Sequence[str], package: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise UserError(f"{package} cannot be installed here: {(done.stderr or done.stdout).strip()[-300:]}")
