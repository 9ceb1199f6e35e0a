"""A run's result is there whatever becomes of Prefect's server meanwhile, and a server that hangs hangs nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Crashed, exception_to_crashed_state

from flows.deployment import artifacts
from flows.terminal import recorded
from flows.terminal.command import TakesTooLong, limit
from steps.core.errors import UserError


def fake_flow(before: Callable[[], None], after: Callable[[], None]) -> Callable[..., Any]:
    """In place of prefect.flow: what Prefect does before and after the work."""

    def flow(**_: object) -> Callable[..., Any]:
        def decorated(work: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                before()
                work()
                after()

            return run

        return decorated

    return flow


@pytest.fixture(autouse=True)
def at_hand() -> Iterator[None]:
    yield
    recorded.AWAY.clear()
    artifacts.HANGS.clear()


def nothing() -> None: ...


def fail() -> None:
    raise ConnectionError("All connection attempts failed")


def hang() -> None:
    time.sleep(60)


@pytest.mark.parametrize(
    ("after", "reason"), [(fail, "All connection attempts failed"), (hang, "no answer within 0.05 s")]
)
def test_a_server_that_went_away_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, after: Callable[[], None], reason: str
) -> None:
    """It used to end with Prefect's traceback, and without the lines on what was registered."""
    monkeypatch.setattr(recorded, "flow", fake_flow(nothing, after))
    lines: list[str] = []
    assert recorded.result_of("train", lambda: "result", lines.append, "second", end=0.05) == "result"
    assert lines == [f"Prefect has not recorded the end of this run ({reason}). The run itself is complete:"]


def test_a_server_that_went_away_does_not_hold_up_the_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's threads would try for minutes, after the result has been printed."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    assert recorded.leave(0) == 0
    assert ended == []
    recorded.AWAY.set()
    assert recorded.leave(3) == 3
    assert ended == [3]


def test_a_flow_run_has_the_runs_name_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect takes a text for a template, and makes up a name where there is none."""
    options: dict[str, Any] = {}

    def flow(**given: Any) -> Callable[..., Any]:
        options.update(given)
        return lambda work: work

    monkeypatch.setattr(recorded, "flow", flow)
    assert recorded.result_of("train", lambda: 1, print, "toy {seed}") == 1
    assert options["flow_run_name"]() == "toy {seed}"


def test_an_error_of_the_work_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "flow", fake_flow(nothing, nothing))
    lines: list[str] = []
    assert recorded.result_of("train", lambda: "result", lines.append, "second", start=0.05) == "result"
    with pytest.raises(ConnectionError):
        recorded.result_of("train", fail, lines.append, "second")
    assert lines == []


def test_a_server_that_does_not_begin_the_run_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "flow", fake_flow(hang, nothing))
    with pytest.raises(UserError, match="Prefect has not begun the run"):
        recorded.result_of("train", lambda: 1, print, "second", start=0.05)


def test_an_artifact_that_takes_too_long_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    @artifacts.shown
    def artifact(seconds: float) -> None:
        made.append(1)
        time.sleep(seconds)

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setattr(artifacts, "PATIENCE", 0.05)
    artifact(60)
    artifact(0)
    assert made == [1]


@pytest.mark.parametrize(
    ("message", "states"),
    [
        ("Execution was aborted by an interrupt signal.", ["CANCELLED"]),
        ("Execution was aborted by a termination signal.", []),
        (None, []),
    ],
)
def test_ctrl_c_is_no_crash(monkeypatch: pytest.MonkeyPatch, message: str | None, states: list[str]) -> None:
    """The message is Prefect's own of a KeyboardInterrupt."""
    kept: list[str] = []

    class Client:
        def set_flow_run_state(self, flow_run_id: object, state: Any, force: bool) -> None:
            assert (flow_run_id, force) == (run.id, True)
            kept.append(state.type.value)

    run = FlowRun(flow_id=uuid4())
    monkeypatch.setattr(recorded, "get_client", lambda sync_client: contextlib.nullcontext(Client()))
    recorded.stopped(None, run, Crashed(message=message))
    assert kept == states
    assert "interrupt signal" in (asyncio.run(exception_to_crashed_state(KeyboardInterrupt())).message or "")


def test_a_limit_ends_with_its_block() -> None:
    with pytest.raises(TakesTooLong), limit(0.02):
        time.sleep(60)
    with limit(0.02):
        pass
    time.sleep(0.05)


def test_a_registry_that_is_away_at_the_end_costs_only_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage has registered the adapter; asking for the number used to end the run without its summary."""
    from flows.terminal.display import RunDisplay
    from flows.terminal.report import Point
    from flows.training import ending

    def away(*_: object) -> None:
        raise UserError("MLflow cannot be reached")

    result = {"success": 0.5, "ci95": [0.4, 0.6], "n": 30}
    content: dict[str, Any] = {
        "base": result,
        "trained": result | {"iteration": 2, "policy": "002"},
        "registered": None,
        "iterations": [{}],
        "wall_seconds": 1.0,
    }
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/receipt.json").write_text('{"registered": true, "name": "toy", "adapter_hash": "abc"}')
    monkeypatch.setattr("steps.registry.publish.registered_version", away)
    monkeypatch.setattr(ending.report, "summary", lambda *_: content)
    monkeypatch.setattr(ending.health, "at_end", lambda *_: [])  # which reads the iterations' files
    best = Point(2, 0.5, (0.4, 0.6), 0.0)
    summary = ending.write_summary("toy", best, 2, 0.0, RunDisplay())
    assert summary["registered"] == {"name": "toy", "version": None}
    lines: list[str] = []
    ending.print_end(lines.append, summary)
    assert "Registered iteration 2 in toy; `make mlflow` shows the version's number." in lines


def test_a_second_signal_does_not_cut_off_what_trackers_log_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """make passes on a SIGTERM that the process has had already, and people press Ctrl-C twice."""
    from flows.terminal.display import RunDisplay
    from flows.training import run as training

    ended: list[str] = []

    class Tracker:
        def finish(self, status: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            ended.append(status)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training.Pipeline, "look", lambda _: False)  # which writes lists of the code here
    monkeypatch.setattr(training, "open_trackers", lambda *_: (Tracker(), [Tracker(), Tracker()]))
    monkeypatch.setattr(training, "begin", lambda *_: None)
    monkeypatch.setattr(training, "_iterations", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.train_here(RunDisplay())
    assert ended == ["KILLED", "KILLED"]


def test_a_server_that_does_not_start_in_time_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's words, as `SubprocessASGIServer.start` has them."""

    def late() -> None:
        raise RuntimeError("Timed out while attempting to connect to ephemeral Prefect API server.")

    monkeypatch.setattr(recorded, "flow", fake_flow(late, nothing))
    with pytest.raises(UserError, match=r"Prefect's server has not started in time.*STARTUP_TIMEOUT_SECONDS=170"):
        recorded.result_of("train", lambda: 1, print, "run")


def test_mlflow_is_given_the_way_to_prefects_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.runtime import flow_run

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert recorded.origin() == {}, "outside a flow"
    for name, value in {"id": "7", "ui_url": "http://127.0.0.1:4200/runs/flow-run/7"}.items():
        monkeypatch.setattr(flow_run, name, value, raising=False)
    assert recorded.origin() == {"prefect_flow_run_id": "7"}, "the page of a temporary server leads nowhere"
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert recorded.origin()["prefect_flow_run_url"] == "http://127.0.0.1:4200/runs/flow-run/7"
