"""Scenarios from production among the task's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import environments
from addons.production import scenarios as production
from addons.production.section import Ingested
from environments.base import Scenario, Split
from steps.core.errors import UserError
from steps.core.params import Scenarios
from steps.data import contamination

TASK = "email_search"
ENV = environments.load(TASK)
DATA = ENV.load(Path("tasks_data") / TASK)
SPLITS: tuple[Split, ...] = ("train", "val", "test")


def own(count: int = 30) -> dict[Split, list[Scenario]]:
    return {split: ENV.scenarios(DATA, split, count, 1) for split in SPLITS}


def asked(number: int, owner: str = "Zoe Zander") -> Scenario:
    data = {
        "owner": f"{owner} {number % 9}",
        "kind": "latest",
        "answer": "x",
        "conflicting": [],
        "source_ids": [f"m{number}"],
    }
    words = f"What is the newest thing of note number {number} in the yellow folder on the shelf?"
    return Scenario.make(TASK, "train", [{"role": "user", "content": words}], data)


def mix(more: list[Scenario], share: float = 0.5) -> tuple[dict[Split, list[Scenario]], dict[str, int]]:
    return production.mixed(ENV, DATA, own(), more, TASK, Scenarios(), share, 1)


def test_a_share_of_train_and_val_is_from_production_and_the_number_stays() -> None:
    more = [asked(number) for number in range(60)]
    made, counts = mix(more)
    assert {split: len(scenarios) for split, scenarios in made.items()} == dict.fromkeys(SPLITS, 30)
    assert made["test"] == own()["test"]
    assert counts["train"] == 15
    assert 0 < counts["val"] <= 15
    new = {scenario.id for scenario in own()["train"]} ^ {scenario.id for scenario in made["train"]}
    assert len(new) == 30  # 15 that came and 15 that went
    contamination.check(ENV, TASK, made, Scenarios())
    inboxes = [
        {scenario.data["owner"] for scenario in made[split] if "Zoe" in scenario.data["owner"]} for split in SPLITS
    ]
    assert inboxes[0]
    assert inboxes[1]
    assert not inboxes[0] & inboxes[1]
    assert not inboxes[2]
    assert mix(more) == (made, counts)  # the same again


def test_few_of_them_replace_few() -> None:
    made, counts = mix([asked(number) for number in range(4)])
    assert counts["train"] + counts["val"] == 4
    assert len(made["train"]) == 30


def test_what_is_like_a_scenario_of_the_other_side_is_left_out() -> None:
    known = own()["train"][0]
    owner = next(f"Val {n}" for n in range(100) if production.split_of(f"Val {n}") == "val")
    double = Scenario.make(TASK, "train", known.messages, known.data | {"owner": owner})
    made, counts = mix([double])
    assert counts == {"train": 0, "val": 0, "left_out": 1}
    assert made == own()


def test_what_is_there_already_is_not_taken_again() -> None:
    made, counts = mix(
        [scenario for scenario in own()["train"] if production.split_of(scenario.data["owner"]) == "train"]
    )
    assert counts["train"] == 0
    assert {s.id for s in made["train"]} == {s.id for s in own()["train"]}


def test_another_version_than_the_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scenarios.jsonl"
    path.write_text(json.dumps(asked(1).model_dump(mode="json") | {"source": "chat 1"}) + "\n")
    version = production.md5(path)
    assert production.read_version(Ingested(version=version), path) == [asked(1)]
    with pytest.raises(UserError, match=f"is {'0' * 32}, and .* is {version}"):
        production.read_version(Ingested(version="0" * 32), path)
    path.unlink()
    with pytest.raises(UserError, match=r"is not here: `.venv/bin/dvc checkout"):
        production.read_version(Ingested(version=version), path)
