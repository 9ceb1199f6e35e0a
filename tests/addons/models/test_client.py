"""Asking models: against a real server on this machine, with a real ledger in a file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from addons.models import client as llm
from addons.models.client import CallFailed, Client, Reply, Request, ask_all
from addons.models.replies import Replies
from addons.models.section import Endpoint
from steps.core.errors import UserError
from steps.core.progress import report_to
from tests.conftest import ROOT
from tests.support.openai_server import BROKEN, DROP, NO_CHOICE, SLOW, Body, Server, in_turn, last

KEY = "sk-a-key-that-must-not-be-seen"


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/state/ledger.db")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(llm, "SHORTEST", 0.01)
    return tmp_path / "state"


def endpoint(server: Server, **changes: Any) -> Endpoint:
    return Endpoint(**dict[str, Any](model="m", base_url=server.url) | changes)


def question(text: object, **more: Any) -> Request:
    return Request([{"role": "user", "content": str(text)}], **more)


def echo(body: Body) -> str:
    return f"re: {last(body)}"


def texts(replies: list[Reply | CallFailed]) -> list[str]:
    return [reply.text if isinstance(reply, Reply) else f"failed: {reply}" for reply in replies]


def test_replies_are_in_the_order_asked_and_no_more_calls_than_allowed_are_made_at_once() -> None:
    with Server(echo, seconds=lambda body: 0.002 * (20 - int(last(body)))) as server:  # the last is answered first
        replies = ask_all(endpoint(server, max_connections=5), map(question, range(20)))
        assert texts(replies) == [f"re: {number}" for number in range(20)]
        assert [last(body) for body in server.answered] != [str(number) for number in range(20)]
        assert server.calls == 20
        assert 2 <= server.most_at_once <= 5


def test_what_is_sent() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    with Server(lambda body: '{"x": 3}') as server:
        [reply] = ask_all(
            endpoint(server, temperature=0.5, max_tokens=7, extra_body={"top_p": 0.9}),
            [question("a", tools=tools, schema=schema, seed=4)],
        )
        assert isinstance(reply, Reply)
        assert reply.parsed() == {"x": 3}
        assert server.bodies == [
            {
                "model": "m",
                "messages": [{"role": "user", "content": "a"}],
                "tools": tools,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "strict": True, "schema": schema},
                },
                "temperature": 0.5,
                "max_tokens": 7,
                "seed": 4,
                "top_p": 0.9,
            }
        ]
        ask_all(endpoint(server, temperature=None, max_tokens_field="max_completion_tokens"), [question("b")])
        assert server.bodies[1].keys() == {"model", "messages", "max_completion_tokens"}


def test_a_second_run_asks_nothing_and_gets_the_same_bytes() -> None:
    with Server(lambda body: f"{time.time_ns()} ü \U0001f600 {last(body)}") as server:
        first = ask_all(endpoint(server, price_in=1, price_out=2), map(question, "abc"))
        assert server.calls == 3
        again = ask_all(endpoint(server, price_in=1, price_out=2), map(question, "cab"))
        assert server.calls == 3
        assert [again[1], again[2], again[0]] == first
    moved = ask_all(Endpoint(model="m", base_url="http://127.0.0.1:9/v1"), [question("a")])  # nothing listens there
    assert texts(moved) == texts(first[:1])


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"temperature": 0.5},
        {"temperature": None},
        {"max_tokens": 9},
        {"extra_body": {"top_p": 1}},
        {"seed": 1},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"schema": {"type": "object"}},
    ],
)
def test_whatever_may_change_the_answer_is_asked_anew(change: dict[str, Any]) -> None:
    with Server(echo) as server:
        ask_all(endpoint(server), [question("a")])
        of_request = {name: value for name, value in change.items() if name in ("seed", "tools", "schema")}
        of_endpoint = {name: value for name, value in change.items() if name not in of_request}
        ask_all(endpoint(server, **of_endpoint), [question("a", **of_request)])
        assert server.calls == 2


def test_what_cannot_change_the_answer_is_not_asked_anew() -> None:
    with Server(echo) as server:
        ask_all(endpoint(server), [question("a")])
        ask_all(endpoint(server, max_retries=1, max_connections=1, timeout_seconds=5, price_in=3), [question("a")])
        assert server.calls == 1


def test_the_same_question_asked_twice_at_once_is_asked_once() -> None:
    with Server(echo, seconds=0.05) as server:
        replies = ask_all(endpoint(server), [question("a"), question("a"), question("a", seed=1)])
        assert server.calls == 2
        assert replies[0] == replies[1]


@pytest.mark.parametrize("how", [429, 500, 503, DROP, BROKEN, NO_CHOICE])
def test_a_call_that_failed_is_made_again(how: int | str) -> None:
    with Server(echo, in_turn(how, how)) as server:
        assert texts(ask_all(endpoint(server), [question("a")])) == ["re: a"]
        assert server.calls == 3
    with Replies() as ledger:
        row = ledger.get(question("a").key(endpoint(server)))
    assert row is not None
    assert (row["retries"], row["input_tokens"], row["output_tokens"], row["model"]) == (2, 100, 10, "m")


def test_a_time_out_is_made_again() -> None:
    with Server(echo, in_turn(SLOW)) as server:
        assert texts(ask_all(endpoint(server, timeout_seconds=0.5), [question("a")])) == ["re: a"]
        assert server.calls == 2


def test_retries_end_and_the_other_calls_go_on() -> None:
    with Server(echo, lambda number, body: 500 if last(body) == "b" else None) as server:
        replies = ask_all(endpoint(server, max_retries=2), map(question, "abc"))
        assert server.calls == 2 + 3
    [failed] = [reply for reply in replies if isinstance(reply, CallFailed)]
    assert str(failed).startswith(f"m at {server.url}: 500: ")
    assert str(failed).endswith("(3 attempts)")
    assert replies[1] is failed


def test_a_request_that_is_wrong_is_not_made_again() -> None:
    with Server(echo, lambda number, body: 400) as server:
        [failed] = ask_all(endpoint(server), [question("a")])
        assert isinstance(failed, CallFailed)
        assert server.calls == 1


@pytest.mark.parametrize("date", [False, True])
def test_retry_after_is_honoured(date: bool) -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=2.5), usegmt=True)  # whole seconds: 1.5 or more
    with Server(echo, in_turn(429), retry_after=then if date else "0.4") as server:
        ask_all(endpoint(server), [question("a")])
        first, second = server.times
    assert 0.4 <= second - first < (3.5 if date else 1.0)


def test_a_server_that_asks_for_an_hour_is_not_waited_for() -> None:
    with Server(echo, in_turn(429), retry_after="3600") as server:
        [failed] = ask_all(endpoint(server), [question("a")])
    assert "asks to wait 3600 s" in str(failed)


def test_waits_grow_and_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waits: list[float] = []
    real = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await real(0)

    monkeypatch.setattr(llm, "SHORTEST", 0.5)
    monkeypatch.setattr(llm.asyncio, "sleep", noted)
    with Server(echo, lambda number, body: 500) as server:
        for _ in range(2):
            ask_all(endpoint(server, max_retries=8), [question("a")])
    assert waits[:8] == waits[8:]
    assert all(0.25 * 2**n <= wait <= 0.5 * 2**n for n, wait in enumerate(waits[:6]))
    assert all(15 <= wait <= 30 for wait in waits[6:8])


# --- Faults that no other call would escape


@pytest.mark.parametrize(
    ("status", "words"), [(401, "set OPENAI_API_KEY to a valid one"), (404, "base_url"), (402, "paid")]
)
def test_what_no_other_call_would_escape_ends_at_once(status: int, words: str) -> None:
    with (
        Server(echo, lambda number, body: status, seconds=0.05) as server,
        pytest.raises(UserError, match=words) as problem,
    ):
        ask_all(endpoint(server, max_connections=2), map(question, range(50)))
    assert server.calls <= 4
    assert KEY not in str(problem.value)
    assert "***" in str(problem.value)


# --- The key


def test_the_key_is_sent_and_is_nowhere_else(own_ledger: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Server(lambda body: f"I was given {KEY}", key=KEY) as server:  # some servers quote what they got
        [reply] = ask_all(endpoint(server), [question("a")])
        assert isinstance(reply, Reply)
        assert reply.text == "I was given ***"
        replies = ask_all(endpoint(server, max_retries=0), [question("b")])
        server.fail = lambda number, body: 500
        replies = ask_all(endpoint(server, max_retries=0), [question("c")])
        assert KEY not in repr(replies) + repr(endpoint(server))
    files = list(own_ledger.iterdir())
    assert any(file.name == "ledger.db" for file in files)
    assert all(KEY.encode() not in file.read_bytes() for file in files)
    assert KEY not in "".join(capfd.readouterr())


def test_without_a_key_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with (
        Server(echo, key=KEY) as server,
        pytest.raises(UserError, match="Incorrect API key provided: None"),
    ):
        ask_all(endpoint(server), [question("a")])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"api_key_env": KEY}, "must be the name of an environment variable"),
        ({"base_url": f"https://user:{KEY}@host/v1"}, "without a name, a key or a query"),
        ({"base_url": f"https://host/v1?key={KEY}"}, "without a name, a key or a query"),
        ({"max_cost": 1}, "max_cost needs price_in and price_out"),
    ],
)
def test_a_key_in_the_wrong_place_is_refused_and_not_quoted(changes: dict[str, Any], words: str) -> None:
    from pydantic import ValidationError

    from steps.core.params import describe

    with pytest.raises(ValidationError) as problem:
        Endpoint(model="m", **changes)
    assert words in describe(problem.value)
    assert KEY not in describe(problem.value)


def test_a_key_that_no_header_takes_is_refused_and_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n" + KEY)
    with pytest.raises(UserError, match="OPENAI_API_KEY holds characters") as problem:
        ask_all(Endpoint(model="m"), [question("a")])
    assert KEY not in str(problem.value)


# --- The budget


def test_the_budget_stops_before_it_is_passed_and_what_was_answered_is_kept() -> None:
    prices = {"price_in": 1000.0, "price_out": 10_000.0}  # 100 and 10 tokens: 0.2 an answer
    with Server(echo, seconds=0.01) as server:
        one = endpoint(server, max_cost=1.5, max_connections=4, max_tokens=20, **prices)
        bound = one.cost(len(llm._canonical(question(0).body(one))), 20)
        assert 0.2 < bound < 0.4
        with pytest.raises(UserError, match=r"of max_cost 1\.5, \d+ calls answered") as problem:
            ask_all(one, map(question, range(10, 30)))
        kept = server.calls
        spent = 0.2 * kept
        assert 1.5 - bound < spent <= 1.5  # as near as it is sure
        assert f"{spent:.6g} of max_cost" in str(problem.value)
        assert len(server.answered) == kept
        replies = ask_all(one.model_copy(update={"max_cost": 100.0}), map(question, range(10, 30)))
        assert server.calls == 20  # none twice
        assert sum(reply.cost for reply in replies if isinstance(reply, Reply)) == pytest.approx(4.0)
        assert len(ask_all(one, map(question, range(10, 30)))) == 20  # what is in the ledger costs nothing


def test_an_attempt_that_was_given_up_counts_in_full() -> None:
    """The server may have answered, and charged, what did not arrive."""
    with Server(echo, lambda number, body: BROKEN) as server:
        one = endpoint(server, max_cost=1.0, price_in=1000.0, price_out=10_000.0, max_tokens=20)
        with pytest.raises(UserError, match="the budget is spent"):
            ask_all(one, [question("a")])
        assert server.calls == int(1.0 / one.cost(len(llm._canonical(question("a").body(one))), 20))


def test_a_server_that_counts_no_tokens() -> None:
    with Server(echo, usage=None) as server:
        [reply] = ask_all(endpoint(server), [question("a")])
        assert isinstance(reply, Reply)
        assert (reply.input_tokens, reply.output_tokens, reply.cost) == (0, 0, 0.0)


# --- Ends and beginnings

PROGRAM = """
import sys
from addons.models.client import Request, ask_all
from addons.models.section import Endpoint
asked = [Request([{"role": "user", "content": str(number)}]) for number in range(40)]
for reply in ask_all(Endpoint(model="m", base_url=sys.argv[1], max_connections=4), asked):
    print(reply.text)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_started_again_it_asks_no_answered_call_twice(how: signal.Signals) -> None:
    killed = False

    def seconds(_: Body) -> float:
        return 0.03 if killed or len(server.answered) < 12 else 0.5  # so that it does not end before it is killed

    with Server(lambda body: f"{last(body)} {time.time_ns()}", seconds=seconds) as server:
        words = [sys.executable, "-c", PROGRAM, server.url]
        process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        while len(server.answered) < 12:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(how)
        killed = True
        out, _ = process.communicate(timeout=240)
        assert out == b""
        time.sleep(0.6)  # for calls that were under way
        before = server.calls
        assert 12 <= before < 40
        outs = [texts(ask_all(endpoint(server, max_connections=4), map(question, range(40)))) for _ in range(2)]
        assert outs[0] == outs[1]
        assert [line.split()[0] for line in outs[0]] == [str(number) for number in range(40)]
        assert server.calls <= 40 + 4  # those that were under way when it was killed, at most


