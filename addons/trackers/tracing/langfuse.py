"""Sends traces over OpenTelemetry's protocol, and rewards as scores, to Langfuse.

It is switched on by LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY. LANGFUSE_BASE_URL or LANGFUSE_HOST names the server
(default: Langfuse's own), LANGFUSE_TRACING_ENVIRONMENT the environment. Paths, headers and bodies are those of Langfuse's
SDK 5, which is not used itself because its flush takes 17 s where a host hangs. The ids of scores are hashes, so sending
them again changes nothing.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from addons.trackers.tracing.deliveries import LARGEST, Deliveries, Delivery, Post
from addons.trackers.tracing.spans import Trace, encoded, hashed

T = TypeVar("T")
CLOUD = "https://cloud.langfuse.com"
KEYS = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")
SCORES = 1_000_000 - 1000  # bytes of a body of scores: just below the server's limit


def host() -> str:
    """The address of the server that the environment variables name, or of Langfuse's own."""
    return (os.environ.get("LANGFUSE_BASE_URL") or os.environ.get("LANGFUSE_HOST") or CLOUD).rstrip("/")


def keys() -> list[str]:
    """The project's public and secret key, each empty where it is not set."""
    return [os.environ.get(name, "").strip() for name in KEYS]


def environment() -> str:
    """The name of Langfuse's environment."""
    return os.environ.get("LANGFUSE_TRACING_ENVIRONMENT") or "training"


class Langfuse:
    """A project of a Langfuse server."""

    def __init__(self, host: str, public_key: str, secret_key: str, log_message: Callable[[str], None]) -> None:
        self.host = host.rstrip("/")
        self.deliveries = Deliveries(f"Langfuse at {self.host}", log_message)
        token = base64.b64encode(f"{public_key}:{secret_key}".encode()).decode()
        self.headers = {
            "Authorization": f"Basic {token}",
            "x-langfuse-sdk-name": "agent-flywheel",
            "x-langfuse-public-key": public_key,
            "x-langfuse-ingestion-version": "4",
        }

    def send(self, traces: Sequence[Trace]) -> None:
        """Queue the traces and their scores; returns at once."""
        for part in parts(traces):
            headers = {**self.headers, "Content-Type": "application/x-protobuf"}
            body = encoded(part, "mlflow.").SerializeToString()
            post = Post(f"{self.host}/api/public/otel/v1/traces", body, headers)
            self.deliveries.send(Delivery([post], "traces", len(part)))
        headers = {**self.headers, "Content-Type": "application/json"}
        every = [score for trace in traces for score in bodies(trace)]
        for scores in grouped(every, lambda score: len(_bytes(score)) + 200, SCORES):  # in either form
            now = datetime.now(UTC).isoformat()
            events = [{"id": score["id"], "type": "score-create", "timestamp": now, "body": score} for score in scores]
            older = Post(f"{self.host}/api/public/ingestion", _bytes({"batch": events}), headers)
            post = Post(f"{self.host}/api/public/scores", _bytes(scores), headers, older)
            self.deliveries.send(Delivery([post], "scores", len(scores)))


def connect(log_message: Callable[[str], None]) -> Langfuse | None:
    """The project that the environment variables name; None where they are not set, or LANGFUSE_TRACING_ENABLED is false."""
    public, secret = keys()
    if not (public and secret) or os.environ.get("LANGFUSE_TRACING_ENABLED", "").lower() in ("false", "0"):
        return None
    return Langfuse(host(), public, secret, log_message)


def bodies(trace: Trace) -> list[dict[str, Any]]:
    """The scores of a trace, as POST /api/public/scores takes them."""
    when = datetime.fromtimestamp(trace.times[0] / 1e9, UTC).isoformat()
    space = str((trace.spans[0].attributes or {})["langfuse.environment"])
    return [
        {
            "id": hashed("score", trace.id, score.name),
            "traceId": trace.id,
            "name": score.name,
            "value": float(score.value),
            "dataType": "BOOLEAN" if isinstance(score.value, bool) else "NUMERIC",
            "comment": score.comment,
            "environment": space,
            "timestamp": when,
            "metadata": {"source": "LLM_JUDGE" if score.by_model else "CODE", "judge": score.source},
        }
        for score in trace.scores
    ]


def parts(traces: Sequence[Trace]) -> Iterator[list[Trace]]:
    """Whole traces in groups that are small enough for a request; a larger trace is a group by itself."""

    def size(trace: Trace) -> int:
        return sum(len(str(value)) for span in trace.spans for value in (span.attributes or {}).values())

    return grouped(traces, size, LARGEST)


def grouped(values: Sequence[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The values in order, in groups of at most `most` bytes; a larger value is a group by itself."""
    group: list[T] = []
    total = 0
    for value in values:
        total += (own := size(value))
        if group and total > most:
            yield group
            group, total = [], own
        group.append(value)
    if group:
        yield group


def _bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
