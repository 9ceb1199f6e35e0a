"""Conversations from the store that `make serve CAPTURE=1` writes (addons/production/serving/capture.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from addons.production.traces.records import Conversation, Feedback, Unreadable, content_hash
from addons.production.traces.store import Store

PRODUCER = "capture"


def read(store: Store, offsets: Mapping[str, int]) -> tuple[list[Conversation | Unreadable], dict[str, int]]:
    """(what was added after these offsets, the offsets now). A file's name and offset stand for a line that is no record."""
    ends = {path.name: min(offsets.get(path.name, 0), path.stat().st_size) for path in store.segments()}
    parts: list[Conversation | Unreadable] = []
    for line in store.lines(ends):
        ends[line.segment] = line.end
        place = f"capture {line.segment}:{line.end}"
        if line.record is None:
            parts.append(Unreadable(place, "a line that was cut off when the server was stopped"))
            continue
        parts += [_part(line.record, place)]
    return parts, dict(sorted(ends.items()))


def _part(record: dict[str, Any], place: str) -> Conversation | Unreadable:
    try:
        if record["kind"] == "feedback":
            fields = {name: record[name] for name in Feedback.model_fields if name in record}
            return Conversation(key=record["key"], feedback=(Feedback.model_validate(fields),))
        messages = (*record["messages"], record["answer"])
        content_hash(messages)  # which a message of another form fails
        return Conversation(
            key=record["key"],
            started=record["time"],
            ended=record["time"],
            consent=record["consent"],
            messages=messages,
            tools=tuple(record["tools"]),
            responses={record["response"]: len(messages) - 1},
            metadata=record["metadata"],
        )
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):  # pydantic's is a ValueError
        return Unreadable(place, "no record of this store's form")


def records(store: Store) -> Iterator[dict[str, Any]]:
    """All records in the store."""
    return (line.record for line in store.lines() if line.record is not None)
