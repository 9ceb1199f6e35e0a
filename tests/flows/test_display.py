"""What a run says where its output is piped."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.terminal import display, report
from flows.terminal.display import PROGRESS, RunDisplay, duration, module
from flows.terminal.report import Point
from steps.core.params_sections import Scenarios
from tests.conftest import ROOT


def test_a_piped_run_says_what_loads_which_iteration_it_is_and_how_long_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    display = RunDisplay()
    with display.shown(tmp_path / "log"):
        for stage in ("initialise", "evaluate@000", "score@001"):
            display.begin(stage)
        display.begin_iteration(1, 10)
        display.row(Point(1, 0.5, (0.4, 0.6), 0.1, 0.5), 0.25, 30.0)
        display.begin_iteration(2, 10)
        assert "iteration 2 of at most 10" in str(display.__rich__().renderables[1])
        for spent in (60.0, 90.0, 120.0):
            display.row(Point(2, 0.5, (0.4, 0.6), 0.1, 0.5), 0.25, spent)
        display.begin_iteration(5, 10, tests=60.0)
        display.end_iterations(60.0)
        display.end_iterations()
        assert "iteration" not in str(display.__rich__().renderables[1])
    lines = capfd.readouterr().out.splitlines()
    assert lines[:4] == [
        "  initialise (loads torch and the trainer, unless the worker has) …",
        "  evaluate@000 (starts vLLM, then plays validation) …",
        "  score@001 …",
        "iteration 1 of at most 10",
    ]
    assert lines[4].startswith("iteration    1   train reward +0.250   validation success 0.500"), (
        "the plot has validation's"
    )
    assert lines[4].endswith("sampled 0.500   30.0 s"), "on one line, however narrow a terminal would be"
    assert lines[5] == "iteration 2 of at most 10, about 4 min left"
    assert lines[9:] == [
        "iteration 5 of at most 10, about 10 min left, tests included",  # 6 times the mean of the latest three, and 60 s
        "tests and registration, about 60 s left",
    ]


def test_a_long_stage_says_how_far_it_is_where_nothing_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flows.terminal.display.MINUTE", 0.02)
    PROGRESS.parent.mkdir()
    display = RunDisplay()
    with display.shown(tmp_path / "log"):
        display.begin("sft@sft")
        for done, loss in ((1, 2.0), (2, 1.5)):
            PROGRESS.write_text(json.dumps({"stage": "sft", "done": done, "total": 400, "note": f"loss {loss:.3f}"}))
            time.sleep(0.2)
        bar: Any = display.__rich__().renderables[-1]
        assert "left" in bar.tasks[0].fields["spent"], "a live table says the same"
        display.begin("evaluate@sft")
        time.sleep(0.1)
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "  sft@sft (loads torch and the trainer, unless the worker has) …"
    assert lines[1] == "  sft@sft: 1/400 loss 2.000"
    assert re.fullmatch(r"  sft@sft: 2/400 loss 1\.500, about \d+ (s|min) left", lines[-2])
    assert lines[-1] == "  evaluate@sft …"


@pytest.mark.parametrize(("stage", "name"), [("test@base", "evaluate"), ("sft@sft", "sft"), ("scenarios", "scenarios")])
def test_each_stage_shows_the_progress_of_the_module_that_runs_it(stage: str, name: str) -> None:
    """The tests at the end take minutes, and their progress comes under the name of the module that evaluates."""
    text = (ROOT / "dvc.yaml").read_text()
    assert re.search(
        rf"^  {stage.partition('@')[0]}:(?:(?!^  \w).)*?python -m [\w.]+\.{module(stage)} ", text, re.M | re.S
    )
    assert module(stage) == name


def test_the_tests_at_the_end_are_estimated_by_the_latest_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = Scenarios(val=60, test=240)
    assert report.tests_seconds("001", sizes) == 0.0, "nothing was measured yet"
    (tmp_path / "run/001/timings").mkdir(parents=True)
    (tmp_path / "run/001/timings/evaluation.json").write_text('{"seconds": 3.0}')
    assert report.tests_seconds("001", sizes) == 24.0


def test_an_iteration_that_dvc_brought_back_has_an_overhead_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `rm -r run` its outputs come from DVC's cache, and no stage has made the folder of the timings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run/001").mkdir(parents=True)
    report.keep_overhead(1, 0.25)
    assert report.read(tmp_path / "run/001/timings/overhead.json") == {"seconds": 0.25}
    assert report.seconds(1) == {}


def test_a_guess_is_no_more_exact_than_it_is() -> None:
    assert [duration(seconds) for seconds in (0.1, 42.4, 89, 90, 600)] == [
        "about 1 s",
        "about 42 s",
        "about 89 s",
        "about 2 min",
        "about 10 min",
    ]


def test_what_a_deployed_run_says_is_delivered_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who watches it looks no further once it has ended; a run by hand has no logger, and nothing to deliver."""
    seen: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(display, "deliver_logs", lambda: seen.append("delivered"))
    logger = SimpleNamespace(info=seen.append)
    for given in (logger, None):
        shown = RunDisplay()
        with shown.shown(tmp_path / "train.log", given):
            shown.say("trained: test success 0.858")
    assert seen == ["trained: test success 0.858", "delivered"]
