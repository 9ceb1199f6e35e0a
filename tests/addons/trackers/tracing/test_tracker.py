"""Which iterations are traced when, and that a run waits for it only so long."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from addons.trackers.tracing import tracker
from steps.core.params import Params


class Sender:
    """Stands in for Tracing: what it was asked to send."""

    key, rate = "key", 1.0

    def __init__(self, *_: Any) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.gate = threading.Event()
        self.gate.set()

    def iteration(self, key: str, run_id: str, number: str, at: float) -> None:
        self.gate.wait(20)
        self.calls.append((number, run_id))

    def finish(self, key: str, run_id: str, *_: Any) -> bool:
        self.calls.append(("finish", run_id))
        return True

    def one_warning(self) -> threading.Lock:
        return threading.Lock()


class Run:
    """Stands in for MLflow's tracker, which has logged no iteration yet."""

    params, uri, experiment = Params(), "", "1"
    log_message = print
    settings: ClassVar[dict[str, str]] = {}
    flow_settings: ClassVar[dict[str, str]] = {}

    def __init__(self, root: Path) -> None:
        self.root, self.entered = root, list[str]()
        self.children: dict[str, list[Any]] = {}
        self.tags: list[tuple[str, str, str]] = []
        self.client: Any = SimpleNamespace(set_tag=lambda *words: self.tags.append(words))
        self.parent = self.made("parent", run_key="k")

    def made(self, name: str, **tags: str) -> Any:
        info = SimpleNamespace(run_id=name, start_time=1000, end_time=None, status="RUNNING")
        return SimpleNamespace(info=info, data=SimpleNamespace(tags=tags, metrics={}))

    def enter(self, number: str, **tags: str) -> None:
        self.entered.append(number)
        self.children[number] = [self.made(f"run {number}", **tags)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(tracker, "Tracing", Sender)
    (tmp_path / "chain.yaml").write_text("tested: {base: '000', best: '001'}\n")
    return Run(tmp_path)


def test_what_mlflow_lacked_is_sent_with_a_later_iteration_and_nothing_twice(run: Run) -> None:
    traces: Any = tracker.TraceTracker(run, None)  # pyrefly: ignore[bad-argument-type]
    traces.iteration("001")  # MLflow was away
    assert traces.tracing.calls == []
    run.enter("001")
    run.enter("002", traced="key")  # by an earlier process
    traces.iteration("002")
    traces.iteration("002")
    assert traces.tracing.calls == [("000", "parent"), ("001", "run 001")]
    traces.finish("FAILED")
    traces.finish()
    assert len(traces.tracing.calls) == 2, "MLflow does not have the end of the run"
    run.parent.info.status = "FINISHED"
    traces.finish()
    assert traces.tracing.calls[2:] == [("finish", "parent")]
    assert run.tags == [(name, "traced", "key") for name in ("parent", "run 001")]


def test_a_run_waits_for_traces_only_so_long(run: Run) -> None:
    traces: Any = tracker.TraceTracker(run, 0.2)  # pyrefly: ignore[bad-argument-type]
    traces.tracing.gate.clear()
    run.enter("002")
    began = time.monotonic()
    traces.iteration("002")
    traces.finish()
    assert 0.2 <= time.monotonic() - began < 10
    traces.tracing.gate.set()
    traces.running.join(20)
    assert traces.tracing.calls == [("002", "run 002")]
