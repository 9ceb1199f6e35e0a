"""The names and origins that a server on this machine answers to; what a middleware passes on, and the limits of bodies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

from steps.kit.guard import (
    Call,
    Middleware,
    bearer,
    caller_fault,
    drained,
    host_name,
    is_address,
    is_foreign,
    read,
)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("A.b:80", "a.b"),
        ("[::1]:8000", "::1"),
        ("[::1]", "::1"),
        ("a b", ""),
        ("a/b", ""),
        ("a:80:80", ""),
        ("a:x", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("127.0.0.1", True), ("::1", True), ("10.0.0.5", True), ("localhost", False), ("1.2.3.4.evil.example", False)],
)
def test_an_address_is_no_name(name: str, is_one: bool) -> None:
    assert is_address(name) == is_one


@pytest.mark.parametrize(
    ("origins", "hosts", "foreign"),
    [
        ([], ["127.0.0.1:8000"], False),
        (["http://127.0.0.1:8000"], ["127.0.0.1:8000"], False),
        (["http://127.0.0.1:3000"], ["127.0.0.1:8000"], True),
        (["null"], ["127.0.0.1:8000"], True),
        ([""], ["127.0.0.1:8000"], True),
        (["http://127.0.0.1:8000", "http://evil.example"], ["127.0.0.1:8000"], True),
        (["http://a"], ["a", "a"], True),
        (["http://a"], [], True),
    ],
)
def test_a_page_of_another_server_is_foreign(origins: list[str], hosts: list[str], foreign: bool) -> None:
    assert is_foreign(origins, hosts) == foreign


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ([("host", "localhost:80")], 0),
        ([("host", "10.0.0.5:80")], 421),
        ([("host", "localhost"), ("host", "localhost")], 421),
        ([], 421),
        ([("host", "localhost"), ("origin", "http://localhost")], 0),
        ([("host", "localhost"), ("origin", "http://evil.example")], 403),
    ],
)
def test_callers_that_are_refused(headers: list[tuple[str, str]], fault: int) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    assert caller_fault(Headers(raw=raw), ("localhost",)) == fault
    if ("host", "10.0.0.5:80") in headers:
        assert caller_fault(Headers(raw=raw), ("localhost",), any_address=True) == 0


@pytest.mark.parametrize(
    ("header", "key"), [("Bearer a", "a"), ("bearer  a ", "a"), ("Basic a", ""), ("a", ""), ("Bearer", "")]
)
def test_the_key_of_a_request(header: str, key: str) -> None:
    assert bearer(Headers({"authorization": header})) == key


class Refuses(Middleware):
    """Refuses one path, and gives the application another body."""

    async def answer(self, call: Call) -> Response | None:
        if call.scope["path"] == "/refused":
            return PlainTextResponse("no", 403)
        _, _, call.receive = await read(call.receive, 3)
        call.scope = {**call.scope, "path": "/passed"}
        return None


def through(kind: str, path: str) -> list[str]:
    """What the application behind `Refuses` was reached with, and what was sent."""
    told: list[str] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        told.append(f"{scope['type']} {scope.get('path', '')}")
        if kind == "http":
            told.append((await receive())["body"].decode())

    async def receive() -> Any:
        return {"type": "http.request", "body": b"abc"}

    async def send(message: Any) -> None:
        told.append(str(message.get("status", message["type"])))

    scope = {"type": kind, "headers": []} | ({"path": path} if kind != "lifespan" else {})
    asyncio.run(Refuses(behind)(scope, receive, send))
    return told


def test_what_is_refused_does_not_reach_the_application() -> None:
    assert through("http", "/refused") == ["403", "http.response.body"]
    assert through("websocket", "/refused") == ["websocket.close"]


def test_the_application_gets_the_call_as_it_was_left() -> None:
    assert through("http", "/") == ["http /passed", "abc"]
    assert through("lifespan", "") == ["lifespan "]


def body(*parts: bytes, cut: bool = False) -> Any:
    """What receives a body in these parts."""
    messages = [
        {"type": "http.request", "body": part, "more_body": cut or place < len(parts) - 1}
        for place, part in enumerate(parts)
    ] + [{"type": "http.disconnect"}]
    left = iter(messages)

    async def receive() -> Any:
        return next(left)

    return receive


async def taken(receive: Any, most: int) -> tuple[bytes, bool, int | None]:
    text, is_whole, again = await read(receive, most)
    return text, is_whole, await drained(again, 8)


def test_a_body_is_read_to_its_limit_and_given_again() -> None:
    assert asyncio.run(taken(body(b"ab", b"c"), 3)) == (b"abc", True, 3)
    assert asyncio.run(taken(body(b"ab", b"cd", b"e"), 3)) == (b"abcd", False, 5)
    assert asyncio.run(taken(body(b"ab", b"cdefghi", b"j", b"k"), 3))[2] == 9, "no more than the limit is drained"
    assert asyncio.run(taken(body(b"ab", cut=True), 3)) == (b"ab", False, None), "the client has gone"
