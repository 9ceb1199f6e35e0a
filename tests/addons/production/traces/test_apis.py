"""Langfuse's and MLflow's APIs: pages, watermarks, feedback that comes later; a fake server for the one, MLflow itself
for the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import environments
from addons.production.traces import files
from addons.production.traces.build import Task
from addons.production.traces.sources import Source, ingest
from steps.core.errors import UserError
from steps.core.params import Scenarios
from tests.support.openai_server import QuietServer

PAGE = 2


class FakeLangfuse:
    """A fake of Langfuse's API: observations and scores from a time on, two on a page."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {"observations": [], "scores": []}
        self.queries: list[tuple[str, dict[str, str]]] = []
        self.failures = 0
        langfuse = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                status, body = langfuse.answer(url.path, query, self.headers.get("Authorization", ""))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *_: object) -> None:
                pass

        self.http = QuietServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def answer(self, path: str, query: dict[str, str], key: str) -> tuple[int, Any]:
        self.queries.append((path, query))
        if key != "Basic cGs6c2s=":
            return 401, {}
        if self.failures:
            self.failures -= 1
            return 503, {}
        is_score = path == "/api/public/v3/scores"
        rows = self.rows["scores" if is_score else "observations"]
        since = query.get("fromTimestamp" if is_score else "fromStartTime", "")
        rows = [row for row in rows if row["timestamp" if is_score else "startTime"] >= since]
        rows = [row for row in rows if query.get("traceId") in (None, row.get("traceId"))]
        start = int(query.get("cursor", 0))
        more = {"cursor": str(start + PAGE)} if start + PAGE < len(rows) else {}
        return 200, {"data": rows[start : start + PAGE], "meta": {"limit": PAGE, **more}}

    def observe(self, number: int, day: int, **fields: Any) -> None:
        row: dict[str, Any] = {
            "id": f"o{number}",
            "traceId": f"t{number}",
            "sessionId": f"s{number}",
            "type": "GENERATION",
            "projectId": "p",
        }
        row |= {
            "startTime": f"2026-11-{day:02d}T00:00:00.000Z",
            "input": [{"role": "user", "content": f"Question {number}"}],
        }
        self.rows["observations"].append(row | {"output": f"Answer {number}", "metadata": {"consent": True}} | fields)

    def score(self, number: int, day: int, value: Any, **fields: Any) -> None:
        row: dict[str, Any] = {
            "id": f"c{number}",
            "name": "thumb",
            "dataType": "NUMERIC",
            "value": value,
            "source": "API",
        }
        row |= {"timestamp": f"2026-11-{day:02d}T00:00:00.000Z", "subject": {"kind": "trace", "id": f"t{number}"}}
        self.rows["scores"].append(row | fields)


@pytest.fixture
def langfuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLangfuse]:
    server = FakeLangfuse()
    monkeypatch.setenv("LANGFUSE_HOST", server.url)
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk")
    yield server
    server.http.shutdown()


@pytest.fixture(scope="module")
def task() -> Task:
    env = environments.load("email_search")
    return Task(env, "email_search", env.load(Path("tasks_data/email_search")), [], [], Scenarios())


def test_langfuse_is_read_from_its_watermark(langfuse: FakeLangfuse, task: Task, tmp_path: Path) -> None:
    for number in range(5):
        langfuse.observe(number, 1 + number)
    langfuse.observe(9, 5, type="SPAN")
    langfuse.score(0, 6, 1)
    langfuse.score(1, 6, 1, source="EVAL")  # of a judge that is a model
    langfuse.score(2, 6, 0, dataType="BOOLEAN")
    langfuse.score(2, 6, "Better", dataType="CORRECTION")
    source = [Source.parse("langfuse", "email_search")]
    first = ingest(tmp_path, tmp_path / "out", source, task, {}, False, 0.3)
    assert (first.conversations, len(first.sets.demonstrations), len(first.sets.preferences)) == (5, 1, 1)
    state = json.loads((tmp_path / "out/state.json").read_text())
    assert list(state["apis"].values()) == ["2026-11-06T00:00:00.000000Z"]
    langfuse.queries.clear()
    langfuse.observe(6, 8)
    langfuse.score(1, 9, 1)  # on an answer of the second day, which is before the watermark
    second = ingest(tmp_path, tmp_path / "out", source, task, {}, False, None)
    assert (second.conversations, second.added) == (6, 2)
    assert len(second.sets.demonstrations) == 2
    since = {
        query.get("fromStartTime", query.get("fromTimestamp", ""))
        for _, query in langfuse.queries
        if "traceId" not in query
    }
    assert since == {"2026-11-05T23:00:00.000000Z"}
    third = ingest(tmp_path, tmp_path / "out", source, task, {}, False, None)
    assert third.added == 0


