"""Conversations in JSON lines of OpenAI's forms, and in those that resemble them.

    {"messages": [...], "tools": [...]}                              rows for fine-tuning; the whole conversation
    {"request": {"messages": [...]}, "response": {"choices": [...]}}  logged calls, of any dialect
    {"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}     preferences
    {"run_type": "llm", "inputs": {...}, "outputs": {...}}           runs of LangSmith
    {"instruction": ..., "input": ..., "output": ...}                Alpaca's, with earlier turns in `history`

Beside these a row may have `id`, `conversation_id`, `created`, `metadata`, `consent` and `feedback`, an object or a list
of them: score (also called rating or thumbs) or label, comment, correction and response_id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from addons.production.traces.messages import GIVEN, TOOLS, answer_of, call_of, left_out
from addons.production.traces.opinions import Scales, consents, correction_of, is_outside, moment, score_of
from addons.production.traces.records import (
    Conversation,
    Feedback,
    Part,
    PassedOver,
    content_hash,
    guarded,
    hashed,
    key_of,
    mapping,
    parsed,
    plain,
    unknown_fields,
)
from steps.core.message_lists import SYSTEM, refuse_unread_words
from steps.core.message_marks import ENDS, WEIGHTS, marked
from steps.core.outside_json import DECODER

PRODUCER = "openai"
OWN_FIELDS = """id conversation_id custom_id response_id created created_at metadata feedback source consent request response
    output completion preferred_output non_preferred_output model temperature top_p max_tokens max_completion_tokens
    max_output_tokens seed tool_choice parallel_tool_calls usage object error status stop stream n user"""
ROLES = ("user", "assistant")
SCORES = ("score", "rating", "thumbs", "label")  # the first of them counts
SAYS = (*SCORES, "comment", "correction")  # what may be in feedback, beside what it is about and when
OF_FEEDBACK = frozenset((*SAYS, "response_id", "name", "time", "created"))
FIELDS = frozenset((*GIVEN, *SYSTEM, *TOOLS, *WEIGHTS, *ENDS, *OWN_FIELDS.split()))  # what a row may have


def read(lines: Iterable[str], name: str, scales: Scales | None = None) -> Iterator[Part]:
    """The conversations in the lines of the file `name`."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield from guarded(f"{name}:{number}", _parts, line, scales)


def _parts(line: str, scales: Scales | None) -> Iterator[Part]:
    row = DECODER.decode(line)
    if not isinstance(row, dict):
        raise ValueError(f"a row must be an object, not a {type(row).__name__}")
    if row.get("run_type") not in (None, "llm"):
        yield PassedOver(f"runs of the type {row['run_type']}, in which no model speaks")
        return
    row = _of_alpaca(row) if "instruction" in row and "output" in row and "messages" not in row else row
    refuse_unread_words(row, "a row", SYSTEM)
    yield conversation(row, scales)
    yield from unknown_fields(set[str]().union(*listed(row.get("feedback"))) - OF_FEEDBACK, "feedback")
    if row.get("feedback_stats"):
        yield PassedOver("feedback_stats of runs, which are means and nobody's word")
    if "run_type" not in row:
        yield from unknown_fields(set(row) - FIELDS, "rows")
    yield from left_out(row.get("request") or row, row)


def rows(text: str) -> Iterable[str]:
    """The lines of a file of JSON lines; the entries of one that is a JSON list, or one row over several lines."""
    whole = parsed(text) if text.lstrip()[:1] in ("[", "{") else None
    if isinstance(whole, dict):
        whole = [whole]
    return map(json.dumps, whole) if isinstance(whole, list) else text.split("\n")


