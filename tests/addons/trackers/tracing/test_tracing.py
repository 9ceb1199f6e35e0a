"""Traces of stored trajectories: their spans, and what receivers of them get, or do not get because they are away."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addons.models import players
from addons.trackers.tracing import deliveries, files, langfuse
from addons.trackers.tracing import sender as tracing
from addons.trackers.tracing.episodes import About, episode, scores
from addons.trackers.tracing.spans import Trace
from addons.trackers.tracing.to_mlflow import Mlflow, feedbacks
from environments.base import Scenario
from environments.kit import http_client
from steps.core.errors import UserError
from steps.core.masking import MASK, Masker
from steps.core.params import Params, Policy, Rollout
from steps.core.records import Judgement, Order, Reward, Trajectory, Turn, write_records
from steps.policy.chat import Prompt
from steps.project import store as register
from steps.runner import stage
from tests import conftest
from tests.conftest import MlflowServer

ABOUT = About("run0", "toy", "some/model", "001", "train", 1.0, 64, "training", 1_700_000_000.0)
KEY = "sk-" + "Zx9Kq2Lm8Np4Rt6Vw1Yb3Cd5"


def scenario(number: int = 0) -> Scenario:
    messages = [{"role": "system", "content": "Look it up."}, {"role": "user", "content": f"What is {number}? {KEY}"}]
    return Scenario.make("toy", "train", messages, {"answer": str(number)})


def call(name: str, arguments: dict[str, Any], text: str = "") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def trajectory(of: Scenario, attempt: int = 0, **more: Any) -> Trajectory:
    """Two turns: a look-up, and the answer."""
    heard = {"role": "tool", "name": "look", "content": "it is 7, password=letmein"}
    first = Turn(
        prompt_ids=(1, 2, 3),
        completion_ids=(4, 5),
        logprobs=(-0.5, -1.5),
        message=call("look", {"what": "it", "api_key": "k-1"}, "<think>hm, where?</think>"),
        observations=(heard,),
        finish_reason="stop",
    )
    last = Turn(
        prompt_ids=(1, 2, 3, 4, 5, 6),
        completion_ids=(7,),
        logprobs=(-0.25,),
        message=call("answer", {"text": "7"}),
        observations=({"role": "tool", "name": "answer", "content": "Error: too late"},),
        finish_reason="stop",
    )
    given: dict[str, Any] = {"turns": (first, last), "stop_reason": "done", "adapter_hash": "a" * 16} | more
    return Trajectory(id=f"001-{of.id}-{attempt}", scenario_id=of.id, attempt=attempt, **given)


def reward(of: Trajectory, score: float | None = 0.5, **more: Any) -> Reward:
    given: dict[str, Any] = {"name": "rule", "success": True, "components": {"found": 0.75, "turn": -0.25}} | more
    given.setdefault("explanation", "found: 1 × 0.75: the right one; turn: 1 × -0.25: time")
    return Reward(trajectory_id=of.id, scenario_id=of.scenario_id, score=score, **given)


def traced(count: int = 1, attempt: int = 0, **more: Any) -> list[Trace]:
    mask, traces = Masker(), []
    for number in range(count):
        of = scenario(number)
        played = trajectory(of, attempt, **more)
        traces.append(episode(mask, ABOUT, of, played, reward(played), None))
    return traces


def by_name(trace: Trace) -> dict[str, Any]:
    return {
        span.name if span.name != "generation" else f"generation {place}": span
        for place, span in enumerate(trace.spans)
    }


# --- Spans


def test_the_tree_of_an_episode() -> None:
    [trace] = traced()
    names = {span.context.span_id: span.name for span in trace.spans}
    tree = [(span.name, names.get(span.parent.span_id) if span.parent else None) for span in trace.spans]
    assert tree == [
        ("episode", None),
        ("turn 1", "episode"),
        ("generation", "turn 1"),
        ("look", "turn 1"),
        ("turn 2", "episode"),
        ("generation", "turn 2"),
        ("answer", "turn 2"),
    ]
    assert {f"{span.context.trace_id:032x}" for span in trace.spans} == {trace.id}
    kinds = [(span.attributes["langfuse.observation.type"], span.attributes["mlflow.spanType"]) for span in trace.spans]
    per_turn = [("span", "CHAIN"), ("generation", "CHAT_MODEL"), ("tool", "TOOL")]
    assert kinds == [("agent", "AGENT"), *per_turn, *per_turn]


def test_what_spans_say() -> None:
    [trace] = traced()
    spans = by_name(trace)
    root = spans["episode"].attributes
    assert json.loads(root["langfuse.observation.input"]) == {
        "task": "toy",
        "messages": [{"role": "system", "content": "Look it up."}, {"role": "user", "content": f"What is 0? {MASK}"}],
    }
    assert json.loads(root["langfuse.observation.output"]) == {
        "result": {"name": "answer", "arguments": {"text": "7"}},
        "reward": 0.5,
        "success": True,
        "stop_reason": "done",
    }
    first = spans["generation 2"].attributes
    assert [message["role"] for message in json.loads(first["langfuse.observation.input"])] == ["system", "user"]
    assert json.loads(first["langfuse.observation.usage_details"]) == {"input": 3, "output": 2, "total": 5}
    assert json.loads(first["langfuse.observation.model.parameters"]) == {"temperature": 1.0, "max_tokens": 64}
    assert first["langfuse.observation.model.name"] == "some/model"
    assert first["langfuse.observation.metadata.mean_logprob"] == -1.0
    assert first["langfuse.observation.metadata.reasoning"] == "hm, where?"
    second = spans["generation 5"].attributes
    prompt = json.loads(second["langfuse.observation.input"])
    assert [message["role"] for message in prompt] == ["system", "user", "assistant", "tool"]
    assert prompt[3]["tool_call_id"] == prompt[2]["tool_calls"][0]["id"]
    new = json.loads(spans["turn 2"].attributes["langfuse.observation.input"])
    assert new == prompt[3:], "what is new to the policy"
    tool = spans["look"]
    assert json.loads(tool.attributes["langfuse.observation.input"]) == {"what": "it", "api_key": MASK}
    assert json.loads(tool.attributes["langfuse.observation.output"]) == f"it is 7, password={MASK}"
    assert tool.status.is_ok
    assert not spans["answer"].status.is_ok
    assert spans["answer"].attributes["langfuse.observation.level"] == "ERROR"
    for span in trace.spans:
        assert span.attributes["session.id"] == "run0"
        assert span.attributes["langfuse.trace.tags"] == ("toy", "train", "iteration 001")
        assert span.attributes["langfuse.trace.metadata.attempt"] == "0"
        assert not {"k-1", "letmein", KEY} & set(json.dumps(dict(span.attributes)).split('"'))
        assert KEY not in json.dumps(dict(span.attributes))
    expected = {"task", "base_model", "adapter", "run", "iteration", "split", "scenario", "attempt", "trajectory"}
    assert trace.tags.keys() == expected | {"stop_reason", "times"}


def test_ids_are_hashes() -> None:
    def ids() -> list[list[tuple[int, int]]]:
        return [[(span.context.trace_id, span.context.span_id) for span in trace.spans] for trace in traced(3)]

    first = ids()
    assert first == ids()
    assert len({trace for spans in first for trace, _ in spans}) == 3
    assert len({span for spans in first for _, span in spans}) == 21
    assert traced(1)[0].id != traced(1, attempt=1)[0].id != traced(1, adapter_hash="b" * 16)[0].id


def test_attributes_are_those_that_the_tools_document() -> None:
    from langfuse._client.attributes import LangfuseOtelSpanAttributes as Langfuse
    from mlflow.entities import SpanType
    from mlflow.tracing.constant import SpanAttributeKey as Key

    used = {name for span in traced()[0].spans for name in span.attributes or {}}
    documented = {str(value) for name, value in vars(Langfuse).items() if name.isupper()} | {"langfuse.session.id"}
    prefixes = (f"{Langfuse.TRACE_METADATA}.", f"{Langfuse.OBSERVATION_METADATA}.")
    mine = {name for name in used if name.startswith("langfuse.") and not name.startswith(prefixes)}
    assert mine <= documented
    assert mine >= {
        Langfuse.OBSERVATION_TYPE,
        Langfuse.OBSERVATION_USAGE_DETAILS,
        Langfuse.OBSERVATION_MODEL_PARAMETERS,
    }
    theirs = {str(value) for name, value in vars(Key).items() if name.isupper()}
    mlflows = {name for name in used if name.startswith("mlflow.") and not name.startswith(Key.TRACE_TAG_PREFIX)}
    assert mlflows <= theirs
    assert mlflows >= {Key.INPUTS, Key.OUTPUTS, Key.SPAN_TYPE, Key.CHAT_USAGE, Key.MODEL}
    assert {"AGENT", "CHAIN", "CHAT_MODEL", "TOOL"} <= {str(value) for value in vars(SpanType).values()}


def test_times_are_recorded_or_not_but_never_invented() -> None:
    of = scenario()
    played = trajectory(of)
    times = [(100.0, 100.25, 100.5), (100.5, 101.0, 101.25)]
    trace = episode(Masker(), ABOUT, of, played, None, times)
    lengths = {span.name: (span.start_time / 1e9, span.end_time / 1e9) for span in trace.spans[:4]}
    expected = {"episode": (100, 101.25), "turn 1": (100, 100.5), "generation": (100, 100.25), "look": (100.25, 100.5)}
    assert lengths == expected
    assert trace.spans[2].attributes["langfuse.observation.metadata.latency_seconds"] == 0.25
    assert trace.tags["times"] == "recorded"
    [unknown] = traced()
    assert {(span.start_time, span.end_time) for span in unknown.spans} == {(1_700_000_000 * 10**9,) * 2}
    assert unknown.tags["times"] == "not recorded"
    assert "latency_seconds" not in unknown.spans[2].attributes


def test_failures_and_what_is_not_scored() -> None:
    of = scenario()
    failed = trajectory(of, stop_reason="error", error=f"OSError: token {KEY}", turns=())
    trace = episode(Masker(), ABOUT, of, failed, reward(failed, None, success=False, components={}), None)
    assert [span.name for span in trace.spans] == ["episode"]
    assert not trace.spans[0].status.is_ok
    assert trace.tags["error"] == f"OSError: token {MASK}"
    assert "unscored" in trace.tags
    assert [(score.name, score.value) for score in trace.scores] == [("success", False)]


def test_scores() -> None:
    played = trajectory(scenario())
    by_rule = {(of.name, of.value, of.by_model, of.comment) for of in scores(reward(played), Masker())}
    assert by_rule >= {
        ("reward/found", 0.75, False, "1 × 0.75: the right one"),
        ("success", True, False, "by the environment's rule"),
    }
    mixed = reward(played, 0.9, name="rule+ruler", rule=0.5, components={"rule/found": 0.1, "ruler/ruler": 0.8})
    by_model = {of.name: of.by_model for of in scores(mixed, Masker())}
    expected = {"success": False, "reward": True, "rule": False, "reward/rule/found": False, "reward/ruler/ruler": True}
    assert by_model == expected


def judgement(of: Trajectory, score: float | None = 0.75, problem: str = "") -> Judgement:
    """Two orders of three attempts; it stands first, then last, and is scored 0.8 and 0.7."""
    others = ("x", "y")
    orders = (
        Order(attempts=(of.id, *others), scores=(0.8, 0.1, None), calls=("a",)),
        Order(attempts=(*others[::-1], of.id), scores=(None, 0.1, 0.7), calls=("b",)),
    )
    fields: dict[str, Any] = {"scenario_id": of.scenario_id, "judge": "cafe", "orders": orders, "problem": problem}
    return Judgement(scores={of.id: score, "y": None}, reasons={of.id: f"It looked first. {KEY}"}, **fields)


def test_what_a_judge_said_is_a_score_of_its_own() -> None:
    """Beside the rule's, before any weight, whatever it counts in the reward."""
    of = scenario()
    played = trajectory(of)
    ruled = reward(played, 0.5, name="rule")
    trace = episode(Masker(), ABOUT, of, played, ruled, None, judgement(played))
    by_name = {score.name: score for score in trace.scores}
    assert len(by_name) == len(trace.scores)
    assert {name: score.by_model for name, score in by_name.items()} == {
        "success": False, "reward": False, "reward/found": False, "reward/turn": False, "ruler": True,
    }  # fmt: skip
    assert by_name["ruler"][1:] == (
        0.75,
        f"It looked first. {MASK} (in 2 orders: 0.8 as number 1 of 3; 0.7 as number 3 of 3)",
        True,
        "ruler cafe",
    )
    [sent] = [body for body in langfuse.bodies(trace) if body["name"] == "ruler"]
    assert sent["metadata"] == {"source": "LLM_JUDGE", "judge": "ruler cafe"}
    sources = {of.name: (of.source.source_type, of.source.source_id, of.rationale) for of in feedbacks(trace)}
    assert sources["ruler"] == ("LLM_JUDGE", "ruler cafe", by_name["ruler"].comment)
    assert sources["reward"][0] == "CODE"
    assert "not_judged" not in trace.tags


