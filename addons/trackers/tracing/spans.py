"""Makes OpenTelemetry spans whose ids are hashes, with the attributes that Langfuse and MLflow read.

Langfuse's attributes are those of its SDK 5 (langfuse._client.attributes), MLflow's those of mlflow.tracing.constant. Each
receiver is sent the spans without the other's attributes (`encoded`), by addons/trackers/tracing/langfuse.py and
addons/trackers/tracing/to_mlflow.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

NAME = "agent-flywheel"  # of the service, for OpenTelemetry
TYPES = {"agent": "AGENT", "span": "CHAIN", "generation": "CHAT_MODEL", "tool": "TOOL"}  # Langfuse's type -> MLflow's


class TraceScore(NamedTuple):
    """One score of a trace, and its source."""

    name: str
    value: float | bool
    comment: str
    by_model: bool  # given by a language model, not by code
    source: str  # the name of the judge


class Trace(NamedTuple):
    """A finished trace: its spans, the first of which is the root, and its scores."""

    id: str  # 32 hexadecimal digits
    times: tuple[int, int]  # of the root, Unix nanoseconds
    spans: list[ReadableSpan]
    scores: list[TraceScore]
    tags: dict[str, str]


class Recorder:
    """Makes the spans of one trace. Each gets the attributes that Langfuse wants on every span, to filter by; MLflow reads
    the session, too. The metadata are also the trace's tags."""

    def __init__(
        self, trace_id: str, name: str, session: str, environment: str, labels: Sequence[str], metadata: dict[str, str]
    ) -> None:
        self.resource, self.scope = Resource({"service.name": NAME}), InstrumentationScope(NAME)
        self.trace_id, self.tags, self.spans = int(trace_id, 16), metadata, list[ReadableSpan]()
        self.common = {
            "session.id": session,
            "langfuse.session.id": session,
            "langfuse.environment": environment,
            "langfuse.trace.name": name,
            "langfuse.trace.tags": tuple(labels),
            **{f"langfuse.trace.metadata.{key}": value for key, value in metadata.items()},
        }

    def span(
        self,
        path: str,  # of the span in its trace; its id is a hash of it, and it is its name where none is given
        kind: str,
        times: tuple[float, float],
        parent: ReadableSpan | None,  # None: the span is the root, and names the trace
        attributes: Mapping[str, Any],
        error: str | None = None,
        name: str | None = None,
    ) -> ReadableSpan:
        """A span with begin and end in Unix seconds. Attributes must be masked; those that are None are left out."""
        span_id = int.from_bytes(hashlib.sha256(f"{self.trace_id:x} {path}".encode()).digest()[:8]) or 1
        values = {"mlflow.spanType": TYPES[kind], "langfuse.observation.type": kind, **self.common, **attributes}
        nanoseconds = int(times[0] * 1e9), int(times[1] * 1e9)
        if parent is None:
            values["mlflow.traceTag.mlflow.traceName"] = path
        if error is not None:
            values |= {"langfuse.observation.level": "ERROR", "langfuse.observation.status_message": error}
        span = ReadableSpan(
            name or path,
            context=SpanContext(self.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)),
            parent=None if parent is None else parent.context,
            resource=self.resource,
            attributes={key: value for key, value in values.items() if value is not None},
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.OK) if error is None else Status(StatusCode.ERROR, error),
            start_time=nanoseconds[0],
            end_time=nanoseconds[1],
            instrumentation_scope=self.scope,
        )
        self.spans.append(span)
        return span

    def finish(self, scores: list[TraceScore]) -> Trace:
        """The whole trace. Its root was made first, so it is the first span."""
        times = self.spans[0].start_time, self.spans[0].end_time
        return Trace(f"{self.trace_id:032x}", times, self.spans, scores, self.tags)


def span_messages(question: str, answer: str | None) -> dict[str, Any]:
    """A span's input and output, as JSON texts, under both receivers' names."""
    return {
        "langfuse.observation.input": question,
        "langfuse.observation.output": answer,
        "mlflow.spanInputs": question,
        "mlflow.spanOutputs": answer,
    }


def encoded(traces: Sequence[Trace], prefix: str) -> ExportTraceServiceRequest:
    """Their spans without the other receiver's attributes, which begin with `prefix` and would repeat the messages."""
    spans = [
        ReadableSpan(
            span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes={key: value for key, value in (span.attributes or {}).items() if not key.startswith(prefix)},
            kind=span.kind,
            status=span.status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )
        for trace in traces
        for span in trace.spans
    ]
    return encode_spans(spans)


def hashed(*parts: str) -> str:
    """A hash of these texts: 32 hexadecimal digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
