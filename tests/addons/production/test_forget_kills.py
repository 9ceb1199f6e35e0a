"""A kill before each write of a deletion and of an ingestion: the next start finishes it, and nothing comes back."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from addons.production import forget
from addons.production.traces import sources, tombstones
from steps.core import params
from steps.project.ledger import Ledger
from tests.support import forget_kills as kills


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ingested and captured conversations, in a folder without DVC; its forks need not load the task again."""
    kills.prepare(tmp_path)
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.chdir(tmp_path)
    with Ledger():
        pass
    monkeypatch.setattr(sources, "MOST", 0)  # a dozen scenarios are held out, not thousands
    task = sources.load_task(tmp_path, params.load("params.yaml", params.Params))
    for module in (forget, sources):
        monkeypatch.setattr(module, "load_task", lambda *_: task)
    for number in (1, 2):
        kills.capture(tmp_path, number)
    kills.export(tmp_path / "chats.jsonl", [kills.row(f"c{number}", number) for number in (1, 2)])
    return tmp_path


def killed(project: Path, command: str, at: int) -> int:
    """How the command ends that is killed before its change number `at`, in a copy of the project; then any next start is
    all that is needed."""
    spare = project.with_name(f"{project.name}-spare-{at}")
    shutil.copytree(project, spare)
    os.environ["FLYWHEEL_LEDGER_URL"] = f"sqlite:///{spare}/ledger.db"
    code, _ = kills.child(spare, kills.forgetting("c1") if command == "forget" else kills.ingesting("capture"), at)
    assert code in (0, -signal.SIGKILL), (spare / "log.txt").read_text()
    assert kills.child(spare, kills.ingesting("capture"))[0] == 0, (spare / "log.txt").read_text()
    assert kills.torn(spare) == []
    if command == "ingest":
        assert kills.held(spare) == {1, 2, 3}
    else:
        has_begun = (tombstones.of(spare).folder / "tombstones").exists()
        assert kills.held(spare) == ({2} if has_begun else {1, 2})
        assert not has_begun or kills.brought_back(spare, {1}) == set()
    return code


def begun(project: Path, command: str) -> None:
    words = ["openai:chats.jsonl", *(["capture"] if command == "forget" else [])]
    assert kills.child(project, kills.ingesting(*words))[0] == 0
    if command == "ingest":
        kills.capture(project, 3)


@pytest.mark.parametrize("command", ["forget", "ingest"])
def test_a_kill_in_the_middle_is_mended_by_the_next_start(project: Path, command: str) -> None:
    begun(project, command)
    assert killed(project, command, 3) == -signal.SIGKILL


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("command", ["forget", "ingest"])
def test_a_kill_before_each_change_is_mended_by_the_next_start(project: Path, command: str) -> None:
    begun(project, command)
    number = 0
    while killed(project, command, number):
        number += 1
    assert number > 8, "there were changes to be killed at"