def test_what_a_judge_did_not_score_is_none() -> None:
    of = scenario()
    played = trajectory(of)
    for judged, why in (
        (judgement(played, None, "the server hung"), "the server hung"),
        (judgement(played, None), "not shown"),
    ):
        trace = episode(Masker(), ABOUT, of, played, reward(played), None, judged)
        assert "ruler" not in {score.name for score in trace.scores}
        assert trace.tags["not_judged"].startswith(why)


def test_the_same_scenarios_are_traced_in_every_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [scenario(number).id for number in range(1000)]
    few, more = ([name for name in names if files.is_chosen(name, share)] for share in (0.1, 0.3))
    assert 70 <= len(few) <= 130
    assert set(few) < set(more)
    assert [files.is_chosen(names[0], share) for share in (0, 1)] == [False, True]
    monkeypatch.setenv("FLYWHEEL_TRACE_RATE", "2")
    with pytest.raises(UserError, match="FLYWHEEL_TRACE_RATE is 2: give the share"):
        files.rate()
    monkeypatch.setenv("FLYWHEEL_TRACE_RATE", "0.5")
    assert files.rate() == 0.5


def test_a_stage_keeps_its_turns_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its outputs, found again by what was said, and not by what has the same id."""
    import environments
    from steps import evaluate

    env = environments.load("multiplication")
    data = env.load(Path("tasks_data/multiplication"))
    some = env.scenarios(data, "val", 3, 1)
    kept: list[Any] = []

    def fake(evaluation: stage.Output) -> None:
        kept.extend(players.play(Policy(kind="scripted"), env, data, [(item, 0) for item in some], prefix="val"))
        evaluation.write_text("")

    fake.__module__ = evaluate.__name__
    fake.__annotations__["evaluation"] = "Output"
    before = time.time()
    (tmp_path / "001").mkdir()
    stage.run(fake, {"evaluation": tmp_path / "001/evaluation"})
    path = tmp_path / "001/timings/evaluation.turns.json"
    times = files.read_times(path)
    for item in kept:
        moments = times[item.trajectory.fingerprint()]
        assert len(moments) == len(item.trajectory.turns)
        for asked, answered, done in moments:
            assert before <= asked <= answered <= done <= time.time()
        other = item.trajectory.model_copy(update={"adapter_hash": "another"})
        assert other.fingerprint() not in times
        write_records([item.trajectory], tmp_path / "x.parquet")
        [back] = files.read(Trajectory, tmp_path / "x.parquet", "scenario_id", 1)
        assert back.fingerprint() == item.trajectory.fingerprint()
    assert files.read_times(tmp_path / "none.json") == {}
    path.write_text("{")
    assert files.read_times(path) == {}


def test_sampled_episodes_keep_their_turns_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are asked, answered and done in this order, also where an episode fails or has no room."""
    import environments
    from steps.sampling import episodes
    from steps.sampling.job import Job

    env = environments.load("multiplication")
    data = env.load(Path("tasks_data/multiplication"))
    some = env.scenarios(data, "val", 4, 1)

    class Sampler:
        def __init__(self) -> None:
            self.asked: list[int] = []

        @property
        def pending(self) -> int:
            return len(self.asked)

        def submit(self, key: int, prompt_ids: list[int], seed: int) -> None:
            self.asked.append(key)

        def step(self) -> list[Any]:
            time.sleep(0.01)
            key = self.asked.pop(0)
            given: dict[str, Any] = {"key": key, "completion_ids": (3, 4), "logprobs": (-0.1, -0.2)}
            return [SimpleNamespace(**given, finish_reason="length" if key == 1 else "stop")]

    def parse(ids: Any) -> Any:
        return SimpleNamespace(message={"role": "assistant", "content": "hm"}, problems=())

    chat: Any = SimpleNamespace(prompt=lambda *_: Prompt([1, 2]), parse=parse, suffix_ids=lambda *_: [5], call_hint="")
    kept: dict[str, Any] = {}

    def keep(began: float, turns: dict[str, Any]) -> None:
        kept.update(turns)

    monkeypatch.setattr(episodes, "measure_turns", keep)
    limits, attempts = Rollout(max_tokens=4), [(item, 0) for item in some]
    played = episodes.play(Job(Policy(context=64), limits, None, env, attempts, "x", 1, data), Sampler(), {"": chat})
    assert played[1].stop_reason == "length"
    for item in played:
        moments = kept[item.fingerprint()]
        assert len(moments) == len(item.turns) > 0
        assert all(asked + 0.009 <= answered <= done for asked, answered, done in moments)
        assert all(before[2] <= after[0] + 1e-4 for before, after in pairwise(moments))


