"""`make ask`: an episode with a served model, or without a server with a run's base policy and its best one.

The server is a fake that answers by a function, and the engine is one that plays given words (tests/support)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import environments
from addons.production import ask
from environments.base import Scenario, words
from steps.core import params
from steps.core.errors import UserError
from steps.sampling.job import Job
from tests.conftest import ROOT, free_port
from tests.support import ended
from tests.support.judged import attempt
from tests.support.openai_server import Server, calling, tool_call

Q = "Who said that it isn't $5?"


def answers(body: dict[str, Any]) -> dict[str, Any]:
    """Searches first, then answers with what the fake knows."""
    if len(body["messages"]) == 2:
        return calling(tool_call("search_emails", {"keywords": ["budget"]}))
    return calling(tool_call("return_final_answer", {"answer": "42 dollars", "source_ids": []}))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The current folder is a project whose model a fake server serves."""
    (tmp_path / "tasks_data").symlink_to(ROOT / "tasks_data")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"evaluate": {"max_tokens": 48}}))
    (tmp_path / ".flywheel").mkdir()
    (tmp_path / ".flywheel/serve.key").write_text("a-key\n")
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nothing listens: the key must not go there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server(answers, key="a-key", models={"email_search": "/served/0123456789abcdef"}) as server:
        yield server


def port(server: Server) -> str:
    return str(server.http.server_address[1])


