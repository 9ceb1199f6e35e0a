"""Langfuse: traces over OpenTelemetry's protocol and rewards as scores, where LANGFUSE_PUBLIC_KEY and _SECRET_KEY are set.

LANGFUSE_BASE_URL or LANGFUSE_HOST names the server (Langfuse's own otherwise), LANGFUSE_TRACING_ENVIRONMENT the environment.
Paths, headers and bodies are those of Langfuse's SDK 5, which is not used itself: its flush takes 17 s where a host hangs.
Scores have ids that are hashes, so that sending again changes nothing.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from steps.tracing.deliveries import LARGEST, Deliveries, Parcel, Post
from steps.tracing.spans import Trace, hashed, without

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOUD = "https://cloud.langfuse.com"
SCORES = 1_000_000 - 1000  # bytes of a body of scores: the server's limit


def environment() -> str:
    return os.environ.get("LANGFUSE_TRACING_ENVIRONMENT") or "training"


class Langfuse:
    """A project of a Langfuse server."""

    def __init__(self, host: str, public_key: str, secret_key: str, tell: Callable[[str], None]) -> None:
        self.host = host.rstrip("/")
        self.deliveries = Deliveries(f"Langfuse at {self.host}", tell)
        token = base64.b64encode(f"{public_key}:{secret_key}".encode()).decode()
        self.headers = {
            "Authorization": f"Basic {token}",
            "x-langfuse-sdk-name": "agent-flywheel",
            "x-langfuse-public-key": public_key,
            "x-langfuse-ingestion-version": "4",
        }

    def send(self, traces: Sequence[Trace]) -> None:
        """Hand over; returns at once."""
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        for part in parts(traces):
            body = encode_spans(without([span for one in part for span in one.spans], "mlflow.")).SerializeToString()
            headers = {**self.headers, "Content-Type": "application/x-protobuf"}
            post = Post(f"{self.host}/api/public/otel/v1/traces", body, headers)
            self.deliveries.send(Parcel([post], "traces", len(part)))
        found = [score for one in traces for score in bodies(one)]
        headers = {**self.headers, "Content-Type": "application/json"}
        for some in batches(found):
            now = datetime.now(UTC).isoformat()
            events = [{"id": one["id"], "type": "score-create", "timestamp": now, "body": one} for one in some]
            older = Post(f"{self.host}/api/public/ingestion", _bytes({"batch": events}), headers)
            post = Post(f"{self.host}/api/public/scores", _bytes(some), headers, older)
            self.deliveries.send(Parcel([post], "scores", len(some)))


def connect(tell: Callable[[str], None]) -> Langfuse | None:
    """The project that the environment names; None where it names none, or LANGFUSE_TRACING_ENABLED is false."""
    public, secret = os.environ.get("LANGFUSE_PUBLIC_KEY"), os.environ.get("LANGFUSE_SECRET_KEY")
    if not (public and secret) or os.environ.get("LANGFUSE_TRACING_ENABLED", "").lower() in ("false", "0"):
        return None
    return Langfuse(
        os.environ.get("LANGFUSE_BASE_URL") or os.environ.get("LANGFUSE_HOST") or CLOUD, public, secret, tell
    )


def bodies(trace: Trace) -> list[dict[str, Any]]:
    """The scores of a trace, as POST /api/public/scores takes them."""
    root = trace.spans[0]
    assert root.start_time is not None
    when = datetime.fromtimestamp(root.start_time / 1e9, UTC).isoformat()
    space = str((root.attributes or {})["langfuse.environment"])
    return [
        {
            "id": hashed("score", trace.id, one.name),
            "traceId": trace.id,
            "name": one.name,
            "value": float(one.value),
            "dataType": "BOOLEAN" if isinstance(one.value, bool) else "NUMERIC",
            "comment": one.comment,
            "environment": space,
            "timestamp": when,
            "metadata": {"source": "LLM_JUDGE" if one.by_model else "CODE", "judge": one.source},
        }
        for one in trace.scores
    ]


def parts(traces: Sequence[Trace]) -> Iterator[list[Trace]]:
    """Whole traces, together small enough for a request; one may be longer by itself."""
    some: list[Trace] = []
    size = 0
    for one in traces:
        own = sum(len(str(value)) for span in one.spans for value in (span.attributes or {}).values())
        if some and size + own > LARGEST:
            yield some
            some, size = [], 0
        some.append(one)
        size += own
    if some:
        yield some


def batches(scores: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Scores, together small enough for a request in either form."""
    some: list[dict[str, Any]] = []
    size = 0
    for one in scores:
        own = len(_bytes(one)) + 200
        if some and size + own > SCORES:
            yield some
            some, size = [], 0
        some.append(one)
        size += own
    if some:
        yield some


def _bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
