"""Spans and log records in files of OpenTelemetry: OTLP as JSON, by the collector's file exporter and by SDKs, in camel or
snake case, with ids in hexadecimal digits or base64; Tempo's `batches`; and what console exporters print, as JSON.

A file may hold one request a line, one for the whole file, several after another, or a list of them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from addons.production.traces.opinions import moment
from addons.production.traces.records import mapping, parsed
from steps.core.message_parts import first_of

HEX = re.compile(r"(?:[0-9a-fA-F]{16}){1,2}")
SPANS = ("resourceSpans", "resource_spans", "batches")
IDS = (("traceId", "trace_id"), ("spanId", "span_id"))
LOGS = ("resourceLogs", "resource_logs")
SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans", "ilSpans", "scopeLogs", "scope_logs")
HINTS = {  # a field of rows of other forms -> what reads them
    "run_type": "runs of LangSmith, which the source openai reads",
    "messages": "rows of conversations, which the source openai reads",
    "request": "rows of calls, which the source openai reads",
    "info": "traces of MLflow, which the source mlflow reads",
    "observations": "traces of Langfuse, which the source langfuse reads",
    "traceID": "Jaeger's form, which is not read: export OTLP",
    "resourceMetrics": "metrics",
}


class Event(NamedTuple):
    """An event of a span, or a log record: its name, and its attributes with those of a structured body."""

    name: str
    fields: dict[str, Any]


class Span(NamedTuple):
    """A span with the attributes of its resource."""

    trace: str
    id: str  # the trace's id and its own, which only both together name one span
    name: str
    scope: str
    start: str
    end: str
    fields: dict[str, Any]
    resource: dict[str, Any]
    events: list[Event]


def documents(text: str) -> Iterator[Any]:
    """The JSON values in a text, one after another; lists come as what is in them. ValueError for what is no JSON."""
    if re.match(r"\s*\{\s+\w+: ", text):
        raise ValueError("objects as Node's console exporter prints them, which are no JSON: export OTLP")
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place] in " \t\r\n,":
            place += 1
            continue
        value, place = decoder.raw_decode(text, place)
        yield from value if isinstance(value, list) else [value]


def spans_in(document: Any) -> list[Span]:
    """The spans of a request, or of an entry that is a span itself. ValueError for another form."""
    if not isinstance(document, Mapping):
        raise ValueError(f"no request of OTLP but a {type(document).__name__}")
    if first_of(document, *LOGS) is not None and first_of(document, *SPANS) is None:
        return []
    owners = first_of(document, *SPANS)
    if owners is None:
        if (span := _span(document, {}, "")) is None:
            raise ValueError(f"no spans but {_form(document)}")
        return [span]
    made = []
    for owner in owners:
        resource = attributes((owner.get("resource") or {}).get("attributes"))
        for scope in first_of(owner, *SCOPES) or ():
            named = first_of(scope, "scope", "instrumentationLibrary", "instrumentation_library") or {}
            for entry in scope.get("spans") or ():
                if (span := _span(entry, resource, str(named.get("name") or ""))) is None:
                    raise ValueError(f"no span but {_form(entry)}")
                made.append(span)
    return made


def logs_in(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Event]]:
    """(the span's id as `Span` has it, the scope, the event) of each log record."""
    for owner in first_of(document, *LOGS) or ():
        for scope in first_of(owner, *SCOPES) or ():
            for record in first_of(scope, "logRecords", "log_records") or ():
                fields, body = attributes(record.get("attributes")), plain(record.get("body"))
                name = str(first_of(record, "eventName", "event_name") or fields.get("event.name") or "")
                fields |= body if isinstance(body, dict) else {}
                fields["time"] = first_of(record, "timeUnixNano", "time_unix_nano")
                named = str((scope.get("scope") or {}).get("name") or "")
                ids = [id_of(first_of(record, *names)) for names in IDS]
                yield " ".join(filter(None, ids)), named, Event(name, fields)


def _span(entry: Any, resource: dict[str, Any], scope: str) -> Span | None:
    """A span of OTLP, or of a console exporter; None where it is none."""
    if not isinstance(entry, Mapping):
        return None
    context = entry.get("context")
    ids = context if isinstance(context, Mapping) else entry
    trace, number = (id_of(first_of(ids, *names)) for names in IDS)
    number = number or id_of(entry.get("id") if "instrumentationScope" in entry else None)
    fields = entry.get("attributes", {} if "startTimeUnixNano" in entry or "start_time_unix_nano" in entry else None)
    if not trace or not number or not isinstance(fields, Mapping | list):
        return None
    named = first_of(entry, "instrumentationScope", "instrumentation_scope", "instrumentation_info")
    events = []
    for event in entry.get("events") or ():
        events.append(Event(str(event["name"]), attributes(event.get("attributes"))))
        events[-1].fields["time"] = _time(first_of(event, "timeUnixNano", "time_unix_nano", "timestamp", "time"))
    start = first_of(entry, "startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime", "timestamp")
    end = first_of(entry, "endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")
    if end is None and isinstance(start, int | float) and isinstance(entry.get("duration"), int | float):
        end = start + entry["duration"]
    return Span(
        trace,
        f"{trace} {number}",
        str(entry.get("name", "")),
        scope or str(mapping(named).get("name") or ""),
        moment(_time(start)),
        moment(_time(end)),
        attributes(fields),
        resource or attributes(mapping(entry.get("resource")).get("attributes")),
        events,
    )


def id_of(value: Any) -> str:
    """An id in hexadecimal digits, however it is written."""
    text = str(value or "").removeprefix("0x")
    if len(text) in (12, 24) and not HEX.fullmatch(text):
        try:
            return base64.b64decode(text, validate=True).hex()
        except ValueError:
            return text
    return text.lower() if HEX.fullmatch(text) else text


def attributes(given: Any) -> dict[str, Any]:
    """OTLP's list of keys and values as a dict; a dict as it is."""
    if isinstance(given, Mapping):
        return {str(key): plain(value) for key, value in given.items()}
    return {str(pair["key"]): plain(pair.get("value")) for pair in given or ()}


def plain(value: Any) -> Any:
    """An OTLP value as JSON data."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return None if isinstance(value, Mapping) and not value else value
    [(kind, inside)] = value.items()
    match kind:
        case "arrayValue" | "array_value":
            return [plain(each) for each in inside.get("values") or ()]
        case "kvlistValue" | "kvlist_value":
            return attributes(inside.get("values"))
        case "intValue" | "int_value":
            return int(inside)
        case _ if re.fullmatch("(string|bool|double|bytes)(Value|_value)", str(kind)):
            return inside
        case _:
            return value


def _time(value: Any) -> Any:
    """A time, also as Node's [seconds, nanoseconds]."""
    if isinstance(value, list) and len(value) == 2:
        return value[0] * 10**9 + value[1]
    return value


def _form(document: Any) -> str:
    if not isinstance(document, Mapping):
        return f"a {type(document).__name__}"
    hint = next((what for name, what in HINTS.items() if name in document), "")
    names = ", ".join(sorted(str(name)[:40] for name in document)[:6])
    return hint or f"an object with the fields {names or 'none'}"


def lines_or_whole(text: str) -> Iterable[str]:
    """The lines of a file of JSON lines; the text where its values go over several lines."""
    lines = text.split("\n")
    first = [line for line in lines if line.strip()][:2]
    return lines if any(isinstance(parsed(line), dict) for line in first) else [text]
