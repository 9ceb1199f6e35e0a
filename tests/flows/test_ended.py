"""A run that has ended: what counts as a change since, so that the same command looks at every stage again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.training import ended
from steps.core.errors import UserError
from steps.registry import publish
from tests.conftest import run

SUMMARY = {"registered": None}  # test_ending_registry.py has those with a version


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which a run has ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("FLYWHEEL_LEDGER_URL", raising=False)
    files = ["addons/a/b.py", "environments/mine/task.py", "flows/train.py", "steps/x.py", "tasks_data/mine/mail.json"]
    files += ["run/001/metrics.json", "params.yaml", "dvc.lock", ".flywheel/mlflow.db", ".flywheel/ledger.db"]
    for name in files:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("1")
    Path("run/summary.json").write_text(json.dumps(SUMMARY))
    Path("run/receipt.json").write_text(json.dumps({"adapter_hash": "f00"}))
    Path(".env.example").write_text("# Of MLflow.\n#MLFLOW_TRACKING_URI=\n#FLYWHEEL_WORKER=on\n")
    ended.keep("", lambda: True)
    assert ended.unchanged("") == SUMMARY
    return tmp_path


def rewritten(name: str) -> None:
    """Write another text of the same size at the same time, as an editor that saves by replacing does."""
    status = Path(name).stat()
    Path(name).rename(f"{name}~")
    Path(name).write_text("2")
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns))
    Path(f"{name}~").unlink()


CHANGES: dict[str, Callable[[], object]] = {
    "code": lambda: Path("steps/x.py").write_text("22"),
    "code of the same size and time": lambda: rewritten("environments/mine/task.py"),
    "a new file": lambda: Path("addons/a/c.py").write_text(""),
    "a folder that is gone": lambda: Path("addons/a").rename("gone"),
    "data": lambda: Path("tasks_data/mine/mail.json").unlink(),
    "an output": lambda: os.utime("run/001/metrics.json", ns=(1, 1)),
    "params.yaml": lambda: Path("params.yaml").write_text("2"),
    "dvc.lock": lambda: Path("dvc.lock").unlink(),
    "the store of runs": lambda: rewritten(".flywheel/mlflow.db"),
    "the ledger": lambda: Path(".flywheel/ledger.db").unlink(),
    "a variable": lambda: os.environ.update(FLYWHEEL_WORKER="off"),
    "a variable in .env": lambda: Path(".env").write_text("FLYWHEEL_WORKER=off"),
    "what a run starts from": lambda: Path("start.dvc").write_text(""),
    "the summary": lambda: Path("run/summary.json").write_text("{"),
    "the hash": lambda: ended.KEPT.write_text("ab"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_counts(here: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setenv("FLYWHEEL_WORKER", "")
    monkeypatch.delenv("FLYWHEEL_WORKER")  # taken back at the end
    CHANGES[change]()
    assert ended.unchanged("") is None


def test_what_no_stage_reads_does_not_count(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("steps/__pycache__").mkdir()
    Path("steps/__pycache__/x.pyc").write_text("")
    Path("notes.txt").write_text("")
    Path("params.yaml").write_text("1")
    monkeypatch.setenv("TERM", "dumb")
    assert ended.unchanged("") == SUMMARY
    assert ended.unchanged("second") is None, "in MLflow a run of that name is wanted"


def test_a_named_run_is_kept_again_where_its_ref_is_gone(here: Path) -> None:
    assert run(["git", "init", "--quiet"], here).returncode == 0
    assert run(["git", "commit", "--quiet", "--allow-empty", "-m", "x"], here).returncode == 0
    ended.keep("second", lambda: True)
    assert ended.unchanged("second") is None
    assert run(["git", "update-ref", "refs/runs/second", "HEAD"], here).returncode == 0
    assert ended.unchanged("second") == SUMMARY


@pytest.mark.parametrize("seen", ["a stale stage", "an edit meanwhile", "a file that goes meanwhile"])
def test_only_what_dvc_has_seen_to_be_up_to_date_is_kept(here: Path, seen: str) -> None:
    ended.KEPT.unlink()

    def look() -> bool:
        if seen == "an edit meanwhile":
            Path("steps/x.py").write_text("333")
        elif seen == "a file that goes meanwhile":
            Path(".env.example").unlink()
        return seen != "a stale stage"

    ended.keep("", look)
    assert not ended.KEPT.exists()


@pytest.mark.parametrize(
    ("there", "is_unchanged"), [("3", True), ("4", False), (None, False), (UserError("away"), False)]
)
def test_a_registry_elsewhere_is_asked(
    here: Path, monkeypatch: pytest.MonkeyPatch, there: str | UserError | None, is_unchanged: bool
) -> None:
    def registered(name: str, adapter_hash: str) -> str | None:
        assert (name, adapter_hash) == ("toy", "f00")
        if isinstance(there, UserError):
            raise there
        return there

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(publish, "registered_version", registered)
    Path("run/summary.json").write_text(json.dumps({"registered": {"name": "toy", "version": "3"}}))
    ended.keep("", lambda: True)
    assert (ended.unchanged("") is not None) is is_unchanged