# --- Receivers


class Receiver:
    """Langfuse's side: what was posted, decoded. `how`: a status to answer with, or seconds to wait first."""

    def __init__(self, statuses: dict[str, int] | None = None, seconds: float = 0.0) -> None:
        self.spans: list[Any] = []
        self.scores: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                time.sleep(seconds)
                status = (statuses or {}).get(self.path, 200)
                if status == 200:
                    receiver.take(self.path, body, {name.lower(): value for name, value in self.headers.items()})
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.headers.append(headers)
        if path == "/api/public/otel/v1/traces":
            sent = ExportTraceServiceRequest.FromString(body)
            self.spans += [span for group in sent.resource_spans for scope in group.scope_spans for span in scope.spans]
        elif path == "/api/public/scores":
            self.scores += json.loads(body)
        elif path == "/api/public/ingestion":
            self.events += json.loads(body)["batch"]
        else:
            raise AssertionError(path)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def receiving(**how: Any) -> Iterator[Receiver]:
    receiver = Receiver(**how)
    try:
        yield receiver
    finally:
        receiver.close()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("LANGFUSE_BASE_URL", "LANGFUSE_TRACING_ENVIRONMENT", "LANGFUSE_TRACING_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-lf-2")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    return monkeypatch


def test_episodes_reach_langfuse_whole(keys: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    some = traced(150)
    with receiving() as host:
        keys.setenv("LANGFUSE_HOST", host.address)
        project = langfuse.connect(messages.append)
        assert project is not None
        project.send(some)
        assert project.deliveries.settle(60)
        first = {(span.trace_id, span.span_id) for span in host.spans}
        assert len(first) == len(host.spans) == 1050
        project.send(some)
        assert project.deliveries.settle(60)
    assert messages == []
    assert {(span.trace_id, span.span_id) for span in host.spans} == first, "again makes no doubles"
    assert len({span.trace_id for span in host.spans}) == 150
    names = Counter(span.name for span in host.spans[:1050])
    assert names == Counter(episode=150, generation=300, look=150, answer=150) + Counter({"turn 1": 150, "turn 2": 150})
    for span in host.spans[:1050]:
        names_of = {item.key for item in span.attributes}
        assert not any(name.startswith("mlflow.") for name in names_of)
        assert {"langfuse.observation.type", "langfuse.observation.input", "langfuse.trace.name"} <= names_of
        assert {
            "session.id",
            "langfuse.trace.tags",
            "langfuse.environment",
            "langfuse.trace.metadata.scenario",
        } <= names_of
        model = {"langfuse.observation.model.name", "langfuse.observation.usage_details"}
        assert (model <= names_of) == (span.name == "generation")
    assert len({item["id"] for item in host.scores}) == 600
    assert len(host.scores) == 1200
    [success] = [item for item in host.scores[:600] if item["traceId"] == some[0].id and item["name"] == "success"]
    assert success.items() >= {"value": 1.0, "dataType": "BOOLEAN", "environment": "training"}.items()
    [reward_score] = [item for item in host.scores[:600] if item["traceId"] == some[0].id and item["name"] == "reward"]
    assert reward_score.items() >= {"value": 0.5, "dataType": "NUMERIC"}.items()
    assert reward_score["metadata"] == {"source": "CODE", "judge": "rule"}
    login = base64.b64encode(b"pk-lf-1:sk-lf-2").decode()
    for headers in host.headers:
        expected = {
            "authorization": f"Basic {login}",
            "x-langfuse-ingestion-version": "4",
            "x-langfuse-public-key": "pk-lf-1",
        }
        assert headers.items() >= expected.items()


def test_scores_have_the_form_of_langfuses_client(keys: pytest.MonkeyPatch) -> None:
    from langfuse.api.scores.types.score_body import ScoreBody

    fields = {field.alias or name for name, field in ScoreBody.model_fields.items()} | {
        "traceId", "dataType", "timestamp",
    }  # fmt: skip
    for body in langfuse.bodies(traced()[0]):
        assert body.keys() <= fields
        ScoreBody.model_validate(body)


def test_an_older_langfuse_gets_scores_as_it_knows_them(keys: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    with receiving(statuses={"/api/public/scores": 400}) as host:
        keys.setenv("LANGFUSE_HOST", host.address)
        project = langfuse.connect(messages.append)
        assert project is not None
        project.send(traced(2))
        assert project.deliveries.settle(60)
    assert messages == []
    assert {event["type"] for event in host.events} == {"score-create"}
    assert len({event["id"] for event in host.events}) == 8


def test_langfuse_only_with_keys(keys: pytest.MonkeyPatch) -> None:
    project = langfuse.connect(print)
    assert project is not None
    assert project.host == "https://cloud.langfuse.com"
    keys.setenv("LANGFUSE_TRACING_ENABLED", "false")
    assert langfuse.connect(print) is None
    keys.delenv("LANGFUSE_TRACING_ENABLED")
    keys.setenv("LANGFUSE_SECRET_KEY", "sk-lf-2\n")  # as a file's last line
    spaced = langfuse.connect(print)
    assert spaced is not None
    assert spaced.headers == project.headers
    keys.setenv("LANGFUSE_SECRET_KEY", " ")
    assert langfuse.connect(print) is None
    keys.delenv("LANGFUSE_SECRET_KEY")
    assert langfuse.connect(print) is None


NOBODY_WAITS = deliveries.PATIENCE  # seconds: less than one answer of a host that hangs; it takes 0.01


def eventful(address: str, keys: pytest.MonkeyPatch, rounds: int = 3) -> tuple[float, float, list[str]]:
    """(seconds of the slowest hand-over, of settling, what was told) for some iterations."""
    messages: list[str] = []
    keys.setenv("LANGFUSE_HOST", address)
    project = langfuse.connect(messages.append)
    assert project is not None
    some, slowest = traced(20), 0.0
    for _ in range(rounds):
        began = time.perf_counter()
        project.send(some)
        slowest = max(slowest, time.perf_counter() - began)
    began = time.perf_counter()
    project.deliveries.settle(2.0 * rounds)
    return slowest, time.perf_counter() - began, messages


def test_a_host_that_refuses(keys: pytest.MonkeyPatch) -> None:
    slowest, _, messages = eventful(f"http://127.0.0.1:{conftest.free_port()}", keys)
    assert slowest < NOBODY_WAITS
    assert len(messages) == 2
    assert "does not take traces" in messages[0]
    assert messages[1].startswith("240 scores and 60 traces did not reach Langfuse at http://127.0.0.1")


def test_a_host_that_says_no(keys: pytest.MonkeyPatch) -> None:
    paths = ("/api/public/otel/v1/traces", "/api/public/scores")
    with receiving(statuses={paths[0]: 401, paths[1]: 301}) as host:
        slowest, _, messages = eventful(host.address, keys)
    assert slowest < NOBODY_WAITS
    assert len(messages) == 2
    assert "HTTP" in messages[0]
    assert "sk-lf-2" not in messages[0]


def test_a_host_that_hangs(keys: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slowest, settled, messages = eventful(f"http://127.0.0.1:{silent.getsockname()[1]}", keys)
    assert slowest < NOBODY_WAITS
    assert settled < 20  # 6 on an idle machine
    assert len(messages) == 2
    assert messages[1].startswith("240 scores and 60 traces")


def test_a_host_that_is_slow_gets_all(keys: pytest.MonkeyPatch) -> None:
    with receiving(seconds=1.0) as host:
        slowest, _, messages = eventful(host.address, keys)
    assert slowest < NOBODY_WAITS
    assert messages == []
    assert len(host.spans) == 3 * 20 * 7


# --- MLflow


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str, str]:
    """(client, experiment, run) of a database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / ".flywheel").mkdir()
    shutil.copy(empty_store, tmp_path / ".flywheel/mlflow.db")
    client = register.connect(tmp_path)
    experiment = register.experiment(client, tmp_path, "toy")
    return client, experiment, client.create_run(experiment).info.run_id


def checked(client: Any, experiment: str, run: str, count: int) -> None:
    """All that is searched for is found, and said once."""

    def search(query: str = "", **more: Any) -> list[Any]:
        traces = client.search_traces(
            locations=[experiment], filter_string=query, max_results=500, include_spans=False, **more
        )
        return list(traces)

    assert len(search(run_id=run)) == count
    want = traced()[0]
    trace = client.get_trace(f"tr-{want.id}")
    assert trace.info.tags.items() >= want.tags.items()
    assert trace.info.tags["mlflow.traceName"] == "episode"
    assert trace.info.token_usage == {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    assert trace.info.trace_metadata["mlflow.trace.session"] == "run0"
    feedback = {of.name: (of.value, of.source.source_type, of.rationale) for of in trace.info.assessments}
    assert len(trace.info.assessments) == 4
    assert feedback["success"] == (True, "CODE", "by the environment's rule")
    assert feedback["reward"][:2] == (0.5, "CODE")
    assert feedback["reward/turn"] == (-0.25, "CODE", "1 × -0.25: time")
    spans = {span.name: span for span in trace.data.spans}
    assert len(trace.data.spans) == 7
    assert spans["look"].span_type == "TOOL"
    assert spans["generation"].span_type == "CHAT_MODEL"
    assert spans["generation"].inputs["model"] == "some/model"
    assert spans["generation"].outputs["choices"][0]["message"]["role"] == "assistant"
    assert spans["episode"].inputs["task"] == "toy"
    assert spans["episode"].outputs["success"] is True
    assert not [name for name in spans["look"].attributes if name.startswith("langfuse.")]
    for query, expected in (
        ("feedback.success = 'true'", count),
        ("feedback.reward > 0.4", count),
        ("feedback.reward > 0.6", 0),
        ("tags.iteration = '001'", count),
        ("tags.stop_reason = 'error'", 0),
        (f"tags.scenario = '{want.tags['scenario']}'", 1),
    ):
        assert len(search(query)) == expected, query


def test_mlflows_database(store: tuple[Any, str, str], tmp_path: Path) -> None:
    client, experiment, run = store
    sender = Mlflow(client, register.address(tmp_path), experiment, print)
    assert sender.deliveries is None
    some = traced(40)
    sender.send(some, run)
    sender.send(some, run)
    checked(client, experiment, run, 40)


@pytest.mark.slow
def test_mlflows_server_gets_all(mlflow_server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in mlflow_server.variables.items():
        monkeypatch.setenv(name, value)
    client = register.connect(tmp_path)
    experiment = register.experiment(client, tmp_path, "traces")
    run = client.create_run(experiment).info.run_id
    messages: list[str] = []
    sender = Mlflow(client, mlflow_server.url, experiment, messages.append)
    assert sender.deliveries is not None
    some = traced(60)
    sender.send(some, run)
    assert sender.deliveries.delivered.total() < 60, "nobody waits for the server"
    assert sender.deliveries.settle(60), messages
    sender.send(some[:20], run)
    assert sender.deliveries.settle(20)
    assert messages == []
    checked(client, experiment, run, 60)


# --- A run


@pytest.fixture
def finished(tmp_path: Path, store: tuple[Any, str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one iteration and its test, 6 scenarios each."""
    monkeypatch.setenv("FLYWHEEL_TRACE_RATE", "1")
    for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    some = [scenario(number) for number in range(6)]
    folder = tmp_path / "run/001"
    for name in ("evaluation", "test", "../scenarios", "../000/evaluation"):
        (folder / name).mkdir(parents=True)
    for split in ("train", "val", "test"):
        write_records(some, tmp_path / f"run/scenarios/{split}.parquet")
    base = tmp_path / "run/000/evaluation"
    for place, name in ((folder, "001"), (folder / "evaluation", "val"), (folder / "test", "test"), (base, "base")):
        played = [trajectory(item).model_copy(update={"id": f"{name}-{item.id}-0"}) for item in some]
        write_records(played, place / "trajectories.parquet")
        write_records([reward(item) for item in played], place / "rewards.parquet")
    judgements = [judgement(trajectory(item).model_copy(update={"id": f"001-{item.id}-0"})) for item in some]
    lines = [item.model_copy(update={"problem": "line\u2028break"}).model_dump_json() for item in judgements]
    (folder / "judgements.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def test_a_run_is_traced(finished: Path, store: tuple[Any, str, str]) -> None:
    client, experiment, run = store
    messages: list[str] = []

    def once() -> tracing.Tracing:
        sender = tracing.Tracing(finished, Params(), client, register.address(finished), experiment, messages.append)
        sender.iteration("key", run, "000", 1_700_000_000.0)
        sender.iteration("key", run, "001", 1_700_000_000.0)
        tested = {"best": "001", "base": "000"}
        assert sender.finish("key", run, tested, {"seed": "1", "api_key": "abc"}, {"success": 0.5}, (1e9, 1e9 + 5))
        return sender

    assert once().traced == 24
    once()
    assert messages == []
    every = client.search_traces(locations=[experiment], run_id=run, max_results=500)
    assert Counter(trace.info.tags["mlflow.traceName"] for trace in every) == {"episode": 24, "training": 1}
    splits = Counter(trace.info.tags.get("split") for trace in every)
    assert splits == {"train": 6, "val": 12, "test": 6, None: 1}
    iterations = Counter(trace.info.tags.get("iteration") for trace in every)
    assert iterations == {"000": 6, "001": 18, None: 1}
    by_judge = [trace for trace in every if any(of.source.source_type == "LLM_JUDGE" for of in trace.info.assessments)]
    assert len(by_judge) == 6
    assert {trace.info.tags["split"] for trace in by_judge} == {"train"}
    [whole] = [trace for trace in every if trace.info.tags["mlflow.traceName"] == "training"]
    assert whole.data.spans[0].inputs == {"seed": "1", "api_key": MASK}
    assert whole.data.spans[0].outputs["metrics"] == {"success": 0.5}
    assert whole.info.execution_duration == 5000
    assert whole.info.tags.keys() >= {"cpus", "memory", "machine", "episodes_traced", "seconds"}


@pytest.mark.parametrize(("seconds", "patience"), [(1.0, deliveries.SECONDS), (30.0, 0.1)])
def test_eight_iterations_are_waited_for_two_seconds_each_at_most(
    finished: Path, store: tuple[Any, str, str], keys: pytest.MonkeyPatch, seconds: float, patience: float
) -> None:
    """A host that is slow gets all of eight iterations, the base's validation and the end; one that hangs is left."""
    client, experiment, run = store
    messages: list[str] = []
    keys.setattr(tracing, "SECONDS", patience)
    keys.setattr(tracing, "LEAST", min(deliveries.LEAST, 20 * patience))
    with receiving(seconds=seconds) as host:
        keys.setenv("LANGFUSE_HOST", host.address)
        sender = tracing.Tracing(finished, Params(), client, register.address(finished), experiment, messages.append)
        sender.mlflow.send = lambda *_: None  # pyrefly: ignore[bad-assignment]
        began = time.perf_counter()
        sender.iteration("key", run, "000", 1.0)
        for _ in range(8):
            sender.iteration("key", run, "001", 1.0)
        assert (
            time.perf_counter() - began < deliveries.ATTEMPTS * deliveries.PATIENCE
        )  # of one iteration, where it hangs
        began = time.perf_counter()
        arrived = sender.finish("key", run, {"best": "001", "base": "000"}, {}, {}, (1.0, 2.0))
        waited = time.perf_counter() - began
    assert sender.sent == 8
    assert deliveries.SECONDS <= 2.0
    assert arrived == (seconds == 1.0)
    assert waited < (15 if arrived else NOBODY_WAITS)
    assert ["does not take traces" in line for line in messages] == ([] if arrived else [True, False])


class LateClient:
    """Stands for a client: the server answers only after so many requests."""

    def __init__(self, late: int) -> None:
        self.late, self.count = late, 0

    def asked(self, *_: object, **__: object) -> Any:
        self.count += 1
        if self.count <= self.late:
            raise http_client.Late("no answer within 5 s")
        return http_client.Answer(200, {}, b"")


def test_a_server_that_answers_late_is_asked_again() -> None:
    post = deliveries.Post("http://127.0.0.1/v1/traces", b"{}", {"Content-Type": "application/json"})
    late: Any = LateClient(deliveries.ATTEMPTS - 1)
    deliveries.send_patiently(late, post)
    assert late.count == deliveries.ATTEMPTS
    silent: Any = LateClient(99)
    with pytest.raises(http_client.Late):
        deliveries.send_patiently(silent, post)
    assert silent.count == deliveries.ATTEMPTS


def test_one_iteration_is_waited_for_as_long_as_a_busy_machine_takes(
    finished: Path, store: tuple[Any, str, str], keys: pytest.MonkeyPatch
) -> None:
    """A second and a half was too short for a server that had just started, and twenty traces were lost."""
    client, experiment, run = store
    waits: list[float] = []
    sender = tracing.Tracing(finished, Params(), client, register.address(finished), experiment, print)
    sender.mlflow.deliveries = SimpleNamespace(settle=lambda seconds: waits.append(seconds) or True)  # pyrefly: ignore[bad-assignment]
    sender.sent = 1
    sender.mlflow.send = lambda *_: None  # pyrefly: ignore[bad-assignment]
    assert sender.finish("key", run, {}, {}, {}, (1.0, 2.0))
    assert waits[0] > deliveries.LEAST - 1


def test_what_goes_wrong_is_said_once_and_stops_nothing(finished: Path, store: tuple[Any, str, str]) -> None:
    client, experiment, run = store
    messages: list[str] = []
    (finished / "run/001/trajectories.parquet").write_text("no parquet")
    sender = tracing.Tracing(finished, Params(), client, register.address(finished), experiment, messages.append)
    for _ in range(2):
        sender.iteration("key", run, "001", 1.0)
    assert len(messages) == 1
    assert messages[0].startswith("traces are left out: ")
    assert "run/001/trajectories.parquet cannot be read (Parquet" in messages[0]
    assert not sender.finish("key", run, {}, {}, {}, (1.0, 2.0)), "and is not marked as sent"


def test_a_rate_of_zero_sends_nothing(
    finished: Path, store: tuple[Any, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, experiment, run = store
    monkeypatch.setenv("FLYWHEEL_TRACE_RATE", "0")
    sender = tracing.Tracing(finished, Params(), client, register.address(finished), experiment, print)
    sender.iteration("key", run, "001", 1.0)
    assert sender.finish("key", run, {"best": "001"}, {}, {}, (1.0, 2.0))
    assert client.search_traces(locations=[experiment]) == []
