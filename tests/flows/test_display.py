"""What a run says where its output is piped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.terminal import display
from flows.terminal.display import RunDisplay, duration
from flows.terminal.report import Point


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
        display.end_iterations()
        assert "iteration" not in str(display.__rich__().renderables[1])
    lines = capfd.readouterr().out.splitlines()
    assert lines[:4] == [
        "  initialise (loads torch and the trainer, unless the worker has) …",
        "  evaluate@000 (starts vLLM, then plays validation) …",
        "  score@001 …",
        "iteration 1 of at most 10",
    ]
    assert lines[4].endswith("sampled 0.500   30.0 s"), "on one line, however narrow a terminal would be"
    assert lines[5:] == ["iteration 2 of at most 10, about 4 min left at most"]


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
