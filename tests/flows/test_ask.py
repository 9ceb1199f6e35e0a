"""`make ask`: an episode with a served model. The server is a fake that answers by a function (tests/support)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import environments
from flows import ask
from steps.core import params
from tests.conftest import ROOT, free_port
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
        (["--scenario", "240"], "email_search", "--scenario 240: the test split has the scenarios 0 to 239"),
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
