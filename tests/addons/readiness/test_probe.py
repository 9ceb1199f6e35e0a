"""make try: what it prints, that nothing is written, what it refuses. A stand-in plays in vLLM's place; players are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from addons.models import players
from addons.readiness import probe
from steps.core.params import Policy
from steps.core.records import Trajectory, Turn
from steps.sampling import engine
from steps.sampling.job import Job
from tests.conftest import ROOT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("tasks_data", "params.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stand_in(player: Any) -> Any:
    """In place of the policy: this player, at every second attempt; else words without an end."""

    def play(job: Job) -> list[Trajectory]:
        played = players.play(Policy(kind=player), job.env, job.data, job.attempts, prefix=job.prefix)
        rambling = Turn(
            prompt_ids=(1,),
            completion_ids=(2,),
            logprobs=(-1.0,),
            message={"role": "assistant", "content": "well, well, " * 40},
            observations=(),
            finish_reason="length",
        )
        return [
            each.trajectory
            if number % 2
            else each.trajectory.model_copy(update={"turns": (rambling,), "stop_reason": "length"})
            for each, (_, number) in zip(played, job.attempts, strict=True)
        ]

    return play


def test_a_policy_that_speaks(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "play", stand_in("scripted"))
    assert probe.main(["--task", "multiplication", "--scenarios", "3"]) == 0
    said = capsys.readouterr().out
    assert "4 attempts of tasks_data/multiplication/policy at each of 3 scenarios" in said
    assert "     6 of 12    attempts were cut off" in said
    assert "     3 of 3     scenarios had attempts of different reward" in said
    assert "ended by length: no success" in said
    assert "learns by reinforcement (GRPO) at once" in said
    assert max(map(len, said.splitlines())) < 140
    assert sorted(path.name for path in project.iterdir()) == [".flywheel", "params.yaml", "tasks_data"]


def test_one_that_does_not(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(engine, "play", stand_in("random"))
    assert probe.main(["--task", "multiplication", "--scenarios", "2"]) == 0
    said = capsys.readouterr().out
    assert "It is taught by player:scripted first (SFT)" in said
    monkeypatch.setattr("addons.supervised.collect.has_examples", lambda params: False)
    assert probe.main(["--task", "multiplication", "--scenarios", "2"]) == 0
    assert "Training would stop here: no " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--attempts", "1"], "--attempts 2 or more"),
        (["--task", "multiplication+tic_tac_toe"], "can be tried of a single task"),
        (["--task", "no_such_task"], "no_such_task"),
    ],
)
def test_what_it_cannot_try(project: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(words) == 2
    assert said in capsys.readouterr().err


def test_data_that_its_task_refuses_is_a_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(cls: type, *_: Any) -> None:
        raise ValueError("game.json has no sides")

    monkeypatch.setattr("environments.multiplication.Multiplication.scenarios", classmethod(lambda *_: []))
    assert probe.main(["--task", "multiplication"]) == 2
    assert "returned none of this split: write more data" in capsys.readouterr().err
    monkeypatch.setattr("environments.multiplication.Multiplication.load", classmethod(refused))
    assert probe.main(["--task", "multiplication"]) == 2
    assert capsys.readouterr().err == "error: task multiplication: game.json has no sides\n"
