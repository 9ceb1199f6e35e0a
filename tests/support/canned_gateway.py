"""A stand-in for the gateway without server or model: every request is parsed, and a canned reply is rendered.

Official clients take it as their transport, so they meet the dialects' real bytes in one process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2

from addons.agents.gateway import responses
from addons.agents.gateway.answers import DIALECTS
from addons.agents.gateway.types import BadRequest, Choice, Reply, Request, Token

WORDS = (
    "Naïve “quotes” and 東京 😀:\u2028a line that is long enough to need more than one piece of a stream, and a bit."
)
ARGUMENTS = {
    "keywords": ["Falcon", 'a "q"'],
    "limit": 3,
    "share": 1.0,
    "note": "é\u2028\n" + "x" * 90,
    "nested": {"n": None},
}
TOKENS = (Token("Na", -0.25, (("Na", -0.25), ("N", -1.5))), Token("\ufffd", float("-inf")))


def call(number: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": "search", "arguments": arguments}}


def choice(content: str = WORDS, calls: int = 0, reasoning: str = "", **fields: Any) -> Choice:
    """A choice with words, and `calls` calls with ARGUMENTS and without any."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    message |= {"reasoning": reasoning} if reasoning else {}
    message |= {"tool_calls": [call(n, {} if n else ARGUMENTS) for n in range(calls)]} if calls else {}
    ended = dict[str, Any](finish_reason="tool_calls" if calls else "stop", completion_tokens=7, tokens=TOKENS) | fields
    return Choice(message=message, text=content, **ended)


def reply(*choices: Choice) -> Reply:
    return Reply("abc123", 1_790_000_000, "policy", choices or (choice(),), prompt_tokens=100, cached_tokens=60)


class CannedGateway:
    """Answers requests with `script(request)` in the dialect of the path, and keeps every parsed request."""

    def __init__(self, script: Callable[[Request], Reply]) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.calls: list[tuple[dict[str, Any], Reply]] = []

    def __call__(self, sent: httpx2.Request) -> httpx2.Response:
        dialect, body = DIALECTS[sent.url.path.removeprefix("/v1/")], json.loads(sent.content)
        try:
            earlier = [responses.Recorded(self.calls)] if sent.url.path == "/v1/responses" else []
            request = dialect.parse(body, *earlier)
        except BadRequest as problem:
            return httpx2.Response(400, json=dialect.error(problem, 400))
        self.requests.append(request)
        made = self.script(request)._replace(id=f"r{len(self.requests)}")
        if earlier:
            self.calls.append((body, made))
        if not body.get("stream"):
            return httpx2.Response(200, json=dialect.render(made, body))
        text = "".join(dialect.events(made, body))
        return httpx2.Response(200, text=text, headers={"content-type": "text/event-stream"})

    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self)
