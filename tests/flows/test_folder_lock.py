"""One command at a time changes a folder: the second one says who is at work, and touches nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.repro import folder_lock
from flows.terminal import command
from steps.core.errors import UserError
from steps.runner import handover
from tests.conftest import ROOT, python, run

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from flows.repro import folder_lock
with folder_lock.held(Path.cwd(), "python -m flows.train --task tic_tac_toe"):
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)  # which does not keep the lock
    print(child.pid, flush=True)
    time.sleep(60)
"""
SECOND = """
import sys
from pathlib import Path
from flows.terminal import command
def work():
    Path("params.yaml").write_text("changed")
sys.exit(command.run_command(work, writes=sys.argv[1:] != ["--dry-run"]))
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is at work in the folder."""
    environment = os.environ | {"PYTHONPATH": os.fspath(ROOT)}
    words = [sys.executable, "-c", HOLDER]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process
    os.kill(child, signal.SIGKILL)
    process.kill()
    process.communicate()


def test_the_second_command_names_the_first_and_touches_nothing(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    (tmp_path / "second_command.py").write_text(SECOND)
    (tmp_path / "dvc.yaml").write_text("")
    (tmp_path / "params.yaml").write_text("seed: 1\n")
    path = os.pathsep.join((os.fspath(tmp_path), os.fspath(ROOT)))
    (tmp_path / ".flywheel/prefect").mkdir()  # `run` makes it
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    second = run(python("second_command"), tmp_path, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    assert second.returncode == 2
    assert second.stderr.startswith(
        f"error: `python -m flows.train --task tic_tac_toe` (process {holder.pid}, since 20"
    ), second.stderr
    assert f"stop it with `kill {holder.pid}`" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert run(python("second_command", "--dry-run"), tmp_path, PYTHONPATH=path).returncode == 0, "it only reads"


def test_the_lock_ends_with_the_process_that_holds_it(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(UserError, match="is at work in"), folder_lock.held(tmp_path, "make train"):
        pass
    holder.kill()
    holder.wait()
    with folder_lock.held(tmp_path, "make train"):
        pass
    (tmp_path / "elsewhere").mkdir()
    with folder_lock.held(tmp_path, "make train"), folder_lock.held(tmp_path / "elsewhere", "make train"):
        pass


def test_an_owner_that_has_not_written_who_it_is(tmp_path: Path) -> None:
    assert folder_lock.refusal(tmp_path, "").startswith(f"another command is at work in {tmp_path}")
    elsewhere = '{"pid": 7, "host": "other-machine", "command": "make train", "since": "2026-11-22 14:00:00"}'
    assert "stop it with `kill 7` on other-machine" in folder_lock.refusal(tmp_path, elsewhere)


def test_a_state_folder_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in its place stands for a folder that is read-only: root, as whom tests may run, may write anywhere."""
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").touch()
    Path(".flywheel").touch()
    with monkeypatch.context() as patched:
        patched.setattr(signal, "signal", lambda *_: None)
        patched.setattr(handover, "end_own_workers", lambda: None)
        assert command.run_command(lambda: 0) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/.flywheel cannot be used (File exists): ")