def conversation(row: Mapping[str, Any], scales: Scales | None = None) -> Conversation:
    """The conversation in a row. ValueError where it is in none of the forms."""
    if "run_type" in row:
        row = _of_langsmith(row)
    feedback = [_feedback(entry, scales) for entry in listed(row.get("feedback"))]
    request, response = mapping(row.get("request")), mapping(row.get("response"))
    beside = {name: row[name] for name in (*SYSTEM, *TOOLS) if row.get(name)}
    body = beside | (mapping(request.get("body")) or request) if request else dict(row)
    answer = mapping(response.get("body")) or response
    if "preferred_output" in row:
        body = beside | mapping(row.get("input"))
        messages, tools = call_of(body, None)
        messages += answer_of(row.get("non_preferred_output"))
        feedback.append(Feedback(correction=correction_of(row["preferred_output"])))
    else:
        more = row.get("output") if body.get("input") else row.get("completion")
        messages, tools = call_of(body, answer or more)
    if all(message["role"] != "assistant" for message in marked(messages, row)):
        raise ValueError("no answer of the assistant")
    metadata = mapping(row.get("metadata")) | mapping(body.get("metadata"))
    named = (row.get("conversation_id"), metadata.get("conversation_id"), row.get("id"), row.get("custom_id"))
    name = next((str(value) for value in named if value not in (None, "")), "") or content_hash(messages)
    time = moment(row.get("created") or row.get("created_at") or answer.get("created") or answer.get("created_at"))
    answered = next((str(value) for value in (answer.get("id"), row.get("response_id")) if value not in (None, "")), "")
    place = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    return Conversation(
        key=key_of(PRODUCER, name),
        started=time,
        ended=time,
        consent=consents(row.get("consent", metadata.get("consent"))),
        messages=tuple(messages),
        tools=tools,
        feedback=tuple(feedback),
        responses={hashed(answered): place} if answered else {},
        metadata=plain(metadata),
    )


def _of_alpaca(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of Alpaca's form as one with messages."""
    asked = "\n".join(text for text in (row["instruction"], row.get("input")) if text)
    turns = [*(row.get("history") or ()), [asked, row["output"]]]
    if not all(isinstance(turn, list) and len(turn) == 2 for turn in turns):
        raise ValueError("history is no list of pairs, each of what a person said and its answer")
    messages = [{"role": role, "content": text} for turn in turns for role, text in zip(ROLES, turn, strict=True)]
    others = {name: value for name, value in row.items() if name not in ("instruction", "input", "output", "history")}
    return others | {"messages": messages}


def _of_langsmith(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run of LangSmith as a row. ValueError for one that is no call of a model."""
    extra = mapping(run.get("extra"))
    metadata = mapping(extra.get("metadata"))
    request = mapping(extra.get("invocation_params")) | mapping(run.get("inputs"))
    sessions = (metadata.get(name) for name in ("session_id", "thread_id", "conversation_id"))
    return {
        "conversation_id": next((name for name in sessions if name), None) or run.get("trace_id") or run.get("id"),
        "created_at": run.get("start_time"),
        "consent": metadata.get("consent", "consent" in listed(run.get("tags"))),
        "metadata": {name: value for name, value in metadata.items() if name in ("owner",)},
        "request": request,
        "response": {**mapping(run.get("outputs")), "id": run.get("id")},
    }


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def feedback_of(entry: Mapping[str, Any], time: str) -> Feedback:
    """Feedback that came at a time. ValueError where a field is wrong, or the score is not from 0 to 1."""
    feedback = _feedback(entry, None).model_copy(update={"time": time})
    if is_outside(feedback):
        raise ValueError(f"the score {feedback.name} is {feedback.score:g}, not from 0 to 1")
    return feedback


def _feedback(entry: Any, scales: Scales | None) -> Feedback:
    """Feedback with score, label, comment, correction and response_id. ValueError where a field is wrong, or fields are
    given of which none says anything here."""
    if not isinstance(entry, Mapping):
        raise ValueError(f"feedback must be an object, not a {type(entry).__name__}")
    if (unknown := sorted(entry.keys() - OF_FEEDBACK)) and all(entry.get(name) is None for name in SAYS):
        raise ValueError(f"feedback has no field {unknown[0][:40]}: give score, label, comment or correction")
    label, comment = entry.get("label"), entry.get("comment")
    field = next((name for name in SCORES if entry.get(name) not in (None, "")), "label")
    name = str(entry.get("name") or (field if field != "label" else "score"))
    score, name = score_of(entry.get(field), name, scales, is_label=field == "label")
    return Feedback(
        response=hashed(str(entry.get("response_id") or "")),
        name=name,
        score=score,
        label=str(label or ""),
        comment=str(comment or ""),
        correction=correction_of(entry["correction"]) if entry.get("correction") else None,
        time=moment(entry.get("time") or entry.get("created")),
    )
