"""What the dialects share in an answer: JSON, server-sent events, the pieces of a streamed text, and logprobs.

An answer is in the journal before its first piece is sent, so a stream is the finished answer cut into pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from addons.agents.gateway.types import BadRequest, Token

DONE = "data: [DONE]\n\n"
KEEP_ALIVE = ": sampling\n\n"  # a comment, which every client skips
PIECE = 64  # letters of a streamed text in one event
LEAST = -9999.0  # nats; in place of minus infinity, which JSON does not have


def as_json(data: Any) -> str:
    """ASCII alone: readers that split lines at U+2028 or U+0085 would cut an event in two. ValueError for NaN."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def event(data: dict[str, Any], name: str | None = None) -> str:
    """A server-sent event, with a name where the dialect gives it one."""
    return f"event: {name}\ndata: {as_json(data)}\n\n" if name else f"data: {as_json(data)}\n\n"


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of PIECE letters; nothing for an empty text."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def logprobs(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """The tokens as chat completions and responses show them. A token that is part of a letter has no bytes of its own."""
    return [
        _logprob(token.text, token.logprob) | {"top_logprobs": [_logprob(text, value) for text, value in token.top]}
        for token in tokens
    ]


def _logprob(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "bytes": [] if "\ufffd" in text else list(text.encode()), "logprob": max(value, LEAST)}


def error(problem: BadRequest, status: int) -> dict[str, Any]:
    """An error as OpenAI's three dialects write it."""
    name = "authentication_error" if status == 401 else "invalid_request_error"
    return {"error": {"message": problem.message, "type": name, "param": problem.param, "code": problem.code}}


def error_event(problem: dict[str, Any]) -> str:
    """An error after the stream has begun; the official clients raise APIError or APIStatusError from it. That of responses
    only hands on the event `error` that OpenAI describes, so it has the form of the others."""
    return event(problem, problem.get("type"))
