"""steps/python, with which the commands of dvc.yaml begin: whose Python it starts, and what it says where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WHICH = ("-c", "import sys; print(sys.executable)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project's folder, with a space in its name, and a folder `bin` of programs."""
    folder = tmp_path / "my project"
    (folder / "steps").mkdir(parents=True)
    shutil.copy2(ROOT / "steps/python", folder / "steps")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").symlink_to(shutil.which("sh") or "/bin/sh")
    return folder


def script(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PATH": os.fspath(folder.parent / "bin")}
    return subprocess.run(["steps/python", *words], cwd=folder, env=variables, capture_output=True, text=True)


def test_the_folders_own_environment_comes_first(folder: Path) -> None:
    (folder / ".venv").symlink_to(sys.prefix)
    (folder.parent / "bin/python").write_text("#!/bin/sh\necho another >&2\nexit 1\n")
    (folder.parent / "bin/python").chmod(0o755)
    done = script(folder, *WHICH)
    assert (done.stdout.strip(), done.stderr) == (f"{folder}/.venv/bin/python", "")
    assert script(folder, "-c", "import sys; sys.exit(7)").returncode == 7


def test_without_one_it_is_that_of_the_command_that_started_it(folder: Path) -> None:
    (folder.parent / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder.parent / "bin/python").chmod(0o755)
    assert script(folder, *WHICH).stdout.strip() == sys.executable


@pytest.mark.parametrize(
    "other", ["", "#!/bin/sh\necho Traceback >&2\nexit 1\n", f"#!/bin/sh\nexec {sys.executable} -S -I"]
)
def test_where_no_python_has_the_packages_it_says_what_to_do(folder: Path, other: str) -> None:
    if other:
        (folder.parent / "bin/python").write_text(f'{other} "$@"\n')
        (folder.parent / "bin/python").chmod(0o755)
    done = script(folder, "-m", "steps.scenarios")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {folder} has no environment: run 'make install' there")
    assert len(done.stderr.splitlines()) == 1


def test_dvc_repro_needs_no_activated_environment(folder: Path) -> None:
    """A stage that prints its interpreter, run by DVC with a PATH on which there is no Python."""
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "dvc.yaml").write_text("stages: {one: {cmd: steps/python -c 'import sys; print(sys.executable)'}}\n")
    (folder.parent / "bin/git").symlink_to(shutil.which("git") or "/usr/bin/git")
    variables = os.environ | {"PATH": os.fspath(folder.parent / "bin"), "DVC_NO_ANALYTICS": "1", "SHELL": "/bin/sh"}
    subprocess.run(["git", "init", "--quiet"], cwd=folder, env=variables, check=True)
    (folder / ".dvc").mkdir()  # as `dvc init` makes it
    (folder / ".dvc/config").touch()
    done = subprocess.run(
        [".venv/bin/python", "-m", "dvc", "repro"], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"{folder}/.venv/bin/python" in done.stdout
