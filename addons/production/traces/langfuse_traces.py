"""Conversations in Langfuse: from its API, or from its exports.

The API's `/api/public/v2/observations` and `/api/public/v3/scores` are read page by page, from a time on. An export is a
file or a folder: JSON lines or a JSON array of observations and scores (the blob storage's observations_v2/ and scores/,
plain or .gz), or of traces with `observations` and `scores` in them (the pages' export). Names are in camel or snake
case.

Calls are observations of the type GENERATION; a trace without any is itself one. A conversation is that of the session,
else the trace. Feedback are the scores of people and of the API; those of Langfuse's evaluators only if their name is
given a scale. Consent is `consent` in the metadata, or the tag "consent".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from addons.production.traces.messages import call_of, left_out, tools_of
from addons.production.traces.opinions import Scales, consents, correction_of, moment, score_of
from addons.production.traces.packed import text_of
from addons.production.traces.records import (
    Conversation,
    Feedback,
    Part,
    PassedOver,
    Unreadable,
    guarded,
    hashed,
    key_of,
    mapping,
    parsed,
    plain,
)
from environments.kit.http_client import Client
from steps.core.message_parts import decoded
from steps.core.ports import need

PRODUCER = "langfuse"
OBSERVATIONS, SCORES = "/api/public/v2/observations", "/api/public/v3/scores"
FIELDS = "core,basic,io,metadata,model,trace_context"
RAN_TOOLS = " ran tools"  # a mark on traces that are read as calls
PARTS = ("observations", "scores")  # of a trace


def fetch(since: str) -> Iterator[dict[str, Any]]:
    """The rows of observations and scores from a time on. UserError where Langfuse is not set up or does not answer."""
    need("trackers", "the source langfuse")
    from addons.trackers.tracing import langfuse_pages

    with langfuse_pages.opened("the source langfuse") as client:
        seen: set[str] = set()
        for row in _pages(client, OBSERVATIONS, {"fields": FIELDS} | ({"fromStartTime": since} if since else {})):
            seen.add(str(row.get("traceId")))
            yield row
        for row in _pages(client, SCORES, {"fields": "details,subject"} | ({"fromTimestamp": since} if since else {})):
            trace = _trace_of(row)
            if trace and trace not in seen:  # of an older trace, whose session is not known here
                seen.add(trace)
                yield from _pages(client, OBSERVATIONS, {"fields": FIELDS, "traceId": trace})
            yield row


def _pages(client: Client, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    from addons.trackers.tracing import langfuse_pages

    cursor: str | None = None
    while True:
        asked = query | {"limit": str(langfuse_pages.PAGE)} | ({"cursor": cursor} if cursor else {})
        content = langfuse_pages.page(client, path, asked)
        yield from content["data"]
        cursor = content["meta"].get("cursor") or content["meta"].get("nextCursor")
        if not cursor:
            return


def export(path: Path) -> Iterator[Any]:
    """The rows of an exported file, or of all files of an exported folder; lines that are no JSON come as they are, and what
    could not be read as `Unreadable`."""
    names = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
    files = sorted(file for file in path.rglob("*") if file.name.endswith(names)) if path.is_dir() else [path]
    for file in files:
        if not file.is_file() or (path.is_dir() and not file.resolve().is_relative_to(path.resolve())):
            yield Unreadable(file.name, "no file of the folder's own, but a link out of it or another thing")
            continue
        text, unread = text_of(file)
        yield from unread
        whole = parsed(text)
        if isinstance(whole, list):
            yield from whole
        elif isinstance(whole, dict):
            yield from whole["data"] if isinstance(whole.get("data"), list) else [whole]
        else:
            yield from (parsed(line) or line for line in text.split("\n") if line.strip())


def read(rows: Iterable[Any], name: str, scales: Scales | None = None) -> Iterator[Part]:
    """The conversations in rows of observations, scores and traces. Scores find their conversation by the trace or session,
    and a score of a trace that is in no row stays for a later reading's quarantine."""
    sessions: dict[str, str] = {}  # of each trace
    flat = list(_flat(rows, name))
    for _, row in flat:
        if isinstance(row, Mapping) and (trace := _get(row, "traceId")) and (session := _get(row, "sessionId")):
            sessions[str(trace)] = str(session)
    for place, row in flat:
        yield from guarded(place, _parts, row, sessions, scales)


def _parts(row: Any, sessions: Mapping[str, str], scales: Scales | None) -> Iterator[Part]:
    if isinstance(row, Unreadable):
        yield row
    elif not isinstance(row, Mapping):
        raise ValueError("no JSON object")
    elif (kind := _kind(row)) == "SCORE":
        yield _score(row, sessions, scales) or PassedOver(f"scores {row.get('name')} of evaluators")
    elif kind == "GENERATION":
        yield _observation(row)
        yield from left_out(_get(row, "input"), _get(row, "input"), _get(row, "output"))
    else:
        yield PassedOver(f"observations of the type {kind}, in which no model speaks")


def _kind(row: Mapping[str, Any]) -> str:
    """What a row is: "SCORE", or the type of an observation."""
    return "SCORE" if {"dataType", "data_type"} & row.keys() else str(row.get("type") or "GENERATION").upper()


