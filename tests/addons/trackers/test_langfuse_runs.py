"""Analytics of a run that a stand-in for Langfuse's API holds as traces."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from addons.trackers import langfuse_runs
from addons.trackers.tracing import langfuse_pages
from steps.analytics import analysis
from steps.core.errors import UserError
from steps.core.records import Reward
from tests.analytics.test_analytics import SCENARIOS, command, played, run

__all__ = ["run"]  # a fixture


class StandIn:
    """A stand-in for Langfuse's public API: lists in pages, with basic authentication, as its reference has them."""

    def __init__(self, run: Path) -> None:
        self.traces: list[dict[str, Any]] = []
        self.observations: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.busy = 0  # how many answers more are 503
        for iteration in ("001", "002"):
            self.add(iteration, "latest", 2000.0)
        self.add("002", "earlier", 1000.0)
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = stand_in.answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def add(self, iteration: str, run: str, at: float) -> None:
        """The traces of an iteration, as addons/trackers/tracing/episodes.py makes them and a server keeps them."""
        from addons.trackers.tracing import episodes
        from steps.core.masking import Masker

        about = episodes.About(run, "toy", "model", iteration, "train", 1.0, 64, "training", at)
        scenarios = {scenario.id: scenario for scenario in SCENARIOS}
        mask = Masker()
        for number, (trajectory, score, success) in enumerate(played(iteration)):
            reward = Reward(
                trajectory_id=trajectory.id,
                scenario_id=trajectory.scenario_id,
                name="rule",
                score=score,
                success=success,
            )
            times = [(at, at + 0.5, at + 0.6), (at + 0.6, at + 2.6, at + 2.7)]
            first = iteration == "001" and number == 0
            trace = episodes.episode(
                mask, about, scenarios[trajectory.scenario_id], trajectory, reward, times if first else None
            )
            self.observations += [observation(span) for span in trace.spans]
            root = trace.spans[0]
            attributes = dict(root.attributes or {})
            stored = {
                name.removeprefix("langfuse.trace.metadata."): value
                for name, value in attributes.items()
                if ".trace.metadata." in name
            }
            self.traces.append(
                {
                    "id": trace.id,
                    "name": attributes["langfuse.trace.name"],
                    "sessionId": attributes["langfuse.session.id"],
                    "timestamp": moment(root.start_time),
                    "metadata": stored,
                    "output": None,
                }
            )

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if authorization != f"Basic {b64encode(b'pk-lf-1:sk-lf-2').decode()}":
            return 401, b'{"message": "Invalid credentials"}'
        if self.busy:
            self.busy -= 1
            return 503, b"<html>busy</html>"
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        rows = {"/api/public/traces": self.traces, "/api/public/observations": self.observations}[parts.path]
        rows = [row for row in rows if row["name"] == query.get("name", row["name"])]
        number, limit = int(query["page"]), min(100, int(query["limit"]))
        meta = {"page": number, "limit": limit, "totalItems": len(rows), "totalPages": -(-len(rows) // limit)}
        return 200, json.dumps({"data": rows[(number - 1) * limit : number * limit], "meta": meta}).encode()


def observation(span: Any) -> dict[str, Any]:
    attributes = dict(span.attributes or {})
    read = {
        name: json.loads(text) if (text := attributes.get(f"langfuse.observation.{name}")) else None
        for name in ("input", "output", "usage_details")
    }
    return {
        "id": f"{span.context.span_id:016x}",
        "traceId": f"{span.context.trace_id:032x}",
        "parentObservationId": f"{span.parent.span_id:016x}" if span.parent else None,
        "type": attributes["langfuse.observation.type"].upper(),
        "name": span.name,
        "startTime": moment(span.start_time),
        "endTime": moment(span.end_time),
        "input": read["input"],
        "output": read["output"],
        "usageDetails": read["usage_details"] or {},
        "metadata": {
            name.rpartition(".")[2]: value for name, value in attributes.items() if ".observation.metadata." in name
        },
    }


def moment(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture
def langfuse(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn(run)
    monkeypatch.delenv("LANGFUSE_BASE_URL", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("LANGFUSE_HOST", f"{stand_in.host}/")
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-lf-2")
    monkeypatch.setattr(langfuse_runs, "PAGE", 4)
    monkeypatch.setattr(langfuse_pages.time, "sleep", lambda _: None)
    yield stand_in
    stand_in.server.shutdown()
    stand_in.server.server_close()


def test_langfuse_says_what_the_files_say(run: Path, langfuse: StandIn) -> None:
    files, traces = analysis.analyse(run), langfuse_runs.analyse("iteration")
    assert (traces.lines, traces.total, traces.patterns) == (files.lines, files.total, files.patterns)
    assert traces.source == langfuse.host
    assert traces.notes == ("run latest; 1 others are there (--run KEY)", analysis.INDEPENDENT)
    pages = [path for path in langfuse.asked if "observations" in path]
    assert len(pages) == -(-len(langfuse.observations) // 4) > 3


def test_another_run(langfuse: StandIn) -> None:
    result = langfuse_runs.analyse("iteration,split", run="earlier")
    assert [(line.group, line.n) for line in result.lines] == [(("002", "train"), 2)]
    with pytest.raises(UserError, match=r"has no traces of other; the latest run is latest"):
        langfuse_runs.analyse("iteration", run="other")


def test_content_may_come_as_text(run: Path, langfuse: StandIn) -> None:
    for observed in langfuse.observations:
        for name in ("input", "output"):
            if observed[name] is not None and not (observed["type"] == "TOOL" and isinstance(observed[name], str)):
                observed[name] = json.dumps(observed[name])
    assert langfuse_runs.analyse("iteration").lines == analysis.analyse(run).lines


def test_a_busy_server_is_asked_again(langfuse: StandIn) -> None:
    langfuse.busy = 2
    assert langfuse_runs.analyse("iteration").total.n == 6
    langfuse.busy = 3
    with pytest.raises(UserError, match=r"answers /api/public/traces with 503 and no page: see LANGFUSE_HOST"):
        langfuse_runs.analyse("iteration")


def test_what_stands_in_the_way_is_one_sentence(langfuse: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    langfuse.traces.clear()
    with pytest.raises(UserError, match="has no traces of episodes"):
        langfuse_runs.analyse("iteration")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-lf-wrong")
    with pytest.raises(UserError, match=r"refuses the keys \(401\)") as caught:
        langfuse_runs.analyse("iteration")
    assert "sk-lf" not in str(caught.value)
    monkeypatch.setenv("LANGFUSE_HOST", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cannot be reached"):
        langfuse_runs.analyse("iteration")
    monkeypatch.delenv("LANGFUSE_PUBLIC_KEY")
    with pytest.raises(UserError, match="needs LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"):
        langfuse_runs.analyse("iteration")


def test_by_hand_from_langfuse(langfuse: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, "--langfuse", "--by", "iteration")
    assert (code, err) == (0, "")
    assert "note: run latest" in out
    assert "001" in out