def test_progress_is_told() -> None:
    told: list[Any] = []
    report_to(told.append)
    try:
        with Server(echo) as server:
            ask_all(endpoint(server), map(question, "abc"), note="verdicts")
    finally:
        report_to(None)
    assert told[-1] == {"progress": [3, 3, "verdicts"]}


def test_an_answer_that_is_no_json_is_said() -> None:
    with Server(lambda body: '{"x": ', finish_reason="length") as server:
        [reply] = ask_all(endpoint(server), [question("a", schema={"type": "object"})])
        assert isinstance(reply, Reply)
        with pytest.raises(ValueError, match="no JSON, it was cut off at max_tokens"):
            reply.parsed()


# --- The ledger


def test_the_first_answer_stays(own_ledger: Path) -> None:
    row = {"key": "k", "model": "m", "request": {}, "reply": {"a": "\u0000\ud800 ü"}, "input_tokens": 1}
    row |= {"output_tokens": 1, "cost": 0.1, "latency_seconds": 0.1, "retries": 0}
    with Replies() as one, Replies() as other:
        assert one.get("k") is None
        assert one.put(row)["reply"] == {"a": "\u0000\ud800 ü"}
        assert other.put(row | {"reply": {"a": "later"}})["reply"] == {"a": "\u0000\ud800 ü"}
    with sqlite3.connect(own_ledger / "ledger.db") as plain:
        assert plain.execute("select key, json_extract(request, '$') from replies").fetchall() == [("k", "{}")]


