"""Writes traces, with scores as feedback, to MLflow's database, or to its server over OpenTelemetry's protocol.

A trace is linked to its iteration's run, and has tags (search: `tags.stop_reason = 'error'`, `feedback.reward > 1`). The
database is written with the conversion that MLflow's own server uses. Traces that are sent again replace the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from addons.trackers.tracing.deliveries import Deliveries, Delivery, Post
from addons.trackers.tracing.langfuse import parts
from addons.trackers.tracing.spans import Trace, encoded, hashed

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Assessment

LINKED = 100  # traces that MLflow links to a run in one call
POSTED = 20  # traces per request; the server needs about 10 ms for each


class Mlflow:
    """An experiment of a store. `deliveries` is None for a database, which is written directly."""

    def __init__(self, client: MlflowClient, uri: str, experiment: str, log_message: Callable[[str], None]) -> None:
        self.client, self.experiment = client, experiment
        self.server = uri.rstrip("/") if uri.startswith(("http://", "https://")) else None
        self.deliveries: Deliveries | None = None
        if self.server is not None:
            from steps.project.store import hidden

            self.deliveries = Deliveries(f"MLflow at {hidden(self.server)}", log_message)

    def send(self, traces: Sequence[Trace], run_id: str) -> None:
        """Write to the database, or queue for the server."""
        if self.deliveries is None:
            self._write(traces, run_id)
            return
        for part in parts(traces):
            for begin in range(0, len(part), POSTED):
                some = part[begin : begin + POSTED]
                self.deliveries.send(Delivery(self._posts(some, run_id), "traces", len(some)))

    def _write(self, traces: Sequence[Trace], run_id: str) -> None:
        from mlflow.entities import Span
        from mlflow.store.tracking.dbmodels.models import SqlAssessments, SqlTraceTag
        from mlflow.store.tracking.sqlalchemy_store import _bulk_upsert

        store: Any = self.client._tracing_client.store
        for begin in range(0, len(traces), LINKED):
            some = traces[begin : begin + LINKED]
            spans = [
                Span.from_otel_proto(span)  # without the resource, which would be a tag
                for group in encoded(some, "langfuse.").resource_spans
                for scope in group.scope_spans
                for span in scope.spans
            ]
            store.log_spans(self.experiment, spans)
            store.link_traces_to_run([trace_name(trace) for trace in some], run_id)
            tags = [
                {"request_id": trace_name(trace), "key": key, "value": text}
                for trace in some
                for key, text in trace.tags.items()
            ]
            rows = []
            columns = [column.name for column in SqlAssessments.__table__.columns if not column.computed]
            for trace in some:
                for feedback in feedbacks(trace):
                    row = SqlAssessments.from_mlflow_entity(feedback)
                    row.experiment_id, row.trace_timestamp_ms = int(self.experiment), feedback.create_time_ms
                    rows.append({name: getattr(row, name) for name in columns})
            with store.ManagedSessionMaker(read_only=False) as session:
                _bulk_upsert(session, SqlTraceTag, tags)  # one statement for all of them, not two for each
                _bulk_upsert(session, SqlAssessments, rows)

    def _posts(self, traces: Sequence[Trace], run_id: str) -> list[Post]:
        """One request for each trace, with its tags and feedback; then one for the spans of all."""
        from mlflow.entities import TraceInfo, TraceLocation, TraceState
        from mlflow.entities.trace import Trace as MlflowTrace
        from mlflow.entities.trace_data import TraceData
        from mlflow.protos.service_pb2 import StartTraceV3
        from mlflow.tracing.utils.otlp import build_otlp_headers
        from mlflow.utils.proto_json_utils import message_to_json

        headers = build_otlp_headers(self.experiment)
        posts = []
        for trace in traces:
            root, (began, ended) = trace.spans[0], trace.times
            info = TraceInfo(
                trace_id=trace_name(trace),
                trace_location=TraceLocation.from_experiment_id(self.experiment),
                request_time=began // 1_000_000,
                execution_duration=(ended - began) // 1_000_000,
                state=TraceState.OK if root.status.is_ok else TraceState.ERROR,
                tags={"mlflow.traceName": root.name, **trace.tags},
                assessments=feedbacks(trace),
            )
            body = message_to_json(StartTraceV3(trace=MlflowTrace(info=info, data=TraceData(spans=[])).to_proto()))
            url = f"{self.server}/api/3.0/mlflow/traces"
            posts.append(Post(url, body.encode(), {**headers, "Content-Type": "application/json"}))
        spans = encoded(traces, "langfuse.").SerializeToString()
        headers |= {"x-mlflow-run-id": run_id, "Content-Type": "application/x-protobuf"}
        return [*posts, Post(f"{self.server}/v1/traces", spans, headers)]


def trace_name(trace: Trace) -> str:
    """MLflow's id of a trace."""
    return f"tr-{trace.id}"


def feedbacks(trace: Trace) -> list[Assessment]:
    """The scores of a trace as MLflow's feedback. Ids are hashes."""
    from mlflow.entities import AssessmentSource, Feedback

    when = trace.times[0] // 1_000_000
    entities: list[Assessment] = []
    for score in trace.scores:
        source = AssessmentSource("LLM_JUDGE" if score.by_model else "CODE", score.source)
        feedback = Feedback(name=score.name, value=score.value, rationale=score.comment or None, source=source)
        feedback.trace_id = trace_name(trace)
        feedback.assessment_id = f"a-{hashed('feedback', trace.id, score.name)}"
        feedback.create_time_ms = feedback.last_update_time_ms = when
        entities.append(feedback)
    return entities
