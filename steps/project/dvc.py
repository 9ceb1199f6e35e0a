"""DVC's commands in a project's folder, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from steps.core.errors import UserError


def own_cache(root: Path) -> None:
    """Make the folder that .dvc/config names for DVC's pickled notes, which DVC itself would open to everybody."""
    folder = root / ".flywheel" / "dvc" / "repo"
    if (root / ".dvc").is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o700)


def dvc(path: Path, *words: str, check: bool = True) -> int:
    """Run a DVC command in a folder; its exit code. UserError where it fails and `check` is on."""
    own_cache(path)
    binaries = os.pathsep.join((os.fspath(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = os.environ | {"PATH": binaries, "DVC_NO_ANALYTICS": "1"}
    code = subprocess.run([sys.executable, "-m", "dvc", *words], cwd=path, env=environment).returncode
    if code and check:
        raise UserError(f"dvc {words[0]} failed (exit code {code}): see its output above")
    return code


def dvc_output(path: Path, *words: str) -> str:
    """What a DVC command prints; nothing where it fails."""
    return subprocess.run([sys.executable, "-m", "dvc", *words], cwd=path, capture_output=True, text=True).stdout
