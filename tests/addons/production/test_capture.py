"""The middleware that stores what the served model is asked and answers, before an application that answers as vLLM does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from addons.production import serve
from addons.production.serving import capture
from addons.production.serving.capture import Capture
from addons.production.serving.server import Server
from addons.production.traces.records import Conversation, joined, key_of
from addons.production.traces.store import Store, read
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.kit import vllm_guard as guard
from steps.kit.vllm_guard import Guard
from tests.support.golden_traces import chunks

KEY, CONSENT_KEY = "a-key", "a-consent-key"
QUESTION = [{"role": "user", "content": "Where does jane@example.com live?"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"who": "jane@example.com"}'}}
YES = {"x-flywheel-consent": "yes"}
asked: list[Request] = []


async def chat(request: Request) -> Response:
    body, number = await request.json(), len(asked)
    asked.append(request)
    if body.get("fail"):
        return JSONResponse({"error": {}}, 400)
    message = {"role": "assistant", "content": f"answer {number}", "tool_calls": [CALL]}
    answer = {
        "id": f"chatcmpl-{number}",
        "choices": [{"index": 0, "message": message, "finish_reason": body.get("ended", "stop")}],
    }
    if body.get("stream"):
        events = list(chunks(answer))
        if said := body.get("said"):  # in one piece
            delta = {"id": answer["id"], "choices": [{"index": 0, "delta": {"content": said}}]}
            events.insert(0, f"data: {json.dumps(delta)}\n\n")
        return StreamingResponse(iter(events[: len(events) - body.get("cut", 0)]), media_type="text/event-stream")
    return JSONResponse(answer)


def set_up(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> None:
    limits = serve.Captured(**settings)
    (folder / ".flywheel").mkdir(exist_ok=True)
    (folder / serve.CONSENT_KEY).write_text(CONSENT_KEY)
    server = Server("10.0.0.5", 8000, "email_search", KEY, "a-swap-token", limits.variables(folder))
    for name, value in server.environment(Policy()).items():
        monkeypatch.setenv(name, value)


def client_of(**fields: Any) -> TestClient:
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/{path:path}", other, methods=["GET", "POST"]),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Guard), Middleware(Capture)])
    return TestClient(app, base_url="http://127.0.0.1:8000", headers={"authorization": f"Bearer {KEY}"}, **fields)


def counted(client: TestClient) -> dict[str, int]:
    return dict(client.get("/capture").json()["not_stored"])


async def other(request: Request) -> Response:
    return JSONResponse({})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait until the process beside the server has started, also on a busy machine."""
    monkeypatch.setattr(capture, "PATIENCE", 60.0)
    monkeypatch.setattr(capture, "START", 60.0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """For what is stored nowhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "PATIENCE", 60.0)
        patch.setattr(capture, "START", 60.0)
        set_up(patch, tmp_path_factory.mktemp("shared"))
        with client_of() as made:
            yield made


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TestClient]:
    asked.clear()
    set_up(monkeypatch, tmp_path)
    with client_of() as made:
        yield made


def children() -> set[int]:
    made = set[int]()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended since it was listed
            made |= set(map(int, (task / "children").read_text().split()))
    return made


def kept(folder: Path) -> list[Conversation]:
    parts, _ = read(Store(folder / ".flywheel/capture"), {})
    conversations, lost = joined(part for part in parts if isinstance(part, Conversation))
    assert lost == []
    return conversations


def ask(client: TestClient, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return client.post("/v1/chat/completions", json={"messages": QUESTION, **body}, headers=headers or YES)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_stored_masked_with_its_feedback(client: TestClient, tmp_path: Path, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    first = ask(client, YES | {"x-flywheel-conversation": "mine"}, stream=stream, tools=tools, metadata={"owner": "me"})
    assert first.status_code == 200
    assert stream or "jane@example.com" in first.text, "the client has the answer as it is"
    messages = [*QUESTION, {"role": "assistant", "content": "answer 0", "tool_calls": [CALL]}]
    messages += [{"role": "tool", "tool_call_id": "c1", "content": "tel 030 1234567"}]
    key = first.headers["x-flywheel-conversation"]
    ask(client, YES | {"x-flywheel-conversation": key}, messages=messages, stream=stream, ended="length")
    feedback = {"response_id": "chatcmpl-1", "score": 0, "comment": "mail jane@example.com", "correction": "no"}
    assert client.post("/feedback", json=feedback).json() == {"stored": True, "conversation": key}
    assert key == key_of("capture", "mine")
    [conversation] = kept(tmp_path)
    assert conversation.key == key
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert conversation.messages[1]["tool_calls"] == [
        CALL | {"function": {"name": "look", "arguments": {"who": "[email]"}}}
    ]
    assert conversation.messages[2]["content"] == "tel [phone]"
    assert [message.get("finish_reason") for message in conversation.messages] == [None, None, None, "length"]
    assert conversation.feedback[0].score == 0
    assert conversation.feedback[0].comment == "mail [email]"
    assert conversation.metadata == {"owner": "me"}
    assert conversation.tools == tuple(tools)
    on_disk = "".join(path.read_text() for path in (tmp_path / ".flywheel/capture").glob("*.json*"))
    assert "jane" not in on_disk
    assert "mine" not in on_disk


def test_the_words_of_an_answer_end_no_stream(client: TestClient, tmp_path: Path) -> None:
    said = "A stream ends with\n\ndata: [DONE]"
    body = {"messages": QUESTION, "stream": True, "said": said}
    text = client.post("/v1/chat/completions", json=body, headers=YES).text
    assert text.endswith("data: [DONE]\n\n")
    [conversation] = kept(tmp_path)
    assert conversation.messages[-1]["content"] == f"{said}answer 0"


def test_without_consent_nothing_is_stored(client: TestClient, tmp_path: Path) -> None:
    for headers in (
        {"x-flywheel-consent": "no"},
        {"x-flywheel-consent": ""},
        {"x-flywheel-consent": "maybe"},
        {"a": "b"},
    ):
        assert ask(client, headers).status_code == 200
    assert kept(tmp_path) == []
    assert counted(client) == {"no consent": 4}
    refused = client.post("/feedback", json={"response_id": "chatcmpl-0", "score": 1})
    assert refused.status_code == 404
    assert kept(tmp_path) == []


def test_the_second_key_is_consent(client: TestClient, tmp_path: Path) -> None:
    second = {"authorization": f"Bearer {CONSENT_KEY}"}
    assert ask(client, second).status_code == 200
    assert asked[-1].headers["authorization"] == f"Bearer {KEY}", "the application knows one key"
    assert len(kept(tmp_path)) == 1
    assert ask(client, second | {"x-flywheel-consent": "no"}).status_code == 200
    assert len(kept(tmp_path)) == 1
    assert ask(client, {"authorization": "Bearer wrong"}).status_code == 401
    assert client.post("/feedback", json={}, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert client.post("/v1/load_lora_adapter", json={}, headers=second).status_code == 403


def test_the_operator_can_speak_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_up(monkeypatch, tmp_path, consent="assumed")
    with client_of() as client:
        assert ask(client, {"x-flywheel-consent": "no"}).status_code == 200
        assert kept(tmp_path) == []
        assert ask(client, {"a": "b"}).status_code == 200
        assert len(kept(tmp_path)) == 1


def test_a_conversation_in_the_sample_is_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_up(monkeypatch, tmp_path, rate=0.3)
    with client_of() as client:
        for turn in range(3):
            for number in range(40):
                history = [*QUESTION, *({"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}) * turn]
                ask(client, YES | {"x-flywheel-conversation": str(number)}, messages=history)
    counts: dict[str, int] = {}
    for line in Store(tmp_path / ".flywheel/capture").lines():
        assert line.record is not None
        counts[line.record["key"]] = counts.get(line.record["key"], 0) + 1
    assert set(counts.values()) == {3}
    assert 4 <= len(counts) <= 22


def test_failed_and_cut_off_answers_are_not_stored(client: TestClient, tmp_path: Path) -> None:
    assert ask(client, fail=True).status_code == 400
    assert ask(client, stream=True, cut=2).status_code == 200
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    assert ask(client, messages=image).status_code == 200
    assert client.post("/v1/completions", json={}).status_code == 200
    assert kept(tmp_path) == []
    assert counted(client) == {
        "an answer that was cut off": 1,
        "not captured: /v1/completions": 1,
        "a part of the type": 1,  # and not which, which is the client's word
    }


def test_what_finds_no_room_is_counted_and_the_client_is_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked.clear()
    set_up(monkeypatch, tmp_path)
    monkeypatch.setenv(capture.BYTES, "1500")
    with client_of() as client:
        assert [ask(client).status_code for _ in range(12)] == [200] * 12
        late = client.post("/feedback", json={"response_id": "chatcmpl-0", "comment": "x" * 2000})
    until = time.monotonic() + 20  # the last of them are written when the server ends
    while "1 not stored: the store is full" not in (said := capfd.readouterr().err) and time.monotonic() < until:
        time.sleep(0.1)
    assert "not stored: the store is full (all counts: " in said
    counts = Store(tmp_path / ".flywheel/capture").counts()
    assert late.status_code == 507
    stored = len(list(Store(tmp_path / ".flywheel/capture").lines()))
    assert stored + counts["the store is full"] - 1 == 12
    assert counts["the store is full"] > 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([], "must be an object with response_id"),
        ({"score": 1}, "must be an object with response_id"),
        ({"response_id": "a"}, "it says nothing"),
        ({"response_id": "a", "score": 5}, "not from 0 to 1"),
        ({"response_id": "a", "score": "banana", "comment": "x"}, "'banana', neither a finite number nor a word"),
        ({"response_id": "a", "stars": 5}, "there is no field stars"),
        ({"response_id": "a", "correction": [1]}, "must be"),
    ],
)
def test_feedback_that_cannot_be_taken_is_explained(shared: TestClient, body: Any, reason: str) -> None:
    answer = shared.post("/feedback", json=body)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_record_is_on_the_disk_before_the_answer_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: bool
) -> None:
    set_up(monkeypatch, tmp_path)
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])], middleware=[Middleware(Capture)])
    body = json.dumps({"messages": QUESTION, "stream": stream}).encode()
    headers = [(b"content-type", b"application/json"), (b"x-flywheel-consent", b"yes")]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "query_string": b""}
    given, seen = iter([{"type": "http.request", "body": body}]), []

    async def receive() -> Any:
        if (message := next(given, None)) is None:
            await asyncio.sleep(60)
        return message

    async def send(message: Any) -> None:
        is_end = b"[DONE]" in message.get("body", b"") or (
            message["type"].endswith("body") and not message.get("more_body")
        )
        seen.append((is_end, len(kept(tmp_path)), bool(message.get("body"))))

    asyncio.run(
        app(scope | {"http_version": "1.1", "scheme": "http", "server": ("a", 1), "path_params": {}}, receive, send)
    )
    assert all(count == 1 for is_end, count, _ in seen if is_end)
    assert any(is_end for is_end, _, _ in seen)
    if stream:
        assert sum(not is_end and has_words for is_end, _, has_words in seen) > 3, "the words came before"


@pytest.mark.parametrize("limits", [{"rate": 0.0}, {"rate": 1.5}, {"days": 0.0}, {"days": 1e9}, {"megabytes": 0}])
def test_limits_out_of_range_are_refused(tmp_path: Path, limits: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--capture-"):
        serve.Captured(**limits).variables(tmp_path)


def test_the_guard_sees_a_request_before_capture() -> None:
    renderer = SimpleNamespace(served_template=str)
    chat: Any = SimpleNamespace(tool_parser=None, reasoning_parser=None, vision=None, renderer=renderer)
    server = Server("127.0.0.1", 8000, "a", KEY, "b", {capture.FOLDER: "x"})
    command = server.command(Policy(), Path("adapter"), chat)
    named = [command[place + 1].rpartition(".")[2] for place, word in enumerate(command) if word == "--middleware"]
    assert named == ["Shown", "Capture", "Guard"], "vLLM's server puts the last one outermost"
    assert guard.CONSENT_KEY not in Server("127.0.0.1", 8000, "a", KEY).environment(Policy())


def test_the_engines_cache_has_the_size_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for size in (None, "", "4"):
        monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
        if size is not None:
            monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", size)
        sizes.append(Server("127.0.0.1", 8000, "a", KEY).environment(Policy())["VLLM_CPU_KVCACHE_SPACE"])
    assert sizes == ["1", "1", "4"]


def test_a_killed_process_beside_the_server_costs_what_it_held_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_up(monkeypatch, tmp_path)
    others = children()  # of other tests, whose numbers may be higher
    with client_of() as client:
        assert ask(client).status_code == 200
        [child] = children() - others
        os.kill(child, signal.SIGKILL)
        while child in children():
            time.sleep(0.05)
        answers = [ask(client).status_code for _ in range(3)]
        assert answers == [200] * 3, "clients are served"
        missed = sum(counted(client).values())
    assert len(list(Store(tmp_path / ".flywheel/capture").lines())) + missed == 4
    assert missed <= 1, "it is started again"


def test_what_is_nested_too_deeply_is_no_request(client: TestClient, tmp_path: Path) -> None:
    headers = YES | {"content-type": "application/json"}
    for depth in (100, 400, 900, 100_000):
        deep = '{"messages":' + "[" * depth + "]" * depth + "}"
        answer = client.post("/v1/chat/completions", content=deep, headers=headers)
        fed = client.post("/feedback", content='{"response_id":' + "[" * depth + "]" * depth + "}")
        assert (answer.status_code, fed.status_code) == (400, 400)
        assert "nested too deeply" in answer.json()["error"]["message"]
    assert asked == []
    assert kept(tmp_path) == []
