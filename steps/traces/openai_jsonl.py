"""Conversations in JSON lines of OpenAI's forms.

    {"messages": [...], "tools": [...]}                              rows for fine-tuning; the whole conversation
    {"request": {"messages": [...]}, "response": {"choices": [...]}}  logged calls of chat completions
    {"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}     preferences

Beside these a row may have `id`, `conversation_id`, `created`, `metadata`, `consent` and `feedback` (an object or a list
with score, label, comment, correction and response_id), as POST /feedback takes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from steps.core.errors import UserError
from steps.traces.messages import answer_of, conversation_of, tools_of
from steps.traces.opinions import Scales, consents, correction_of, moment, score_of
from steps.traces.records import Conversation, Feedback, Unreadable, content_hash, hashed, key_of

PRODUCER = "openai"


def read(lines: Iterable[str], name: str, scales: Scales | None = None) -> Iterator[Conversation | Unreadable]:
    """The conversations in the lines of the file `name`."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"a row must be an object, not a {type(row).__name__}")
            yield conversation(row, scales)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            yield Unreadable(f"{name}:{number}", reason(problem))


def reason(problem: Exception) -> str:
    """Why a row cannot be used, without what is in it."""
    if isinstance(problem, json.JSONDecodeError):
        return f"no JSON ({problem.msg})"
    if isinstance(problem, ValueError | UserError):
        return " ".join(str(problem).split())[:200]
    return f"not in the form of its producer ({type(problem).__name__})"


def conversation(row: Mapping[str, Any], scales: Scales | None = None) -> Conversation:
    """The conversation in a row. ValueError where it is in none of the forms."""
    feedback = [_feedback(entry, scales) for entry in listed(row.get("feedback"))]
    request, response = _mapping(row.get("request")), _mapping(row.get("response"))
    body = _mapping(request.get("body")) or request
    answer = _mapping(response.get("body")) or response
    if "preferred_output" in row:
        body = _mapping(row.get("input"))
        messages = conversation_of(body.get("messages")) + answer_of(row.get("non_preferred_output"))
        feedback.append(Feedback(correction=correction_of(row["preferred_output"])))
    elif body:
        messages = conversation_of(body.get("messages")) + answer_of({"choices": answer.get("choices")})
    else:
        body = dict(row)
        messages = conversation_of(row.get("messages"))
    if all(message["role"] != "assistant" for message in messages):
        raise ValueError("no answer of the assistant")
    metadata = _mapping(row.get("metadata")) | _mapping(body.get("metadata"))
    named = (row.get("conversation_id"), metadata.get("conversation_id"), row.get("id"), row.get("custom_id"))
    name = next((str(value) for value in named if value), "") or content_hash(messages)
    time = moment(row.get("created") or row.get("created_at") or answer.get("created"))
    answered = next((str(value) for value in (answer.get("id"), row.get("response_id")) if value), "")
    place = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    return Conversation(
        key=key_of(PRODUCER, name),
        started=time,
        ended=time,
        consent=consents(row.get("consent", metadata.get("consent"))),
        messages=tuple(messages),
        tools=tools_of(body.get("tools")),
        feedback=tuple(feedback),
        responses={hashed(answered): place} if answered else {},
        metadata=plain(metadata),
    )


def plain(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The metadata that are texts or numbers, without the ids and the consent, which have fields of their own."""
    left = {"conversation_id", "consent", "session_id", "user_id", "user"}
    return {
        str(name): str(value)
        for name, value in sorted(metadata.items())
        if name not in left and isinstance(value, str | int | float)
    }


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _feedback(entry: Any, scales: Scales | None) -> Feedback:
    if not isinstance(entry, Mapping):
        raise ValueError(f"feedback must be an object, not a {type(entry).__name__}")
    return feedback_of(entry, scales)


def feedback_of(entry: Mapping[str, Any], scales: Scales | None = None, time: str = "") -> Feedback:
    """Feedback with score, label, comment, correction and response_id. ValueError where a field is wrong."""
    label, comment = entry.get("label"), entry.get("comment")
    score = score_of(entry.get("score"), scales=scales) if entry.get("score") is not None else score_of(label)
    return Feedback(
        response=hashed(str(entry.get("response_id") or "")),
        score=score,
        label=str(label or ""),
        comment=str(comment or ""),
        correction=correction_of(entry["correction"]) if entry.get("correction") else None,
        time=time or moment(entry.get("time") or entry.get("created")),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
