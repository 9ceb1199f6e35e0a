"""Conversations in OpenTelemetry's GenAI spans: OTLP as JSON, as the collector's file exporter and SDKs write it.

Names read, the current ones first: `gen_ai.input.messages`, `gen_ai.output.messages`, `gen_ai.system_instructions` and
`gen_ai.tool.definitions`, as attributes (JSON text or structured) of spans or of the event
gen_ai.client.inference.operation.details; the events `gen_ai.{system,user,assistant,tool}.message` and `gen_ai.choice`,
on spans or as log records; `gen_ai.prompt` and `gen_ai.completion`, whole or numbered (gen_ai.prompt.0.role), on spans or
in events. A conversation is that of `gen_ai.conversation.id`, else of `session.id`, else the trace. Feedback is the event
`gen_ai.evaluation.result`. Consent is the attribute `consent` or `flywheel.consent` of any span of a trace, or of the
resource.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from environments.base import Message
from steps.traces.messages import answer_of, conversation_of, decoded, tools_of
from steps.traces.openai_jsonl import reason
from steps.traces.opinions import Scales, consents, moment, score_of
from steps.traces.records import Conversation, Feedback, Unreadable, hashed, key_of

PRODUCER = "otel"
NOT_CALLS = ("execute_tool", "embeddings", "create_agent", "retrieval")
OLD = re.compile(
    r"gen_ai\.(prompt|completion)\.(\d+)\.(?:(role|content|finish_reason)|tool_calls\.(\d+)\.(id|name|arguments))"
)
EVENTS = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
SHARED = ("gen_ai.conversation.id", "session.id", "flywheel.consent", "consent")
FIELDS = ("content", "role", "tool_calls", "id", "name")


class Event(NamedTuple):
    """An event of a span, or a log record: its name, and its attributes with those of a structured body."""

    name: str
    fields: dict[str, Any]


class Span(NamedTuple):
    """A span with the attributes of its resource."""

    trace: str
    id: str
    name: str
    start: str
    end: str
    fields: dict[str, Any]
    resource: dict[str, Any]
    events: list[Event]


def read(texts: Iterable[str], name: str, scales: Scales | None = None) -> Iterator[Conversation | Unreadable]:
    """The conversations in the OTLP requests of the file `name`, one a line or one for the whole file."""
    spans: dict[str, Span] = {}
    logs: dict[str, list[Event]] = defaultdict(list)
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            request = json.loads(text)
            for span in _spans(request):
                spans[span.id] = span
            for owner, event in _logs(request):
                logs[owner].append(event)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            yield Unreadable(f"{name}:{number}", reason(problem))
    for owner in sorted(logs.keys() - spans.keys()):
        yield Unreadable(
            f"{name} span {owner or 'none'}", f"{len(logs[owner])} log records of a span that is not in the file"
        )
    models = {
        span.trace
        for span in spans.values()
        if str(span.fields.get("gen_ai.operation.name")) in ("chat", "generate_content")
    }
    shared: dict[str, dict[str, Any]] = defaultdict(dict)  # what any span of a trace says of all of it
    for span in spans.values():
        shared[span.trace] |= {key: unquoted(span.fields[key]) for key in SHARED if key in span.fields}
    for span in spans.values():
        fields = span.fields
        operation = str(fields.get("gen_ai.operation.name"))
        events = [*span.events, *logs.get(span.id, ())]
        is_agent = operation in ("invoke_agent", "invoke_workflow")
        holds = any(key.startswith("gen_ai.") for key in fields) or any(
            event.name.startswith("gen_ai.") for event in events
        )
        if not holds or operation in NOT_CALLS or (is_agent and span.trace in models):
            continue  # tools' results are in the next call's messages, and an agent's in those of its calls
        try:
            about = span._replace(fields=fields | shared[span.trace])
            yield _conversation(about, events, scales)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            yield Unreadable(f"{name} span {span.id}", reason(problem))


def _conversation(span: Span, events: Sequence[Event], scales: Scales | None) -> Conversation:
    fields = dict(span.fields)
    for event in events:
        if event.name == "gen_ai.client.inference.operation.details" or event.name.startswith("gen_ai.content."):
            fields = event.fields | fields
    messages = _current(fields) or _by_events(events) or _old(fields)
    names = (fields.get("gen_ai.conversation.id"), fields.get("session.id"), span.trace)
    key = key_of(PRODUCER, next(str(name) for name in names if name))
    answered = str(fields.get("gen_ai.response.id") or span.id)
    feedback = tuple(
        _evaluation(event, answered, scales) for event in events if event.name == "gen_ai.evaluation.result"
    )
    if all(message["role"] != "assistant" for message in messages):
        if feedback:
            return Conversation(key=key, feedback=feedback)
        raise ValueError("no answer in the span: its producer records no content")
    both = fields | span.resource
    return Conversation(
        key=key,
        started=span.start,
        ended=span.end,
        consent=consents(both.get("flywheel.consent", both.get("consent"))),
        messages=tuple(messages),
        tools=tools_of(fields.get("gen_ai.tool.definitions")),
        feedback=feedback,
        responses={hashed(answered): len(messages) - 1},
        metadata={
            name.removeprefix("metadata."): str(value)
            for name, value in sorted(fields.items())
            if name.startswith("metadata.") and isinstance(value, str | int | float)
        },
    )


def _current(fields: Mapping[str, Any]) -> list[Message]:
    """The messages by the current names."""
    given, answers = decoded(fields.get("gen_ai.input.messages")), decoded(fields.get("gen_ai.output.messages"))
    if not answers:
        return []
    system = decoded(fields.get("gen_ai.system_instructions"))
    first = [{"role": "system", "content": system}] if system else []
    return conversation_of([*first, *(given or ()), answers[0]])


def _by_events(events: Sequence[Event]) -> list[Message]:
    """The messages by the events for each, which are current no more."""
    given: list[Any] = []
    for event in events:
        fields = {name: decoded(event.fields[name]) for name in FIELDS if event.fields.get(name) is not None}
        if match := EVENTS.fullmatch(event.name):
            if match[1] != "tool" and isinstance(fields.get("content"), dict):
                fields["content"] = json.dumps(fields["content"])
            given.append({"role": match[1]} | fields)
        elif event.name == "gen_ai.choice" and not event.fields.get("index"):
            message = decoded(event.fields.get("message")) or fields
            given.append(
                {"role": "assistant"} | (dict(message) if isinstance(message, Mapping) else {"content": str(message)})
            )
    return conversation_of(given)


def _old(fields: Mapping[str, Any]) -> list[Message]:
    """The messages by the oldest names: JSON or text in two attributes, or numbered attributes."""
    if isinstance(prompt := fields.get("gen_ai.prompt"), str):
        return conversation_of(prompt) + answer_of(fields.get("gen_ai.completion") or "")
    numbered: dict[tuple[str, int], dict[str, Any]] = {}
    calls: dict[tuple[str, int], dict[int, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for name, value in fields.items():
        if match := OLD.fullmatch(name):
            place = (match[1], int(match[2]))
            message = numbered.setdefault(place, {"role": "assistant" if match[1] == "completion" else "user"})
            if match[4]:
                calls[place][int(match[4])][match[5]] = value
            elif match[3] != "finish_reason":
                message[match[3]] = value
        elif match := re.fullmatch(r"gen_ai\.prompt\.(\d+)\.tool_call_id", name):
            numbered.setdefault(("prompt", int(match[1])), {})["tool_call_id"] = value
    for place, made in calls.items():
        numbered[place]["tool_calls"] = [made[number] for number in sorted(made)]
    ordered = sorted(numbered, key=lambda place: (place[0] == "completion", place[1]))
    prompts = [numbered[place] for place in ordered if place[0] == "prompt"]
    return conversation_of(prompts + [numbered[place] for place in ordered if place[0] == "completion"][:1])


def _evaluation(event: Event, answered: str, scales: Scales | None) -> Feedback:
    fields = event.fields
    value, label = fields.get("gen_ai.evaluation.score.value"), fields.get("gen_ai.evaluation.score.label")
    name = str(fields.get("gen_ai.evaluation.name") or "score")
    return Feedback(
        response=hashed(str(fields.get("gen_ai.response.id") or answered)),
        score=score_of(label) if value is None else score_of(value, name, scales),
        label=str(label or ""),
        comment=str(fields.get("gen_ai.evaluation.explanation") or ""),
        time=moment(fields.get("time")),
    )


def _spans(request: Mapping[str, Any]) -> Iterator[Span]:
    for owner in request.get("resourceSpans") or ():
        resource = attributes((owner.get("resource") or {}).get("attributes"))
        for scope in owner.get("scopeSpans") or owner.get("instrumentationLibrarySpans") or ():
            for span in scope.get("spans") or ():
                events = [
                    Event(str(event["name"]), attributes(event.get("attributes")) | {"time": event.get("timeUnixNano")})
                    for event in span.get("events") or ()
                ]
                times = moment(span.get("startTimeUnixNano")), moment(span.get("endTimeUnixNano"))
                made = attributes(span.get("attributes"))
                yield Span(
                    str(span["traceId"]), str(span["spanId"]), str(span.get("name", "")), *times, made, resource, events
                )


def _logs(request: Mapping[str, Any]) -> Iterator[tuple[str, Event]]:
    """(the span's id, the event) of each log record with a GenAI name."""
    for owner in request.get("resourceLogs") or ():
        for scope in owner.get("scopeLogs") or ():
            for record in scope.get("logRecords") or ():
                fields = attributes(record.get("attributes"))
                body = plain(record.get("body"))
                name = str(record.get("eventName") or fields.get("event.name") or "")
                if name.startswith("gen_ai."):
                    fields |= body if isinstance(body, dict) else {}
                    yield str(record.get("spanId") or ""), Event(name, fields | {"time": record.get("timeUnixNano")})


def unquoted(value: Any) -> Any:
    """The text in a JSON text, as MLflow writes attributes that a user set."""
    return json.loads(value) if isinstance(value, str) and re.fullmatch(r'"[^"\\]*"', value) else value


def attributes(pairs: Any) -> dict[str, Any]:
    """OTLP's list of keys and values as a dict."""
    return {str(pair["key"]): plain(pair.get("value")) for pair in pairs or ()}


def plain(value: Any) -> Any:
    """An OTLP value as JSON data."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return None if isinstance(value, Mapping) and not value else value
    [(kind, inside)] = value.items()
    match kind:
        case "arrayValue":
            return [plain(each) for each in inside.get("values") or ()]
        case "kvlistValue":
            return attributes(inside.get("values"))
        case "intValue":
            return int(inside)
        case _:
            return inside