def test_an_episode_of_the_test_split_is_played_and_printed(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    variables = dict(os.environ)
    assert ask.main(["--port", port(served), "--scenario", "3"]) == 0
    output = capsys.readouterr().out
    settings = params.load("params.yaml", params.Params)
    env = environments.load("email_search")
    scenario = env.scenarios(env.load(Path("tasks_data/email_search")), "test", settings.scenarios.test, settings.seed)[
        3
    ]
    first = served.bodies[0]
    assert first["messages"] == [dict(message) for message in scenario.messages]
    assert [tool["function"]["name"] for tool in first["tools"]] == list(env.tools())
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("email_search", 0, 48)
    for line in (
        "email_search, adapter 0123456789abcdef, at http://127.0.0.1:",
        f"question: {scenario.messages[1]['content']}",
        'turn 1: search_emails(keywords=["budget"])',
        'turn 2: return_final_answer(answer="42 dollars", source_ids=[])',
        "answer: 42 dollars",
        f"success: no; expected: {scenario.data['answer']}",
        "ended: the environment said that it is done (2 turns, 20 sampled tokens, ",
    ):
        assert line in output, output
    assert dict(os.environ) == variables
    assert not Path(".flywheel/ledger.db").exists(), "another champion's answers would be given to the same question"


def test_the_same_question_is_asked_again(served: Server) -> None:
    for _ in range(2):
        assert ask.main(["--port", port(served)]) == 0
    assert served.calls == 4


def test_a_question_of_the_users_own(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask.main(["--port", port(served), "--", Q]) == 0
    output = capsys.readouterr().out
    assert [message["content"] for message in served.bodies[0]["messages"]][1:] == [Q]
    assert f"question: {Q}" in output
    assert "answer: 42 dollars" in output
    assert "success" not in output, "nothing is expected of it"


@pytest.mark.parametrize(
    ("words", "task", "sentence"),
    [
        ([Q], "tic_tac_toe", "the task tic_tac_toe takes no question of your own"),
        (["--scenario", "540"], "email_search", "--scenario 540: the test split has the scenarios 0 to 539"),
        (["--scenario", "-1"], "email_search", "--scenario -1: the test split"),
        ([], "multiplication", "serves email_search, tic_tac_toe, and params.yaml is of multiplication"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    served: Server, capsys: pytest.CaptureFixture[str], words: list[str], task: str, sentence: str
) -> None:
    Path("params.yaml").write_text(f"task: {task}\n")
    served.models["tic_tac_toe"] = "/served/0123456789abcdef"
    assert ask.main(["--port", port(served), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert served.calls == 0


def test_without_a_server_it_says_how_to_start_one(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    closed = str(free_port())
    assert ask.main(["--port", closed]) == 2
    problem = capsys.readouterr().err
    assert f"no model is served at http://127.0.0.1:{closed}" in problem
    assert "`make serve`" in problem


def test_a_wrong_or_missing_key_is_one_sentence(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(".flywheel/serve.key")
    path.write_text("wrong\n")
    assert ask.main(["--port", port(served)]) == 2
    assert "refuses the request (status 401)" in capsys.readouterr().err
    path.write_text("")
    assert ask.main(["--port", port(served)]) == 2
    assert "serve.key holds no key" in capsys.readouterr().err


def test_a_server_that_fails_is_one_sentence(served: Server, capsys: pytest.CaptureFixture[str]) -> None:
    served.fail = lambda number, body: 400
    assert ask.main(["--port", port(served)]) == 2
    assert "400: " in capsys.readouterr().err


def said(text: str, number: int) -> Scenario:
    return Scenario.make("t", "test", [{"role": "user", "content": text}], {"number": number})


def test_a_scenario_is_named_by_id_or_number_or_drawn_or_like_the_question() -> None:
    texts = ("What is the rent?", "What is the budget of the Falcon team?", "What is the budget?", "What is the rent?")
    scenarios = [said(text, number) for number, text in enumerate(texts)]
    assert ask.choose(scenarios, scenarios[2].id, None, None) is scenarios[2]
    assert ask.choose(scenarios, "3", None, None) is scenarios[3]
    assert ask.choose(scenarios, None, None, None) is scenarios[0]
    assert ask.choose(scenarios, None, 5, None) is ask.choose(scenarios, None, 5, None)
    assert len({ask.choose(scenarios, None, seed, None).id for seed in range(20)}) == 4
    assert ask.choose(scenarios, None, None, "who leads the FALCON budget?") is scenarios[1], (
        "the rarer word counts more"
    )
    assert ask.choose(scenarios, "0", None, "the FALCON budget") is scenarios[0]
    with pytest.raises(UserError, match=f"no test scenario has this id; the first of 4 is {scenarios[0].id}"):
        ask.choose(scenarios, "abc", None, None)


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The current folder is a project whose run has ended; what the engine was asked: (adapter, scenario's id)."""
    (tmp_path / "tasks_data").symlink_to(ROOT / "tasks_data")
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("task: multiplication\n")
    Path("run/summary.json").write_text(json.dumps(ended.run(Path())))
    asked: list[tuple[str, Any]] = []

    def play(job: Job) -> list[Any]:
        [(scenario, number)] = job.attempts
        assert job.adapter is not None
        asked.append((job.adapter.parent.name, scenario.id))
        os.write(1, b"noise of the engine\n")
        known = job.adapter.parent.name == "001"
        return [attempt(scenario, number, words(f"it is {scenario.data['answer'] if known else 7}"))]

    monkeypatch.setattr("steps.sampling.play.play", play)
    monkeypatch.setattr(ask, "start_engine", lambda settings: os.write(2, b"noise of the engine\n"))
    monkeypatch.setattr(ask, "PORT", free_port())
    return asked


def test_without_a_server_base_and_trained_play_the_same_scenario(
    finished: list[tuple[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    scenario = ended.SCENARIOS[1]
    assert ask.main(["--scenario", scenario.id]) == 0
    output, problems = capfd.readouterr()
    assert finished == [("000", scenario.id), ("001", scenario.id)]
    assert "serve.key holds no key). Loading tasks_data/embedded_policy here" in output
    assert f"\nLoaded in 0 s; test scenario {scenario.id}\nquestion: " in output
    base, trained = output.partition("\ntrained (run/001)\n")[::2]
    assert "\nbase (run/000)\nturn 1: it is 7\nanswer: 7\nsuccess: no; expected: 144\nended: " in base
    assert trained.startswith(
        "turn 1: it is 144\nanswer: 144\nsuccess: yes; expected: 144\nended: the environment said"
    )
    assert "noise" not in output + problems
    assert "noise" in Path(".flywheel/ask.log").read_text()


def test_a_question_of_the_users_own_without_a_server(
    finished: list[tuple[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    Path(".flywheel").mkdir()
    Path(".flywheel/serve.key").write_text("a-key\n")
    assert ask.main(["--", "What is 12 times 15?"]) == 0
    output = capfd.readouterr().out
    assert "No server is asked (no model is served at http://127.0.0.1:" in output
    assert (
        f"test scenario {ended.SCENARIOS[4].id}, whose data the tools work on\nquestion: What is 12 times 15?" in output
    )
    assert "success" not in output


def test_two_attempts_stand_side_by_side_where_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "150")
    ask.show({"base": ["turn 1: [x]", "no"], "trained": ["turn 1: y"]})
    assert re.search(r"turn 1: \[x\] +turn 1: y", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("run/summary.json", "and there is no finished run in run/ to ask: `make train` makes one"),
        ("run/001/adapter", "the adapter of trained (run/001) is not here: `.venv/bin/dvc checkout` brings it back"),
    ],
)
def test_without_server_and_run_one_sentence_says_what_to_do(
    finished: list[tuple[str, Any]], capfd: pytest.CaptureFixture[str], path: str, sentence: str
) -> None:
    Path(path).rename("elsewhere")
    assert ask.main([]) == 2
    assert sentence in capfd.readouterr().err
    assert finished == []


def test_a_run_of_another_task_is_named(finished: list[tuple[str, Any]], capfd: pytest.CaptureFixture[str]) -> None:
    Path("params.yaml").write_text("task: tic_tac_toe\n")
    assert ask.main([]) == 2
    assert "the run in run/ is of multiplication, not of tic_tac_toe" in capfd.readouterr().err


def test_a_policy_without_adapters_is_one_sentence() -> None:
    settings = params.Params(task="multiplication", policy=params.Policy(kind="scripted"))
    with pytest.raises(UserError, match=r"policy\.kind: scripted has no adapters"):
        ask.start_engine(settings)
