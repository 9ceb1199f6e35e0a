"""What a fresh machine lacks is said before anything is downloaded."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

SYSTEM = ROOT / "requirements" / "system"
HIDE = 'for file in {files}; do mount --bind /dev/null "$file" || exit 77; done; '


@functools.cache
def library() -> tuple[str, ...]:
    """The files of libnuma on this machine."""
    found = [path for place in ("/lib", "/usr/lib", "/usr/lib64") for path in Path(place).glob("**/libnuma.so.1*")]
    return tuple(sorted({os.path.realpath(path) for path in found}))


def without_libnuma(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command in a namespace in which the library's files are empty."""
    words = ["unshare", "--map-root-user", "--mount", "bash", "-c", HIDE.format(files=" ".join(library())) + command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this machine permits no mount namespaces")
    return done


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """What `make install` reads, in a folder without an environment."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / ".git").mkdir()
    (tmp_path / "tasks_data" / "_models").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    "target", ["train", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("install", "dev"))]
)
def test_a_missing_library_is_a_sentence_before_anything_is_installed(fresh: Path, target: str) -> None:
    done = without_libnuma(fresh, f"make {target}")
    assert done.returncode == 2
    assert "This machine lacks the library libnuma.so.1, which vLLM needs on a CPU." in done.stderr
    assert "libnuma1' installs it" in done.stderr
    assert "Nothing was downloaded" in done.stderr
    assert not (fresh / ".venv").exists()


def test_an_environment_for_a_gpu_needs_none(fresh: Path) -> None:
    assert without_libnuma(fresh, "requirements/system 1").returncode == 0


def test_all_that_is_missing_is_in_one_command(tmp_path: Path) -> None:
    for name in ("sh", "grep"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        ["sh", str(SYSTEM), "0", "1"], cwd=tmp_path, env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "lacks make, git, a Python 3 with venv" in done.stderr
    assert "apt-get install make git python3 python3-venv" in done.stderr
    assert "a C compiler (for tests)" in done.stderr
    assert "gcc libc6-dev" in done.stderr
    assert "dnf install make git python3 python3-pip" in done.stderr


def test_continuous_integration_installs_what_this_list_names() -> None:
    assert "requirements/system packages 1" in (ROOT / ".ci" / "run").read_text()
    named = (ROOT / "README.md").read_text()
    assert "Python 3 with venv, make, git and libnuma" in named
