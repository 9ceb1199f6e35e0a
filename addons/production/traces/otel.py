"""Conversations in OpenTelemetry's spans: addons/production/traces/otlp.py reads the files, and
addons/production/traces/spans.py what producers write into spans.

A conversation is that of `gen_ai.conversation.id`, else of the session, else the trace. Feedback is the event
`gen_ai.evaluation.result`. Consent is an attribute `consent`, or one that ends in `.consent`, of any span of a trace, or
else of the resource, or the tag "consent"; one that says no holds for the trace. Spans in which no model speaks are counted
by their scope, and so are attributes of messages that nothing here reads.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from addons.production.traces import spans
from addons.production.traces.opinions import Scales, consents, moment, place_in_time, score_of
from addons.production.traces.otlp import Event, Span, documents, logs_in, spans_in
from addons.production.traces.records import (
    FAULTS,
    Conversation,
    Feedback,
    Part,
    PassedOver,
    Unreadable,
    hashed,
    key_of,
    mapping,
    not_kept,
    plain,
    reason,
)
from environments.base import Message
from steps.core.message_parts import decoded, with_names

PRODUCER = "otel"
SESSIONS = """gen_ai.conversation.id session.id langfuse.session.id ai.telemetry.metadata.sessionId mlflow.trace.session
    traceloop.association.properties.session_id""".split()
METADATA = ("metadata.", "ai.telemetry.metadata.", "langfuse.trace.metadata.", "traceloop.association.properties.")
FRAMEWORK = re.compile("ls_|lc_|langgraph_|checkpoint")  # what LangChain writes into it by itself
TAGS = ("tag.tags", "langfuse.trace.tags")
EVALUATION = "gen_ai.evaluation.result"


def read(texts: Iterable[str], name: str, scales: Scales | None = None) -> Iterator[Part]:
    """The conversations in the texts of the file `name`, each with one JSON value or several."""
    by_id: dict[str, Span] = {}
    logs: dict[str, list[Event]] = defaultdict(list)
    for number, text in enumerate(texts, 1):
        try:
            for document in documents(text):
                by_id |= {span.id: span for span in spans_in(document)}
                for owner, scope, event in logs_in(document):
                    if event.name.startswith("gen_ai."):
                        logs[owner].append(event)
                    else:
                        yield PassedOver(f"log records of the scope {scope or 'none'}, of no model")
        except FAULTS as problem:
            yield Unreadable(f"{name}:{number}", reason(problem))
    for owner in sorted(logs.keys() - by_id.keys()):
        why = f"{len(logs[owner])} log records of a span that is not in the file"
        yield Unreadable(f"{name} span {owner or 'none'}", why)
    yield from _Reading(by_id.values(), logs, name, scales).parts()


class _Reading:
    """Reads all spans of a file: the calls first, and what stands around them where no call of a trace could be read."""

    def __init__(
        self, listed: Iterable[Span], logs: Mapping[str, list[Event]], name: str, scales: Scales | None
    ) -> None:
        self.spans = sorted(listed, key=lambda span: span.start)
        self.events = {
            span.id: sorted([*span.events, *logs.get(span.id, ())], key=lambda each: place_in_time(each.fields["time"]))
            for span in self.spans
        }
        self.name, self.scales = name, scales
        self.shared: dict[str, dict[str, Any]] = defaultdict(dict)  # what any span of a trace says of all of it
        self.consents: dict[str, list[bool]] = defaultdict(list)
        for span in self.spans:
            fields = span.fields
            self.shared[span.trace] |= {key: spans.decoded_text(fields[key]) for key in SESSIONS if fields.get(key)}
            self.shared[span.trace] |= metadata_of(fields)
            self.consents[span.trace] += consents_in(fields)
        self.with_tools: set[str] = set()  # traces in which a tool ran
        self.answers: dict[str, list[Message]] = {}  # by the id of the response

    def parts(self) -> Iterator[Part]:
        kinds = {span.id: spans.kind(span.fields, self.events[span.id]) for span in self.spans}
        self.with_tools = {span.trace for span in self.spans if kinds[span.id] == "beside"}
        covered = set()
        for what in ("call", "around", "beside", "other"):
            for span in self.spans:
                if kinds[span.id] != what:
                    continue
                made = list(self._parts(span, what, span.trace in covered))
                if what == "call" and any(isinstance(part, Conversation) and part.messages for part in made):
                    covered.add(span.trace)
                yield from made

    def _parts(self, span: Span, what: str, is_covered: bool) -> Iterator[Part]:
        feedback: tuple[Feedback, ...] = ()
        try:
            feedback = self._feedback(span, what)
            if what == "call" or (what == "around" and not is_covered):
                messages, tools = self._call(span)
                ran_tools = what == "around" and span.trace in self.with_tools
                if ran_tools and all(message["role"] != "tool" for message in messages):
                    raise ValueError("tools ran in it, and the calls of the model that used them are not in the file")
                if messages:
                    yield self._conversation(span, messages, tools, feedback)
                    for field in sorted(spans.unread(span.fields)):
                        yield PassedOver(f"attributes {field}, which no reader knows")
                    yield from not_kept(spans.lost(span.fields))
                    return
        except FAULTS as problem:
            if what == "around":
                yield PassedOver(f"spans of the scope {span.scope or 'none'}, around calls: {reason(problem)}")
            else:
                yield Unreadable(f"{self.name} span {span.id}", reason(problem))
            return
        if feedback:
            yield Conversation(key=self._key(span), feedback=feedback)
        elif what == "call":
            yield Unreadable(f"{self.name} span {span.id}", "no answer in the span: its producer records no content")
        else:
            about = {"around": "around calls", "beside": "of tools and the like", "other": "in which no model speaks"}
            yield PassedOver(f"spans of the scope {span.scope or 'none'}, {about[what]}")

    def _call(self, span: Span) -> spans.Said:
        """The messages and tools of a span, after those of the response that it goes on from."""
        messages, tools = spans.call_in(span.fields, self.events[span.id])
        if messages and messages[-1]["role"] != "assistant":
            messages = []
        if messages and all(message["role"] in ("assistant", "system") for message in messages):
            raise ValueError("an answer without what was asked")
        if messages and (earlier := spans.previous(span.fields)):
            if earlier not in self.answers:
                raise ValueError("it goes on from an earlier response, which is not in the file")
            own = [message for message in messages if message["role"] != "system"]
            messages = [*(message for message in messages if message["role"] == "system"), *self.answers[earlier], *own]
        if messages:
            self.answers[spans.answer_id(span.fields)] = [each for each in messages if each["role"] != "system"]
        return with_names(messages), tools

    def _key(self, span: Span) -> str:
        about = self.shared[span.trace]
        return key_of(PRODUCER, next((str(about[name]) for name in SESSIONS if about.get(name)), span.trace))

    def _conversation(
        self, span: Span, messages: list[Message], tools: tuple[dict[str, Any], ...], feedback: tuple[Feedback, ...]
    ) -> Conversation:
        agreed = self.consents[span.trace] or consents_in(span.resource)
        return Conversation(
            key=self._key(span),
            started=span.start,
            ended=span.end,
            consent=bool(agreed) and all(agreed),
            messages=tuple(messages),
            tools=tools,
            feedback=feedback,
            responses={hashed(spans.answer_id(span.fields) or span.id): len(messages) - 1},
            metadata=plain({k: v for k, v in self.shared[span.trace].items() if k not in SESSIONS}),
        )

    def _feedback(self, span: Span, what: str) -> tuple[Feedback, ...]:
        """What people said of the span's answer; on a span that is no call, of the whole conversation."""
        answered = (spans.answer_id(span.fields) or span.id) if what == "call" else ""
        events: Sequence[Event] = self.events[span.id]
        return tuple(_evaluation(event, answered, self.scales) for event in events if event.name == EVALUATION)


