"""A turn of the flywheel: what there is to learn from, and its settings. tests.support.closed_loop is all of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addons.production import flywheel
from addons.production.flywheel import FlywheelSettings
from addons.production.section import Ingested
from addons.starts.section import Started
from addons.supervised.section import Sft
from flows.repro.parameters import set_params
from steps.core.errors import UserError
from steps.core.section import at
from steps.project.kept_runs import keep_described
from tests.conftest import small_repository

TASK = "email_search"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with ten scenarios from production, and no registered model."""
    small_repository(tmp_path, f"task: {TASK}\nseed: 4\n")
    monkeypatch.chdir(tmp_path)
    ingested(tmp_path, range(10))
    (tmp_path / f"ingested/{TASK}/demonstrations.jsonl").write_text('{"messages": []}\n')
    register(monkeypatch)
    return tmp_path


def ingested(root: Path, numbers: Any) -> None:
    folder = root / "ingested" / TASK
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scenarios.jsonl").write_text("".join(json.dumps({"id": f"s{number}"}) + "\n" for number in numbers))


def register(monkeypatch: pytest.MonkeyPatch, **aliases: str) -> None:
    """The registry has versions with these aliases; without any, no version."""

    def read(_: Path, name: str) -> Any:
        if not aliases:
            raise UserError(f"MLflow holds no version of {name}")
        return SimpleNamespace(name=name, aliases=aliases)

    monkeypatch.setattr(flywheel, "read_registry", read)


def gathered(root: Path, **settings: Any) -> flywheel.Turn:
    return flywheel.gather(root, FlywheelSettings(sources=[], **settings), TASK)


def kept_turn(root: Path, name: str, numbers: Any, seed: int) -> None:
    """A kept run that had these scenarios, whose file is in DVC's cache."""
    from addons.production.scenarios import md5

    ingested(root, numbers)
    path = root / f"ingested/{TASK}/scenarios.jsonl"
    version = md5(path)
    cached = root / ".dvc/cache/files/md5" / version[:2] / version[2:]
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_bytes(path.read_bytes())
    set_params([f"seed={seed}", f"scenarios.ingested={{share: 0.5, version: {version}}}"])
    keep_described(root, name)


def test_a_turn_starts_from_the_champion_on_old_and_new(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, champion="3")
    turn = gathered(root, min_new=10, share=0.25, iterations=5)
    assert turn.lines == [
        "10 scenarios are new, of 10 from production",
        f"training starts from models:/{TASK}@champion, with seed 5",
    ]
    params = set_params(turn.assignments)
    assert Started.of(params.policy).start_from == f"models:/{TASK}@champion"
    assert Ingested.of(params) == Ingested(share=0.25, version=None)
    assert (params.seed, at(params, "promote.decides"), params.train.iterations) == (5, "regression", 5)
    assert Sft.of(params) is None


def test_without_a_champion_it_starts_afresh_and_with_good_conversations_if_they_are_wanted(root: Path) -> None:
    set_params([f"policy.start_from=models:/{TASK}@champion"])
    turn = gathered(root, min_new=1, demonstrations=True, decides="test")
    assert turn.lines[-1] == "training starts from a fresh adapter, for there is no champion, with seed 5"
    params = set_params(turn.assignments)
    assert Started.of(params.policy).start_from is None
    assert Sft.of(params) == Sft(demonstrations=(f"ingested/{TASK}/demonstrations.jsonl",))
    assert at(params, "promote.decides") == "test"


def test_too_little_that_is_new_and_a_version_on_trial_train_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = gathered(root, min_new=11)
    assert turn.assignments == []
    assert turn.lines[-1] == "nothing is trained: fewer than 11 (--min-new)"
    register(monkeypatch, champion="3", canary="4")
    turn = gathered(root, min_new=1)
    assert turn.assignments == []
    assert turn.lines[-1] == f"nothing is trained: version 4 of {TASK} is on trial (serve.canary)"


def test_only_what_no_turn_before_it_had_is_new(root: Path) -> None:
    kept_turn(root, "turn-1", range(6), seed=7)
    ingested(root, range(9))
    turn = gathered(root, min_new=3)
    assert turn.lines[0] == "3 scenarios are new since the run turn-1, of 9 from production"
    assert "seed=8" in turn.assignments, "each turn has other scenarios of the task's own"
    assert gathered(root, min_new=4).assignments == []


def test_a_turn_that_dvcs_cache_has_lost_counts_as_none(root: Path) -> None:
    kept_turn(root, "turn-1", range(6), seed=7)
    for path in (root / ".dvc/cache").rglob("*"):
        if path.is_file():
            path.unlink()
    assert gathered(root, min_new=1).lines[0] == "6 scenarios are new since the run turn-1, of 6 from production"


def test_another_settings_of_a_run_can_be_set(root: Path) -> None:
    turn = gathered(root, min_new=1, more={"update.beta": 0.02})
    assert set_params(turn.assignments).update.beta == 0.02
