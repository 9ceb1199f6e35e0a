"""Conversations in MLflow's traces: from a store by `search_traces`, or from files with the JSON of `Trace.to_json`.

Calls are the spans of the types CHAT_MODEL and LLM; a trace without any is its root span. A conversation is that of the
session (`mlflow.trace.session`), else the trace. Feedback are the assessments of people, and those of code or of a model
only if their name is given a scale; expectations named expected_response or correction are corrections. Consent is the
tag or metadata `consent`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from addons.production.traces.messages import call_of, left_out, tools_of
from addons.production.traces.opinions import Scales, consents, correction_of, moment, place_in_time, score_of
from addons.production.traces.records import (
    FAULTS,
    Conversation,
    Feedback,
    Part,
    PassedOver,
    Unreadable,
    hashed,
    key_of,
    plain,
    reason,
)
from steps.core.errors import UserError
from steps.core.message_parts import decoded, first_of
from steps.project.store import address, connect, explained, pages

PRODUCER = "mlflow"
CALLS = ("CHAT_MODEL", "LLM")
CORRECTIONS = ("expected_response", "correction")
PAGE = 200  # traces


def fetch(root: Path, experiment: str, since: str) -> Iterator[dict[str, Any]]:
    """The traces of an experiment, as dicts, that began at `since` or later, oldest first."""
    client = connect(root)
    with explained(address(root)):
        existing = client.get_experiment_by_name(experiment)
        if existing is None:
            where = address(root).partition("://")[0]
            raise UserError(f"mlflow:{experiment}: {where} has no experiment of this name, and there is no such file")
        after = int(1000 * datetime.fromisoformat(since).timestamp()) if since else 0
        traces = pages(
            client.search_traces,
            locations=[existing.experiment_id],
            filter_string=f"trace.timestamp_ms >= {after}",
            order_by=["timestamp_ms ASC"],
            max_results=PAGE,
        )
        yield from (json.loads(trace.to_json()) for trace in traces)


def read(rows: Iterable[Any], name: str, scales: Scales | None = None) -> Iterator[Part]:
    """The conversations in traces: dicts, or their JSON."""
    for number, row in enumerate(rows, 1):
        place = f"{name}:{number}"
        if isinstance(row, Unreadable):
            yield row
            continue
        try:
            trace = json.loads(row) if isinstance(row, str) else row
            if not isinstance(trace, Mapping) or not {"info", "data"} <= trace.keys():
                named = ", ".join(sorted(map(str, trace))[:6]) if isinstance(trace, Mapping) else type(trace).__name__
                raise ValueError(f"no trace of MLflow, with info and data, but {named}")
            place = f"{name} {trace['info'].get('trace_id') or trace['info'].get('request_id')}"
            yield from _trace(trace, place, scales)
        except FAULTS as problem:
            yield Unreadable(place, reason(problem))


def _trace(trace: Mapping[str, Any], place: str, scales: Scales | None) -> Iterator[Part]:
    info, spans = trace["info"], sorted(trace["data"]["spans"], key=lambda span: place_in_time(_time(span, "start")))
    metadata = (info.get("trace_metadata") or info.get("request_metadata") or {}) | (info.get("tags") or {})
    own = {key: value for key, value in metadata.items() if not key.startswith("mlflow.")}
    trace_id = str(info.get("trace_id") or info.get("request_id"))
    key = key_of(PRODUCER, str(metadata.get("mlflow.trace.session") or trace_id))
    calls = [span for span in spans if _field(span, "mlflow.spanType") in CALLS]
    chosen = calls or [span for span in spans if not span.get("parent_span_id") and not span.get("parent_id")]
    answers = [hashed(f"{trace_id} {span.get('span_id')}") for span in chosen]
    ran_tools = any(_field(span, "mlflow.spanType") == "TOOL" for span in spans)
    for span in spans:
        if not any(span is each for each in chosen):
            kind = _field(span, "mlflow.spanType")
            yield PassedOver(f"spans of the type {kind}, which are no calls of a model")
    for answer, span in zip(answers, chosen, strict=True):
        try:
            inputs, outputs = _field(span, "mlflow.spanInputs"), _field(span, "mlflow.spanOutputs")
            messages, tools = call_of(inputs, outputs, packed=True)
            if not messages or messages[-1]["role"] != "assistant":
                raise ValueError("no answer in the span")
            if not calls and ran_tools and all(message["role"] != "tool" for message in messages):
                raise ValueError("tools ran in it, and the calls of the model that used them are not in the trace")
            tools = tools or tools_of(_field(span, "mlflow.chat.tools"))
        except FAULTS as problem:
            yield Unreadable(f"{place} span {span.get('span_id')}", reason(problem))
            continue
        yield Conversation(
            key=key,
            started=moment(_time(span, "start")),
            ended=moment(_time(span, "end")),
            consent=consents(own.get("consent", own.get("flywheel.consent"))),
            messages=tuple(messages),
            tools=tools,
            responses={answer: len(messages) - 1},
            metadata=plain(own),
        )
        yield from left_out(inputs, inputs, outputs)
    for assessment in info.get("assessments") or ():
        try:
            feedback = _assessment(assessment, trace_id, answers[-1] if answers else "", scales)
            if feedback is None:
                yield PassedOver(f"assessments {assessment.get('assessment_name')}, which are none of people now")
            else:
                yield Conversation(key=key, feedback=(feedback,))
        except FAULTS as problem:
            yield Unreadable(f"{place} assessment {assessment.get('assessment_name')}", reason(problem))


def _assessment(assessment: Mapping[str, Any], trace_id: str, last: str, scales: Scales | None) -> Feedback | None:
    """Feedback, or a correction; None for assessments that were replaced, or are none of people."""
    name = str(assessment.get("assessment_name") or assessment.get("name") or "")
    source = (assessment.get("source") or {}).get("source_type")
    if assessment.get("valid") is False or (source != "HUMAN" and name not in (scales or {})):
        return None
    where = hashed(f"{trace_id} {assessment['span_id']}") if assessment.get("span_id") else last
    time = moment(assessment.get("create_time") or assessment.get("create_time_ms"))
    comment = str(assessment.get("rationale") or "")
    if expectation := assessment.get("expectation"):
        if name not in CORRECTIONS:
            return None
        return Feedback(response=where, correction=correction_of(_value(expectation)), comment=comment, time=time)
    value = (assessment.get("feedback") or {}).get("value")
    score, name = score_of(value, name, scales, is_label=True)
    label = value if isinstance(value, str) else ""
    return Feedback(response=where, name=name, score=score, label=label, comment=comment, time=time)


def _value(expectation: Mapping[str, Any]) -> Any:
    serialized = expectation.get("serialized_value")
    return expectation.get("value") if serialized is None else decoded(serialized.get("value"))


def _time(span: Mapping[str, Any], what: str) -> Any:
    """The start or end of a span, as each release of MLflow names it."""
    return first_of(span, f"{what}_time_unix_nano", f"{what}_time_ns", f"{what}_time")


def _field(span: Mapping[str, Any], name: str) -> Any:
    """An attribute of a span, which MLflow writes as JSON text."""
    value = (span.get("attributes") or {}).get(name)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
