"""Which iterations a run that goes on adds to the lineage, and that a ledger that is away stops no run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from addons.lineage import tracker


def test_each_iteration_and_the_tests_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chain.yaml").write_text(
        yaml.safe_dump({"started": {"start": {"name": "start"}}, "tested": {"base": "000", "best": "start"}})
    )
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    added: list[list[str]] = []
    monkeypatch.setattr("addons.lineage.index.index", lambda root, ledger, numbers: added.append(list(numbers)))
    lineage = tracker.LineageTracker(tmp_path, print)
    for number in ("001", "002"):
        lineage.iteration(number)
    lineage.finish("KILLED")
    lineage.finish()
    assert added == [["000", "start", "001"], ["002"], ["000", "start"]]


def test_a_ledger_that_is_away_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    run: Any = SimpleNamespace(root=tmp_path, log_message=lines.append)
    live = tracker.begin(run, is_live=True)
    assert live is not None
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", "mysql://host/ledger")
    live.iteration("002")
    [line] = lines
    assert line.startswith("The ledger was not written: ")
    assert "`make ledger` does it later" in line
    assert tracker.begin(run, is_live=False) is None
