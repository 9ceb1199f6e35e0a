"""Which way a run takes: chosen by what the first attempts show and by what there is to learn from, and said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from addons.readiness import way
from addons.readiness.readiness import Readiness
from addons.supervised import collect
from addons.supervised.collect import PLAYER
from addons.supervised.section import Sft
from steps.core.errors import UserError
from steps.core.params import Params, load
from tests.conftest import ROOT

TASK = "tests.support.capitals"
PRESET = (ROOT / "tasks_data/_template/preset.yaml").read_text().replace("task: _template", f"task: {TASK}")
SPEAKS = Readiness(64, 0, 60, 0, 64, 9, 8, 5)
SILENT = Readiness(64, 0, 0, 64, 64, 0, 8, 4)
SOLVED = Readiness(64, 0, 64, 0, 64, 64, 8, 0)
UNJUDGED = Readiness(64, 0, 64, 0, 0, None, 8, 0)
BROKEN = Readiness(64, 64, 0, 0, 0, 0, 8, 0, "no database")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the data and the preset of a small task with a player."""
    shutil.copytree(ROOT / "tasks_data/_template", tmp_path / "tasks_data" / TASK)
    (tmp_path / "params.yaml").write_text(PRESET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flows.repro.parameters.check_task", lambda task: None)  # which knows no template
    monkeypatch.setattr(way.start, "prepare", lambda params, keep=False: [])
    return tmp_path


def choose(measured: Readiness, **changes: object) -> tuple[Params, list[str]]:
    lines: list[str] = []
    params = load("params.yaml", Params)
    params = params.model_copy(update={"train": params.train.model_copy(update=changes)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(way, "measured_on", lambda *_: measured)
        return way.choose(params, lambda: None, lines.append), lines


def test_a_policy_that_speaks_is_reinforced_at_once(project: Path) -> None:
    before = (project / "params.yaml").read_text()
    params, lines = choose(SPEAKS)
    assert not params.is_taught
    assert "learns by reinforcement (GRPO) at once" in lines[-1]
    assert (project / "params.yaml").read_text() == before


def test_one_that_does_not_is_taught_by_the_scripted_player(project: Path) -> None:
    params, lines = choose(SILENT)
    assert (Sft.of(params), params.update.reference) == (Sft(demonstrations=(PLAYER,)), "start")
    assert load("params.yaml", Params) == params, "what `dvc repro` reads says the same"
    assert lines[-1].startswith("Cut off: 64 of 64 attempts")
    assert "taught by player:scripted first" in lines[-1]


def test_demonstrations_of_the_task_and_good_conversations_go_before_the_player(project: Path) -> None:
    own = project / "tasks_data" / TASK / "demonstrations.jsonl"
    own.write_text("")
    assert way.material(load("params.yaml", Params)) == ["demonstrations.jsonl"]
    (project / "ingested" / TASK).mkdir(parents=True)
    (project / "ingested" / TASK / "demonstrations.jsonl").write_text("")
    both = ["demonstrations.jsonl", f"ingested/{TASK}/demonstrations.jsonl"]
    assert way.material(load("params.yaml", Params)) == both


@pytest.mark.parametrize(
    ("measured", "cause", "cures"),
    [
        (
            SILENT,
            "cut off: 64 of 64",
            ["rollout.max_tokens", f"30 demonstrations to tasks_data/{TASK}/demonstrations.jsonl"],
        ),
        (SPEAKS._replace(called=0), "no valid call: 0 of 64", ["a player `scripted`", "PRESET=smollm2"]),
        (SPEAKS._replace(succeeded=0), "no success: 0 of 64", ["30 demonstrations"]),
        (SPEAKS._replace(varied=0), "no variance: at each of 8", ["partial credit", "rollout.attempts"]),
    ],
)
def test_without_anything_to_learn_from_the_run_stops_and_says_what_is_missing(
    project: Path, monkeypatch: pytest.MonkeyPatch, measured: Readiness, cause: str, cures: list[str]
) -> None:
    monkeypatch.setattr(collect, "has_examples", lambda params: False)
    with pytest.raises(UserError) as stopped:
        choose(measured)
    for words in (cause, *cures, "ARGS=--force"):
        assert words in str(stopped.value)
    assert not choose(measured, way="grpo")[0].is_taught, "--force goes on"


def test_without_an_addon_that_teaches_another_policy_is_what_is_left(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(way, "names", lambda port: [])
    command = f"`make train TASK={TASK} PRESET=smollm2`"
    assert way.missing(load("params.yaml", Params)) == f"Begin with a policy that knows more, such as {command}."


@pytest.mark.parametrize(
    ("measured", "cause", "cure"),
    [
        (SOLVED, "no variance: all 64", "harder"),
        (UNJUDGED, "judge silent", "judgements.jsonl"),
        (BROKEN, "no database", "check-task"),
    ],
)
def test_demonstrations_mend_no_judge_no_task_and_nothing_that_is_solved(
    project: Path, measured: Readiness, cause: str, cure: str
) -> None:
    with pytest.raises(UserError, match=cause) as stopped:
        choose(measured)
    assert cure in str(stopped.value)


def test_the_way_is_set_by_hand(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params, _ = choose(SPEAKS, way="sft")
    assert params.is_taught
    assert choose(SILENT)[0] == load("params.yaml", Params), "with a section sft nothing is measured"
    monkeypatch.setattr(collect, "has_examples", lambda params: False)
    (project / "params.yaml").write_text(PRESET)
    with pytest.raises(UserError, match=r"train\.way is sft, and there is nothing to learn from"):
        choose(SPEAKS, way="sft")


def test_the_player_shows_the_training_scenarios_where_it_succeeds(project: Path) -> None:
    params, _ = choose(SILENT)
    made = collect.take(project, params, project)
    rows = [json.loads(line) for line in (project / "demonstrations.jsonl").read_text().splitlines()]
    count = len(rows)  # all countries of the training split: each has one question
    assert (made, count > 60) == ({"rows": count, "from": {PLAYER: count}, "repeated": 0}, True)
    assert {row["messages"][-1]["tool_calls"][0]["function"]["name"] for row in rows} == {"answer"}
    assert all(row["source"].startswith("scripted/") for row in rows)
