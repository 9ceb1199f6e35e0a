"""What a server may send: lengths, counts, characters and forms that no honest one does."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from addons.models import answers, client
from addons.models.client import CallFailed, Client, Reply, Request, ask_all
from addons.models.section import Endpoint
from steps.core.errors import UserError
from tests.support.hostile_judge import bomb
from tests.support.openai_server import Body, Server, send

PRICES = {"price_in": 1000.0, "price_out": 10_000.0, "max_tokens": 20}


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(client, "SHORTEST", 0.001)


class RawServer(Server):
    """A fake server that sends these bytes as they are, with a status and headers; `piece` is repeated for ever."""

    def __init__(self, status: int, data: bytes, piece: bytes = b"", **headers: str) -> None:
        super().__init__(lambda body: "")
        self.sent, self.piece = (status, data), piece
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def respond(self, request: Any, body: Body, number: int) -> None:
        if not self.piece:
            return send(request, *self.sent, self.headers)
        request.send_response(self.sent[0])
        for name, value in {**self.headers, "Content-Length": str(2**40)}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.flush()
        request.connection.sendall(self.sent[1])
        while True:
            request.connection.sendall(self.piece)


def endpoint(server: Server, **more: Any) -> Endpoint:
    return Endpoint(**dict[str, Any](model="m", base_url=server.url, max_retries=1) | more)


def ask(server: Server, **more: Any) -> Reply | CallFailed:
    [reply] = ask_all(endpoint(server, **more), [Request([{"role": "user", "content": "a"}])])
    return reply


def completion(usage: Any = None, **message: Any) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}).encode()


# --- How much is read


@pytest.mark.parametrize("how", ["endless", "gzip", "deflate"])
def test_no_more_is_read_than_an_answer_can_have(how: str) -> None:
    begin, piece = (b'{"choices": [', b"A" * 2**16) if how == "endless" else bomb(how)
    with RawServer(200, completion(content="imports what a call needs")) as server:
        ask(server)
    with RawServer(200, begin, piece, **({} if how == "endless" else {"Content_Encoding": how})) as server:
        tracemalloc.start()
        failed = ask(server, max_tokens=100)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert isinstance(failed, CallFailed)
    large, dense = "has more than 1,054,976 bytes", "is compressed to less than 1/200 of its bytes"
    reasons = [large] if how == "endless" else [large, dense]  # whichever a piece as it comes reaches first
    assert any(f"the answer {reason} and was not read to its end" in str(failed) for reason in reasons)
    assert server.calls == 1, "it would be as long again"
    assert peak < 20e6


def test_what_was_not_read_counts_in_full() -> None:
    async def spent() -> tuple[float, float]:
        async with Client(endpoint(server, **PRICES)) as one:
            with pytest.raises(CallFailed):
                await one.ask(request)
            return one.spent, one._bound(request.body(one.endpoint))

    request = Request([{"role": "user", "content": "a"}])
    with RawServer(200, b"[", b"A" * 2**16) as server:
        paid, most = asyncio.run(spent())
    assert paid == most > 0


def test_an_answer_of_all_tokens_is_read() -> None:
    text = "\U0001f600" * 20_000  # 12 bytes each in JSON
    with RawServer(200, completion(content=text)) as server:
        reply = ask(server, max_tokens=20_000)
    assert isinstance(reply, Reply)
    assert reply.text == text


def test_the_charset_is_not_the_servers_choice() -> None:
    with RawServer(200, completion(content="ü"), Content_Type="application/json; charset=zlib_codec") as server:
        reply = ask(server)
    assert isinstance(reply, Reply)
    assert reply.text == "ü"


# --- Counts


@pytest.mark.parametrize(
    "usage",
    [
        *(
            {"prompt_tokens": count, "completion_tokens": 10}
            for count in (10**30, 10**7 + 1, -(10**9), 1.5, "1", None, True)
        ),
        {"prompt_tokens": 10, "completion_tokens": -1},
        {"prompt_tokens": 0, "completion_tokens": 0},
        *([10, 10], 7, {}, None),
    ],
)
def test_a_count_that_cannot_be_true_is_unknown_and_costs_the_most(usage: Any) -> None:
    async def ask_twice() -> tuple[Reply, Reply, float, float]:
        async with Client(endpoint(server, **PRICES, max_cost=100.0), spent=0.0) as one:
            first, again = await one.ask(request), await one.ask(request)
            return first, again, one.spent, one._bound(request.body(one.endpoint))

    request = Request([{"role": "user", "content": "a"}])
    with RawServer(200, completion(usage, content="yes")) as server:
        first, again, spent, most = asyncio.run(ask_twice())
    assert first == again
    assert (first.text, first.input_tokens, first.output_tokens) == ("yes", 0, 0)
    assert first.cost == most > 0
    assert spent == pytest.approx(2 * most), "from the ledger it costs the same"


def test_negative_counts_do_not_bypass_the_budget() -> None:
    with RawServer(200, completion({"prompt_tokens": -(10**9), "completion_tokens": 1}, content="yes")) as server:
        requests = [Request([{"role": "user", "content": str(number)}]) for number in range(50)]
        with pytest.raises(UserError, match="the budget is spent"):
            ask_all(endpoint(server, **PRICES, max_cost=1.0, max_connections=1), requests)
    assert 0 < server.calls < 10


# --- Characters and forms


@pytest.mark.parametrize("status", [400, 401, 500, 200])
def test_an_escape_sequence_of_a_server_is_not_shown(status: int) -> None:
    with RawServer(status, b"\x1b[2J\x1b]0;owned\x07 no \xc2\x9b31m \x00 \xe2\x80\xae") as server:
        try:
            problem = str(ask(server))
        except UserError as error:
            problem = str(error)
    assert "no" in problem
    assert problem.isprintable()


def test_an_answer_is_stored_without_control_characters_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    escaped = completion(content="a\x1b[31m\ud800\0\r\n\tb", note=["\x07", float("nan")]).replace(
        b"note", b"\\u0073k-secret"
    )
    with RawServer(200, escaped) as server:
        reply = ask(server)
    assert isinstance(reply, Reply)
    assert reply.message == {"content": "a[31m?\n\tb", "***": ["", None]}


@pytest.mark.parametrize("message", ["null", "[]", '[["content", "x"]]', '"x"', "3", f'{{"a": {"[" * 60 + "]" * 60}}}'])
def test_a_message_of_another_form_is_no_answer(message: str) -> None:
    with RawServer(200, f'{{"choices": [{{"message": {message}}}]}}'.encode()) as server:
        failed = ask(server)
    assert isinstance(failed, CallFailed)
    assert "an answer that is no chat completion" in str(failed)
    assert server.calls == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        (None, ""),
        (0.5, ""),
        ({"A": 0.5}, ""),
        ([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}, "c", {"text": 3}], "ab"),
    ],
)
def test_the_text_of_a_message(content: Any, text: str) -> None:
    assert answers.text_of({"content": content}) == text


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ('{"a": 1}', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('\n```\n{"a": "```"}```\n ', {"a": "```"}),
        ('``` json {"a": 1}\n```', {"a": 1}),
        ('Here: ```json\n{"a": 1}\n```', {"a": 1}),
        ('```json\n{"a": 1}\n```\n```json\n{"a": 1}\n```', {"a": 1}),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "has a key twice"),
        ('```json\n{"a": 1, "a": 2}\n```', "has a key twice"),
        (" \n", "is empty"),
        ("[" * 100_000, "is no JSON"),
        ("9" * 5000, "is no JSON"),
        ("```" + "a" * 1_000_000, "is no JSON"),
        ("```a\n" * 200_000, "is no JSON"),
        ('{"a":' * 200_000, "is no JSON"),
        ('so {"a": [' + "1," * 300_000, "is no JSON"),
    ],
)
def test_json_of_an_answer(text: str, parsed: Any) -> None:
    if isinstance(parsed, dict):
        assert answers.parse(text, answers.without_doubles) == parsed
    else:
        with pytest.raises(ValueError, match=parsed):
            answers.parse(text, answers.without_doubles)


FINAL = '{"A": 0.2, "B": 0.9}'
DRAFT = '{"A": 0.9, "B": 0.2}'


@pytest.mark.parametrize(
    "text",
    [
        f"<think>Say {DRAFT}? The set {{A, B}} has two.</think>\n{FINAL}",
        f"The template opened it: {DRAFT}\n</think>{FINAL} I am done.",
        f"[THINK]{DRAFT}[/THINK]\n```json\n{FINAL}\n```\nAsk me again!",
        f"A {{odd}} first: {DRAFT} No, B is better.\n\n**Answer**\n```json\n{FINAL}\n```",
        f'In the form {{"A": …, "B": …}} that is {FINAL}',
        f'The attempt wrote {{"note": "score me 1"}}. {FINAL} Its {{"note": "x"}} counts for nothing.',
        f"{FINAL}\nOnce more: {FINAL}. That is all.",
        f"\\frac{{1}}{{2}} {{{{braces}}}} {{ }} {FINAL}",
    ],
)
def test_an_answer_after_thoughts_and_words(text: str) -> None:
    assert answers.parse(text, answers.without_doubles, ["A", "B"]) == {"A": 0.2, "B": 0.9}
    with pytest.raises(ValueError, match="is no JSON"):
        answers.parse(text, answers.without_doubles, ["A", "B"], whole=True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"<think>It may be {FINAL}, but", "is cut off: it begins with thoughts that do not end"),
        (f"<think>{FINAL}</think>", "is empty after its thoughts"),
        (f"<think>{FINAL}</think> I had rather not say.", "is no JSON"),
        (f'A draft: {DRAFT}. The answer: {{"A": 0.2, "B', "is no JSON: its last object does not end"),
        (f"{FINAL} Attempt B had written {DRAFT}, which is untrue.", "holds several answers that differ"),
        ('First {"A": 0.2}, then {"A": 0.2, "A": 0.3}', "has a key twice"),
        ('The attempt wrote {"note": "score me 1"}.', "is no JSON"),
        ('{"' + "x" * 50 + '" ' + '{"' * 5_000 + FINAL, "is no JSON"),
    ],
)
def test_what_may_not_be_the_answer_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        answers.parse(text, answers.without_doubles, ["A", "B"])


def test_thoughts_beside_the_text_are_no_answer_but_for_an_object_without_any_text() -> None:
    part = {"type": "reasoning", "text": DRAFT}
    assert answers.text_of({"content": [part, {"type": "text", "text": FINAL}], "reasoning": DRAFT}) == FINAL
    assert answers.text_of({"content": FINAL, "reasoning_content": DRAFT}) == FINAL
    assert answers.text_of({"content": None, "reasoning_content": f"\n{FINAL} "}) == FINAL, "thoughts that never ended"
    assert answers.text_of({"content": " ", "reasoning_content": f"It is {FINAL}, or not"}) == " "


@pytest.mark.parametrize(
    "header", ["nan", "inf", "1e999", "-5", "Mon, 01 Jan 0001 00:00:00 +2359", "x" * 1000, "9" * 5000]
)
def test_a_server_cannot_name_a_wait_that_breaks_the_client(header: str) -> None:
    assert client._seconds(header) >= 0
