"""A run that starts over says so once, with what changed; and the lists of code are made again after an edit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from flows.repro.pipeline import Pipeline
from tests.conftest import run

DVC = """
stages:
  code:
    cmd: python list.py
    deps: [environments]
    outs: [run/code]
  scenarios:
    cmd: cp data run/scenarios
    deps: [data, run/code/scenarios.json]
    params: [seed, rollout]
    outs: [run/scenarios]
  rollout_1:
    cmd: cp run/scenarios run/trajectories
    deps: [run/scenarios, sampler.py]
    outs: [run/trajectories]
  register:
    cmd: cp run/trajectories run/receipt
    deps: [run/trajectories, card.py]
    outs: [run/receipt]
"""
LIST = """
import json, pathlib
files = {str(p): p.read_text() for p in pathlib.Path("environments").glob("[!o]*.py")}
pathlib.Path("run/code").mkdir(exist_ok=True)
pathlib.Path("run/code/scenarios.json").write_text(json.dumps(files))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for words in (["git", "init", "--quiet"], ["dvc", "init", "--quiet"]):
        assert run(words, folder).returncode == 0
    (folder / "run").mkdir()
    (folder / "environments").mkdir()
    files = {"dvc.yaml": DVC, "list.py": LIST, "environments/mine.py": "1"}
    files |= {"params.yaml": "{seed: 1, rollout: {temperature: 1.0, attempts: 8}}", "data": "d"}
    for name, text in (files | {"sampler.py": "1", "card.py": "1"}).items():
        (folder / name).write_text(text)
    assert said(folder) == [], "what never ran does not run again"
    return folder


def said(folder: Path) -> list[str]:
    """What a run of all stages says."""
    lines = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pipeline = Pipeline(folder, say=lines.append)
        for stage in ("scenarios", "rollout_1", "register"):
            pipeline.reproduce(stage)
    return lines


def test_what_is_fresh_says_nothing(ran: Path) -> None:
    assert said(ran) == []
    (ran / "environments/other.py").write_text("another task")
    assert said(ran) == []


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("environments/mine.py", "2", "The run starts over from scenarios: environments/mine.py changed."),
        ("data", "e", "The run starts over from scenarios: data changed."),
        (
            "params.yaml",
            "{seed: 2, rollout: {temperature: 0.7, attempts: 8}}",
            "The run starts over from scenarios: seed (1 → 2) and rollout.temperature (1.0 → 0.7) changed.",
        ),
        ("sampler.py", "2", "The run starts over from rollout_1: sampler.py changed."),
        ("card.py", "2", "register runs again: card.py changed."),
    ],
)
def test_what_changed_is_said_once(ran: Path, name: str, text: str, sentence: str) -> None:
    (ran / name).write_text(text)
    assert said(ran) == [sentence]
    assert said(ran) == []


def test_lost_results_and_other_commands_are_named(ran: Path) -> None:
    (ran / "dvc.yaml").write_text(
        (ran / "dvc.yaml").read_text().replace("cp data run/scenarios", "cp -f data run/scenarios")
    )
    assert said(ran) == ["The run starts over from scenarios: its command changed."]
    assert run(["rm", "-r", "run/trajectories", ".dvc/cache"], ran).returncode == 0
    assert said(ran) == ["The run starts over from scenarios: run/ or DVC's cache lacks its results."]


def test_a_run_from_before_its_code_was_listed_starts_over(ran: Path) -> None:
    lock = yaml.safe_load((ran / "dvc.lock").read_text())
    deps = lock["stages"]["scenarios"]["deps"]
    lock["stages"]["scenarios"]["deps"] = [dep for dep in deps if not dep["path"].startswith("run/code/")]
    (ran / "dvc.lock").write_text(yaml.safe_dump(lock))
    (ran / "data").write_text("f")  # else DVC finds the result in its cache, and nothing runs
    assert said(ran) == ["The run starts over from scenarios: data and the way its code is listed changed."]
    assert said(ran) == []


def test_an_edit_while_a_run_goes_on_counts_for_the_stages_that_follow(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ran)
    pipeline = Pipeline(ran)
    pipeline.reproduce("scenarios")
    (ran / "environments/mine.py").write_text("edited meanwhile")
    pipeline.reproduce("rollout_1")
    assert json.loads((ran / "run/code/scenarios.json").read_text())["environments/mine.py"] == "edited meanwhile"
    assert pipeline.reproduce("scenarios"), "and the next run begins there"


STAGES = ("scenarios", "rollout_1", "register")


def test_a_look_at_all_stages_at_once_says_what_dvc_says_of_each(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ran)
    said(ran)
    pipeline = Pipeline(ran)
    pipeline.look()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_reproduce", lambda *_, **__: pytest.fail("DVC is asked again"))
        assert [pipeline.reproduce(stage) for stage in STAGES] == [False] * 3
    (ran / "data").write_text("h")
    pipeline = Pipeline(ran)
    pipeline.look()
    assert [pipeline.reproduce(stage) for stage in STAGES] == [True] * 3, "what was up to date before the first ran"


@pytest.mark.parametrize("name", ["params.yaml", "environments/mine.py"])
def test_what_is_edited_after_the_look_counts(ran: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ran)
    said(ran)
    pipeline = Pipeline(ran)
    pipeline.look()
    (ran / name).write_text("{seed: 9, rollout: {temperature: 1.0, attempts: 8}}" if name == "params.yaml" else "9")
    assert pipeline.reproduce("scenarios")
