"""The table of baselines: hand-checked shares and intervals, the same scenarios for all, a model behind a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import environments
from addons.models import baselines
from environments.base import Scenario
from steps.core.records import Reward, Trajectory, Turn, write_records
from tests.conftest import ROOT, python
from tests.conftest import run as command
from tests.support.openai_server import Body, Server, last

pytestmark = pytest.mark.usefixtures("own_ledger")


def rows(capsys: pytest.CaptureFixture[str], run: Path, *more: str) -> list[dict[str, Any]]:
    words = ["--task", "multiplication", "--json", "--run", str(run), "--chain", str(run / "chain.yaml")]
    assert baselines.main([*words, *more]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


def drawn(count: int) -> list[Scenario]:
    env = environments.load("multiplication")
    return env.scenarios(env.load(ROOT / "tasks_data" / "multiplication"), "test", count, 5)


def put_test(run: Path, number: str, scenarios: list[Scenario], wins: int, tokens: int) -> None:
    """What the stage test writes: so many successes, so many tokens a turn."""
    folder = run / number / "test"
    folder.mkdir(parents=True)
    turn = Turn(
        prompt_ids=(1,),
        completion_ids=(2,) * tokens,
        logprobs=(0.0,) * tokens,
        message={"role": "assistant", "content": ""},
        observations=(),
        finish_reason="stop",
    )
    played, rewards = [], []
    for place, scenario in enumerate(scenarios):
        name, won = f"test-{scenario.id}-0", place < wins
        common = dict[str, Any](scenario_id=scenario.id, attempt=0, adapter_hash=number, stop_reason="done")
        played.append(Trajectory(id=name, turns=(turn, turn), **common))
        rewards.append(
            Reward(trajectory_id=name, scenario_id=scenario.id, name="rule", score=1.0 if won else -1.0, success=won)
        )
    write_records(played, folder / "trajectories.parquet")
    write_records(rewards, folder / "rewards.parquet")


def a_run(folder: Path, scenarios: list[Scenario], best: str = "002") -> Path:
    (folder / "scenarios").mkdir(parents=True)
    write_records(scenarios, folder / "scenarios" / "test.parquet")
    (folder / "chain.yaml").write_text(yaml.safe_dump({"tested": {"base": "000", "best": best}}))
    return folder


def test_without_a_run_the_environments_players_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_chance, by_rules = rows(capsys, tmp_path / "none", "--count", "20")
    assert (by_chance["player"], by_rules["player"]) == ("random", "scripted")
    assert (by_chance["success"], by_rules["success"]) == (0.0, 1.0)
    assert (by_chance["reward"], by_rules["reward"]) == (-1.0, 1.0)
    assert by_rules["ci95"] == pytest.approx([20 / (20 + 2.093024**2), 1.0])  # where all succeed
    assert (by_rules["n"], by_rules["turns"], by_rules["cost"], by_rules["tokens"]) == (20, 1.0, None, None)
    assert 0 < by_rules["seconds"] < 1


def test_all_are_compared_on_the_same_scenarios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenarios = drawn(12)
    run = a_run(tmp_path / "run", scenarios)
    put_test(run, "000", scenarios, wins=3, tokens=5)
    put_test(run, "002", scenarios, wins=9, tokens=8)
    players = {row["player"]: row for row in rows(capsys, run)}
    assert list(players) == ["random", "scripted", "base (000)", "trained (002)"]
    assert {row["n"] for row in players.values()} == {12}
    assert (players["base (000)"]["success"], players["trained (002)"]["success"]) == (0.25, 0.75)
    assert players["trained (002)"]["reward"] == pytest.approx(0.5)
    assert (players["base (000)"]["turns"], players["base (000)"]["tokens"]) == (2.0, 10.0)
    players = {row["player"]: row for row in rows(capsys, run, "--count", "4", "--players", "scripted")}
    assert list(players) == ["scripted", "base (000)", "trained (002)"]
    assert (players["base (000)"]["success"], players["trained (002)"]["success"]) == (0.75, 1.0)  # of the first four


def test_a_run_of_another_task_or_of_other_scenarios_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenarios = drawn(8)
    other = a_run(tmp_path / "other", [scenario.model_copy(update={"task": "email_search"}) for scenario in scenarios])
    put_test(other, "000", scenarios, wins=3, tokens=5)
    assert [row["player"] for row in rows(capsys, other, "--count", "5")] == ["random", "scripted"]
    run = a_run(tmp_path / "run", scenarios)
    put_test(run, "000", scenarios[:5], wins=3, tokens=5)
    assert baselines.main(["--task", "multiplication", "--run", str(run), "--chain", str(run / "chain.yaml")]) == 0
    output = capsys.readouterr().out
    assert "base: " in output
    assert "is of other scenarios" in output
    assert "trained: " in output
    assert "does not exist" in output


def test_a_large_model_that_is_only_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenarios = drawn(10)
    run = a_run(tmp_path / "run", scenarios)
    answers = {scenario.messages[-1]["content"]: scenario.data["answer"] for scenario in scenarios}
    right = list(answers)[:7]
    lost = list(answers)[9]

    def answer(body: Body) -> str:
        return f"It is {answers[last(body)]}" if last(body) in right else "It is 1"

    with Server(
        answer, lambda number, body: 400 if last(body) == lost else None, usage=(40, 12), seconds=0.01
    ) as server:
        options = ("--model", "big", "--url", server.url, "--price-in", "1", "--price-out", "2")
        *_, row = rows(capsys, run, *options)
        calls = server.calls
        *_, again = rows(capsys, run, *options)
        assert server.calls == calls + 1  # the one that failed
        assert again == row
    assert (row["player"], row["n"], row["success"], row["failed"]) == ("big", 10, 0.7, 1)
    assert row["tokens"] == pytest.approx(12 * 9 / 10)
    assert row["cost"] == pytest.approx(9 * (40 + 24) / 1e6)
    assert 0.005 < row["seconds"] < 5


def test_as_a_person_sees_it(tmp_path: Path) -> None:
    """The command itself, from the repository alone."""
    done = command(
        python(
            "addons.models.baselines",
            "--task",
            "multiplication",
            "tic_tac_toe",
            "--count",
            "10",
            "--run",
            str(tmp_path),
        ),
        ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert "multiplication, test, 10 independent scenarios" in lines
    assert any(line.startswith("tic_tac_toe, test, 10 scenarios in ") for line in lines)
    assert any(line.startswith("scripted") and "1.000" in line and "0.661–1.000" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--task", "nope"],
            "--task nope: there is no task nope. The tasks are code_repair, email_search",
        ),
        (["--task", "tests.support.ruleless"], "--task tests.support.ruleless: it has no rule, by which alone"),
        (["--task", "multiplication", "--count", "0"], "--count: 0 is no number of scenarios"),
        (["--task", "multiplication", "--count", "99999"], "--count: 99999 scenarios need as many pairs"),
        (["--task", "multiplication", "--players", "openai"], "--players openai needs --model"),
        (["--task", "multiplication", "--players", "random", "--model", "m"], "--model would have no effect"),
        (["--task", "multiplication", "--price-in", "1"], "the options of a model need --model"),
        (["--task", "multiplication", "--model", "m", "--max-cost", "1"], "endpoint.max_cost needs price_in"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baselines.main([*words, "--run", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {sentence}")
    assert err.count("\n") == 1


def test_more_than_the_run_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", drawn(3))
    assert baselines.main(["--task", "multiplication", "--count", "4", "--run", str(run)]) == 2
    assert "holds 3 scenarios" in capsys.readouterr().err
