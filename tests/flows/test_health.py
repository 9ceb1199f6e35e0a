"""What a run says of episodes that failed and of iterations that teach nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from environments.base import Scenario
from flows.terminal import health
from flows.terminal.display import RunDisplay
from steps.core.records import Trajectory, read_records, write_records
from tests.support.judged import attempt, words

SCENARIO = Scenario.make("t", "train", [], {})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run/001"


def episodes(folder: Path, *stops: str, error: str = "ValueError: no mail\x1b[31m\nhere") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    batch = [
        attempt(SCENARIO, place, words("x"), stop=stop, error=error if stop == "error" else None)
        for place, stop in enumerate(stops)
    ]
    write_records(batch, folder / "trajectories.parquet")


def fates(folder: Path, *kinds: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fates.json").write_text(json.dumps({str(place): kind for place, kind in enumerate(kinds)}))


def test_an_agent_whose_turns_are_cut_off_is_told_so(folder: Path) -> None:
    """It goes on after such a turn, and ends by itself: its stop reason is `done`."""
    folder.mkdir(parents=True)
    whole = attempt(SCENARIO, 0, words("x"), words("y"))
    first = whole.turns[0].model_copy(update={"finish_reason": "length"})
    batch = [whole.model_copy(update={"id": str(place), "turns": (first, whole.turns[1])}) for place in range(2)]
    write_records(batch, folder / "trajectories.parquet")
    fates(folder, "zero_variance", "zero_variance")
    assert "all 2 episodes were truncated: raise rollout.max_tokens" in health.warnings(1)[-1]


def test_a_sound_iteration_gives_no_warning(folder: Path) -> None:
    episodes(folder, "done", "max_turns")
    fates(folder, "gradient", "gradient")
    assert health.warnings(1) == []
    assert health.at_end("001", 1) == []


@pytest.mark.parametrize(
    ("stops", "kinds", "reason"),
    [
        (["length"] * 4, ["zero_variance"] * 4, "all 4 episodes were truncated: raise rollout.max_tokens"),
        (["length", "context"], ["truncated"] * 2, "max_tokens, and .*: turns are cut off; raise policy.context"),
        (["max_turns"] * 2, ["zero_variance"] * 2, "all 2 episodes were truncated: raise rollout.max_turns"),
        (["error"] * 4, ["quarantined"] * 4, "all 4 episodes failed. `make check-task NAME=…`"),
        (
            ["done"] * 4,
            ["quarantined"] * 4,
            "all 4 trajectories are quarantined, for the reasons in run/001/metrics.json",
        ),
        (
            ["done"] * 4,
            ["unscored"] * 4,
            "none of the 4 episodes could be scored by a judge: the reasons are in run/001/j",
        ),
        (["done", "length"], ["zero_variance"] * 2, "all earned the same reward.*2 zero variance; truncated: 1"),
        (["done"] * 2, ["at_mean", "unscored"], "1 at mean, 1 unscored"),
        (["done"] * 2, ["constrained", "zero_variance"], "in 1 of 2 trajectories no token bears loss.*response_format"),
    ],
)
def test_an_iteration_that_teaches_nothing_says_why(
    folder: Path, stops: list[str], kinds: list[str], reason: str
) -> None:
    episodes(folder, *stops)
    fates(folder, *kinds)
    line = health.warnings(1)[-1]
    assert line.startswith("Warning: iteration 1 teaches nothing: ")
    assert re.search(reason, line), line
    assert health.at_end("001", 1)[0].startswith("Warning: no iteration taught anything")


def test_trajectories_without_a_token_that_bears_loss_teach_nothing(folder: Path) -> None:
    """Runs of earlier versions say `gradient` of them."""
    episodes(folder, "done", "done")
    fates(folder, "gradient", "gradient")
    assert not health.teaches_nothing(1)
    (folder / "metrics.json").write_text(json.dumps({"trained": 2, "tokens_trained": 0}))
    assert health.teaches_nothing(1)
    assert "in 2 of 2 trajectories no token bears loss" in health.warnings(1)[-1]


def test_episodes_without_room_for_a_turn_are_shown(folder: Path) -> None:
    """Or a success of 0 would have no reason. One that the context ended later is a failure of the policy's own."""
    episodes(folder / "evaluation", "context", "done", "context")
    fates(folder, "gradient", "gradient")
    episodes(folder, "done", "done")
    assert health.warnings(1) == []
    path = folder / "evaluation/trajectories.parquet"
    played = [each.model_copy(update={"turns": ()}) for each in read_records(Trajectory, path)]
    write_records(played, path)
    assert health.warnings(1) == [
        "Warning: validation: 2 of 3 episodes ended before their first turn: lower max_tokens, or raise policy.context: no "
        "turn fits behind the prompt"
    ]


def test_failed_episodes_are_shown_with_the_first_error(
    folder: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where output is piped, they were in no line at all. A tripwire that sees the same says nothing."""
    episodes(folder, "done", "error", "error", "done")
    episodes(folder / "evaluation", "error", "done", "done", "done", error="KeyError: " + "k" * 999)
    episodes(folder / "test", "error", "done")
    fates(folder, "gradient", "quarantined", "quarantined", "gradient")
    display = RunDisplay()
    monkeypatch.setattr(
        health, "tripped", lambda _: {"failed episodes": "2 of 4", "length": "tokens", "unscored": "2 of 4"}
    )
    with display.shown(tmp_path / "log"):
        for line in health.lines(1):
            display.say(line)
    rollout, validation, *tripwires = capfd.readouterr().out.splitlines()
    assert tripwires == ["Tripwire in iteration 1, length: tokens", "Tripwire in iteration 1, unscored: 2 of 4"]
    assert rollout == "Warning: rollout: 2 of 4 episodes failed (50 %); the first error: ValueError: no mail [31m here"
    assert validation.startswith("Warning: validation: 1 of 4 episodes failed (25 %); the first error: KeyError: kkk")
    assert len(validation) < 400
    assert health.at_end("001", 1) == [
        "Warning: test of run/001: 1 of 2 episodes failed (50 %); the first error: ValueError: no mail [31m here"
    ]