def test_langfuse_scales_and_consent(langfuse: FakeLangfuse, task: Task, tmp_path: Path) -> None:
    langfuse.observe(1, 1, metadata={})
    langfuse.observe(2, 1)
    langfuse.score(2, 2, 4, name="stars")
    source = [Source.parse("langfuse", "email_search")]
    done = ingest(tmp_path, tmp_path / "out", source, task, {}, False, 0.3)
    reasons = [row["reason"] for row in files.read_rows(tmp_path / "out/quarantine.jsonl")]
    assert done.conversations == 1
    assert sum("no consent" in reason for reason in reasons) == 1
    assert sum("--scale stars=LOW..HIGH" in reason for reason in reasons) == 1
    assert "Question 1" not in (tmp_path / "out/conversations.jsonl").read_text()
    scaled = ingest(tmp_path, tmp_path / "out", source, task, {"stars": (1, 5)}, True, None)
    assert (scaled.conversations, len(scaled.sets.demonstrations)) == (2, 1)
    assert not any("consent" in row["reason"] for row in files.read_rows(tmp_path / "out/quarantine.jsonl"))


def test_langfuse_that_does_not_answer(
    langfuse: FakeLangfuse, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = [Source.parse("langfuse", "email_search")]
    langfuse.observe(1, 1)
    langfuse.failures = 2
    assert ingest(tmp_path, tmp_path / "out", source, task, {}, False, 0.3).conversations == 1
    langfuse.failures = 99
    with pytest.raises(UserError, match="answers /api/public/v2/observations with 503"):
        ingest(tmp_path, tmp_path / "out", source, task, {}, False, 0.3)
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "wrong")
    with pytest.raises(UserError, match="refuses the keys"):
        ingest(tmp_path, tmp_path / "out", source, task, {}, False, 0.3)
    monkeypatch.delenv("LANGFUSE_SECRET_KEY")
    with pytest.raises(UserError, match="needs LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"):
        ingest(tmp_path, tmp_path / "out", source, task, {}, False, 0.3)


def test_mlflow_is_read_from_its_watermark(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    from steps.project.store import connect

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    connect(tmp_path)  # makes the project's own store
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/.flywheel/mlflow.db")
    try:
        mlflow.create_experiment("chats", (tmp_path / "artifacts").as_uri())
        mlflow.set_experiment("chats")
        ids = [traced(number) for number in range(3)]
        source = [Source.parse("mlflow:chats", "email_search")]
        first = ingest(tmp_path, tmp_path / "out", source, task, {}, False, 0.3)
        assert (first.conversations, first.sets.demonstrations) == (3, [])
        person = mlflow.entities.AssessmentSource(source_type="HUMAN", source_id="a")
        judge = mlflow.entities.AssessmentSource(source_type="LLM_JUDGE", source_id="b")
        mlflow.log_feedback(trace_id=ids[0], name="good", value=True, source=person)
        mlflow.log_feedback(trace_id=ids[1], name="good", value=True, source=judge)
        mlflow.log_expectation(trace_id=ids[2], name="expected_response", value="Better", source=person)
        traced(3)
        second = ingest(tmp_path, tmp_path / "out", source, task, {}, False, None)
        assert (second.conversations, second.added) == (4, 3)
        assert (len(second.sets.demonstrations), len(second.sets.preferences)) == (1, 1)
        with pytest.raises(UserError, match="has no experiment of this name"):
            ingest(tmp_path, tmp_path / "out", [Source.parse("mlflow:none", "x")], task, {}, False, None)
    finally:
        mlflow.set_tracking_uri(None)  # a later test would write to a store that is gone


def traced(number: int) -> str:
    """The id of a trace of one call."""
    import mlflow

    with mlflow.start_span("call", span_type="CHAT_MODEL") as span:
        mlflow.update_current_trace(tags={"consent": "yes"})
        span.set_inputs({"messages": [{"role": "user", "content": f"Question {number}"}]})
        span.set_outputs({"choices": [{"message": {"role": "assistant", "content": f"Answer {number}"}}]})
    mlflow.flush_trace_async_logging()
    return str(span.trace_id)
