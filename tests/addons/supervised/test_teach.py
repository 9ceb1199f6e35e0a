"""Demonstrations by a teacher: which episodes are taken, and that the same command asks nothing again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.supervised import teach
from addons.supervised.chats import read_demonstrations
from steps.core.errors import UserError
from tests.conftest import ROOT
from tests.support.openai_server import Body, Server, last

pytestmark = pytest.mark.usefixtures("own_ledger")


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def product(body: Body) -> str:
    """A teacher that knows products of even numbers."""
    first, second = (int(number) for number in last(body).split("?")[0].split() if number.isdigit())
    return str(first * second if first % 2 == 0 else 1)


def test_only_right_episodes_are_taken_and_asked_for_once(tmp_path: Path) -> None:
    out = tmp_path / "new" / "taught.jsonl"
    with Server(product) as server:
        words = ["--task", "multiplication", "--out", str(out), "--count", "12", "--attempts", "2"]
        words += ["--model", "teacher", "--url", server.url]
        assert teach.main(words) == 0
        asked, written = len(server.bodies), out.read_bytes()
        assert teach.main(words) == 0
        assert (len(server.bodies), out.read_bytes()) == (asked, written)
    report = json.loads((tmp_path / "new" / "taught.jsonl.report.json").read_text())
    read, left_out = read_demonstrations(out)
    assert (report["played"], report["taken"], left_out) == (24, len(read), {})
    assert 0 < len(read) < 24
    assert report["refused"] == {"the reward is below 1": 24 - len(read)}
    for demonstration in read:
        assert [message["role"] for message in demonstration.messages][-2:] == ["user", "assistant"]
        assert product({"messages": demonstration.messages[:-1]}) == demonstration.messages[-1]["content"]
        assert demonstration.source.startswith("teacher/")


def test_the_tasks_own_player_is_a_teacher_without_cost(tmp_path: Path) -> None:
    out = tmp_path / "taught.jsonl"
    assert teach.main(["--task", "email_search", "--out", str(out), "--count", "10", "--scripted"]) == 0
    read, left_out = read_demonstrations(out)
    assert (bool(read), left_out) == (True, {})
    assert read[0].messages[-1]["tool_calls"][0]["function"]["name"] == "return_final_answer"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name a teacher"),
        (["--model", "m", "--scripted"], "name a teacher"),
        (["--scripted", "--count", "0"], "must be 1 or more"),
        (
            ["--scripted", "--min-reward", "7"],
            r"none of 2 episodes by scripted .* \(the reward is below 7: 2; the best of those rewards is 1\): lower --min",
        ),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, words: list[str], reason: str) -> None:
    options: Any = ["--task", "multiplication", "--out", str(tmp_path / "out.jsonl"), "--count", "2", *words]
    with pytest.raises(UserError, match=reason):
        teach.run(teach.parse(options))
    assert not (tmp_path / "out.jsonl").exists()


def test_all_scenarios_are_played_where_there_are_fewer_than_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a task like that of `make new-task`, whose scenarios are fewer than the 200 of the default."""
    task = "tests.support.capitals"
    shutil.copytree(ROOT / "tasks_data/_template", tmp_path / "tasks_data" / task)
    monkeypatch.chdir(tmp_path)
    env = environments.load(task)
    data = env.load(environments.data_of(task))
    for count in (1, 2, 7, 60):
        assert len(teach.training_scenarios(env, data, count, 1)) == count
    assert capsys.readouterr().out == ""
    drawn = teach.training_scenarios(env, data, 200, 1)
    with pytest.raises(ValueError, match="ask for fewer"):
        env.scenarios(data, "train", len(drawn) + 1, 1)
    said = f"the task has {len(drawn)} training scenarios, and not 200: all of them are played"
    assert said in capsys.readouterr().out
    assert teach.main(["--task", task, "--out", str(tmp_path / "all.jsonl"), "--scripted"]) == 0
    assert len(read_demonstrations(tmp_path / "all.jsonl")[0]) == len(drawn)


def test_a_task_without_training_scenarios_is_a_sentence() -> None:
    class Empty:
        @staticmethod
        def scenarios(*_: object) -> None:
            raise ValueError("it has no countries")

    with pytest.raises(UserError, match="--count 5: it has no countries"):
        teach.training_scenarios(Empty, None, 5, 1)  # pyrefly: ignore[bad-argument-type]


def test_other_demonstrations_in_the_file_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, before = tmp_path / "taught.jsonl", tmp_path / "taught.jsonl.before"
    words = ["--task", "multiplication", "--out", str(out), "--scripted", "--count"]
    for count in ("3", "3"):
        assert teach.main([*words, count]) == 0
        assert not before.exists()
    written = out.read_text()
    assert teach.main([*words, "4"]) == 0
    assert before.read_text() == written
    printed = capsys.readouterr().out
    assert f"kept in {before}" in printed
    assert f"make train TASK=multiplication ARGS='--set sft.demonstrations=[{out}]'" in printed