def _flat(rows: Iterable[Any], name: str) -> Iterator[tuple[str, Any]]:
    """(place, row), where traces come as their observations and scores; what of a trace cannot be, as `Unreadable`."""
    listed = list(rows)
    by_id = {str(row["id"]): row for row in listed if isinstance(row, Mapping) and row.get("id")}
    for number, row in enumerate(listed, 1):
        place = f"{name} {row['id']}" if isinstance(row, Mapping) and row.get("id") else f"{name}:{number}"
        if not isinstance(row, Mapping) or not any(isinstance(row.get(part), list) for part in PARTS):
            yield place, row
            continue
        yield from ((place, each) for each in guarded(place, _inside, row, by_id, place))


def _inside(row: Mapping[str, Any], by_id: Mapping[str, Any], place: str) -> Iterator[dict[str, Any] | Unreadable]:
    """The observations and scores in a trace, and the trace itself where no call is among them. Those that it has by their
    ids alone are rows of their own (`by_id`), or missing."""
    ids = [str(each) for part in PARTS for each in row.get(part) or () if not isinstance(each, Mapping)]
    if missing := sorted(set(ids) - by_id.keys()):
        names = ", ".join(missing[:3])
        yield Unreadable(place, f"observations or scores by their ids alone, which are no rows of the export: {names}")
    inside = [each for each in row.get("observations") or () if isinstance(each, Mapping)]
    kinds = {_kind(each) for each in (*inside, *(by_id[name] for name in ids if name in by_id))}
    if "GENERATION" not in kinds:
        whole = {name: row.get(name) for name in ("id", "input", "output", "timestamp")}
        inside.append(whole | {RAN_TOOLS: "TOOL" in kinds or None})
    shared = {"traceId": row.get("id"), "sessionId": _get(row, "sessionId"), "traceTags": row.get("tags")}
    metadata = _metadata(row)
    for each in inside:
        yield shared | _given(each) | {"metadata": metadata | _metadata(each)}
    for each in row.get("scores") or ():
        if isinstance(each, Mapping):
            yield {"traceId": row.get("id"), "dataType": None} | _given(each)


def _given(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's fields that have a value, so that what its trace says of all counts for the others."""
    return {name: value for name, value in row.items() if value is not None}


def _observation(row: Mapping[str, Any]) -> Conversation:
    """A call of a model."""
    if _get(row, "input") is None and _get(row, "output") is None:
        named = ", ".join(sorted(str(name) for name, value in row.items() if value is not None)[:6])
        raise ValueError(f"no input and no output in an object with the fields {named}")
    messages, tools = call_of(_get(row, "input"), _get(row, "output"), packed=True)
    if not messages or messages[-1]["role"] != "assistant":
        raise ValueError("no answer in the observation")
    if row.get(RAN_TOOLS) and all(message["role"] != "tool" for message in messages):
        raise ValueError("tools ran in it, and the calls of the model that used them are not in the trace")
    metadata = _metadata(row)
    tags = [decoded(tags) for tags in (row.get("tags"), _get(row, "traceTags"))]
    is_tagged = any(each == "consent" or (isinstance(each, list) and "consent" in each) for each in tags)
    started = moment(_get(row, "startTime") or row.get("timestamp"))
    return Conversation(
        key=key_of(PRODUCER, str(_get(row, "sessionId") or _get(row, "traceId") or row["id"])),
        started=started,
        ended=moment(_get(row, "endTime")) or started,
        consent=consents(metadata.get("consent")) or is_tagged,
        messages=tuple(messages),
        tools=tools or tools_of(_get(row, "toolDefinitions")),
        responses={hashed(str(row["id"])): len(messages) - 1},
        metadata=plain(metadata),
    )


def _score(row: Mapping[str, Any], sessions: Mapping[str, str], scales: Scales | None) -> Conversation | None:
    """The feedback of a score; None for the scores of evaluators."""
    name, kind = str(row.get("name") or "score"), str(_get(row, "dataType") or "")
    if row.get("source") == "EVAL" and name not in (scales or {}):
        return None
    subject = row.get("subject") or {}
    observation = _get(row, "observationId") or (subject.get("id") if subject.get("kind") == "observation" else None)
    trace = _trace_of(row)
    session = _get(row, "sessionId") or (subject.get("id") if subject.get("kind") == "session" else None)
    owner = session or sessions.get(trace, trace)
    if not owner:
        raise ValueError("a score of no trace and no session")
    values = row.get("value"), _get(row, "stringValue")
    first, second = reversed(values) if kind in ("CATEGORICAL", "TEXT") else values
    value = second if first is None else first
    is_correction = kind == "CORRECTION" or name == "correction"
    is_label = kind not in ("NUMERIC", "BOOLEAN")
    score, name = score_of(None if is_correction else value, name, scales, is_label)
    feedback = Feedback(
        response=hashed(str(observation)) if observation else "",
        name=name,
        score=score,
        label=value if isinstance(value, str) and not is_correction else "",
        comment=str(row.get("comment") or ""),
        correction=correction_of(value) if is_correction and value else None,
        time=moment(row.get("timestamp")),
    )
    return Conversation(key=key_of(PRODUCER, str(owner)), feedback=(feedback,))


def _trace_of(row: Mapping[str, Any]) -> str:
    """The trace that a score is on, or in; empty where it is on a session."""
    subject = row.get("subject") or {}
    own = subject.get("id") if subject.get("kind") == "trace" else ""
    return str(_get(row, "traceId") or subject.get("traceId") or own or "")


def _metadata(row: Mapping[str, Any]) -> dict[str, Any]:
    return mapping(decoded(row.get("metadata")))


def _get(row: Mapping[str, Any], name: str) -> Any:
    """A field by its name in camel case, or the same in snake case."""
    snake = "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in name)
    return row.get(name) if row.get(name) is not None else row.get(snake)
