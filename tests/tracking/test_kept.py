"""`python -m steps.tracking NAME`: a deployed run is logged again, although its worktree is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from steps.project import store
from steps.project.git import git
from steps.project.kept_runs import WORKTREES
from steps.tracking import __main__ as command
from steps.tracking.__main__ import kept_run
from tests.conftest import small_repository


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a run that was kept, and one whose worktree is still there."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    small_repository(tmp_path, "seed: 2\n")
    git(tmp_path, "update-ref", "refs/runs/second", "HEAD")
    (tmp_path / WORKTREES / "failed").mkdir(parents=True)
    return tmp_path


def test_a_run_whose_worktree_is_gone_is_checked_out_for_as_long_as_it_is_logged(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[Path, str, str]] = []

    def log(root: Path, name: str = "") -> None:
        assert (root / "params.yaml").read_text() == "seed: 2\n"
        logged.append((root, name, os.environ["MLFLOW_TRACKING_URI"]))

    monkeypatch.setattr(command, "log", log)
    assert command.main(["--root", os.fspath(project), "second"]) == 0
    [(path, name, address)] = logged
    assert (name, address) == ("second", store.address(project))
    assert path.parent == project / WORKTREES
    assert not path.exists()
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_a_worktree_that_is_there_is_used_and_stays(project: Path) -> None:
    with kept_run(project, "failed") as path:
        assert path == project / WORKTREES / "failed"
    assert path.is_dir()


@pytest.mark.parametrize("name", ["third", "../worktrees", "..", "second^"])
def test_another_name_is_one_sentence(project: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert command.main(["--root", os.fspath(project), name]) == 2
    assert f"there is no run {name!r} in {project}; the latest runs: second" in capsys.readouterr().err