def test_several_processes_write_to_one_ledger() -> None:
    with Server(echo) as server:
        words = [sys.executable, "-c", PROGRAM, server.url]
        running = [subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
        outs = [process.communicate(timeout=240)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert outs[0] == outs[1]
    assert len(outs[0].splitlines()) == 40


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////dev/null/ledger.db", "cannot be opened"),
        ("nonsense", "cannot be opened"),
        ("postgresql://name:secret@127.0.0.1:9/x", r"needs the package psycopg|cannot be opened"),
        ("postgresql+nodriver://user:secret@host/x", "cannot be opened"),
    ],
)
def test_a_ledger_that_cannot_be_opened_is_said(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as problem:
        Replies(url, patience=0.1)
    assert "secret" not in str(problem.value)


def test_the_default_is_in_the_projects_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLYWHEEL_LEDGER_URL")
    monkeypatch.chdir(tmp_path)
    with Replies():
        assert (tmp_path / ".flywheel" / "ledger.db").is_file()


def test_one_client_for_many_rounds() -> None:
    async def rounds() -> tuple[int, float]:
        async with Client(endpoint(server, price_out=1e6)) as client:
            await client.ask(question("a"))
            await client.ask_all(map(question, "ab"))
            return client.asked, client.spent

    with Server(echo) as server:
        assert asyncio.run(rounds()) == (2, 20.0)


def test_rows_say_what_was_asked() -> None:
    with Server(echo) as server:
        ask_all(endpoint(server), [question("a")])
    with Replies() as ledger:
        row = ledger.get(question("a").key(endpoint(server)))
    assert row is not None
    assert row["request"] == server.bodies[0]
    assert row["reply"]["model"] == "m-2026"
    assert json.dumps(row["reply"])
    assert os.fspath(ROOT) not in json.dumps([row["request"], row["reply"]])