def consents_in(fields: Mapping[str, Any]) -> list[bool]:
    """What the attributes of a span or resource say of consent, each."""
    statements = [spans.decoded_text(value) for name, value in fields.items() if f".{name}".endswith(".consent")]
    if (stated := mapping(decoded(fields.get("metadata"))).get("consent")) is not None:
        statements.append(stated)
    tags = [decoded(fields.get(name)) for name in TAGS]
    return [*map(consents, statements), *(True for tag in tags if isinstance(tag, list) and "consent" in tag)]


def metadata_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a user wrote beside a call."""
    about = mapping(decoded(fields.get("metadata")))
    made = {name: value for name, value in about.items() if not FRAMEWORK.match(name)}
    for name, value in fields.items():
        start = next((start for start in METADATA if name.startswith(start)), None)
        made |= {} if start is None else {name.removeprefix(start): spans.decoded_text(value)}
    return made


def _evaluation(event: Event, answered: str, scales: Scales | None) -> Feedback:
    fields = event.fields
    value, label = fields.get("gen_ai.evaluation.score.value"), fields.get("gen_ai.evaluation.score.label")
    name = str(fields.get("gen_ai.evaluation.name") or "score")
    score, name = score_of(label if value is None else value, name, scales, is_label=value is None)
    return Feedback(
        response=hashed(str(fields.get("gen_ai.response.id") or answered)),
        name=name,
        score=score,
        label=str(label or ""),
        comment=str(fields.get("gen_ai.evaluation.explanation") or ""),
        time=moment(fields.get("time")),
    )
