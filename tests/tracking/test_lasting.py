"""Training goes on whatever MLflow does, and MLflow gets later what it lacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from steps.core.errors import UserError
from steps.tracking.lasting import Guarded, LastingMlflow


class FakeTracker:
    """In place of MlflowTracker: it fails, or hangs, as long as it is told to."""

    uri_shown = "http://mlflow"

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.free = threading.Event()  # not set: each call hangs
        self.free.set()
        self.logged: list[Any] = []

    def iteration(self, number: str, overhead_seconds: float | None = None, system: Any = ()) -> None:
        self._call((number, overhead_seconds))

    def finish(self, status: str = "FINISHED") -> None:
        self._call(status)

    def log_artifact(self, path: Any) -> None:
        self._call(path)

    def _call(self, what: Any) -> None:
        assert self.free.wait(60)
        if self.problem is not None:
            raise self.problem
        self.logged.append(what)


@pytest.fixture
def fake() -> Iterator[FakeTracker]:
    tracker = FakeTracker()
    yield tracker
    tracker.free.set()


def test_what_fails_is_said_once_and_logged_later(fake: FakeTracker) -> None:
    """A store that was locked for a moment used to end the run."""
    lines: list[str] = []
    mlflow: Any = LastingMlflow(fake, lines.append, pause=0.0)  # pyrefly: ignore[bad-argument-type]
    mlflow.iteration("001", 0.1)
    fake.problem = UserError("MLflow at sqlite:///x cannot be reached: the database is locked")
    mlflow.iteration("002", 0.2)
    mlflow.iteration("003", 0.3)
    mlflow.log_artifact("curve.png")
    assert lines == [f"{fake.problem} (the run goes on meanwhile, and logs this later)"]
    fake.problem = None
    mlflow.iteration("004", 0.4)
    mlflow.finish()
    assert fake.logged == [("001", 0.1), ("002", 0.2), ("003", 0.3), ("004", 0.4), "FINISHED"]
    assert lines[1:] == ["MLflow works again"]


def test_what_is_missing_at_the_end_is_named_with_a_cure(fake: FakeTracker) -> None:
    lines: list[str] = []
    mlflow: Any = LastingMlflow(fake, lines.append, pause=60.0)  # pyrefly: ignore[bad-argument-type]
    fake.problem = OSError("away")
    mlflow.iteration("001", 0.1)
    fake.problem = None
    mlflow.iteration("002", 0.2)
    assert fake.logged == [], "it is left alone for a while"
    fake.problem = OSError("away")
    mlflow.finish()
    assert lines[-1] == (
        "MLflow lacks iteration 001, iteration 002, the end of the run: "
        "`.venv/bin/python -m steps.tracking` logs it once MLflow works"
    )


def test_what_hangs_holds_up_nobody(fake: FakeTracker) -> None:
    lines: list[str] = []
    mlflow: Any = LastingMlflow(fake, lines.append, patience=0.05, pause=0.0)  # pyrefly: ignore[bad-argument-type]
    fake.free.clear()
    mlflow.iteration("001", 0.1)
    assert lines == [
        "MLflow at http://mlflow did not answer within 0 s (the run goes on meanwhile, and logs this later)"
    ]
    mlflow.iteration("002", 0.2)
    mlflow.patience = 30.0
    fake.free.set()
    mlflow.finish()
    assert fake.logged == [("001", 0.1), ("002", 0.2), "FINISHED"], "each of them once"


@pytest.mark.parametrize("hangs", [False, True])
def test_a_run_that_is_stopped_ends_soon(fake: FakeTracker, monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    monkeypatch.setattr("steps.tracking.lasting.STATUS", 0.05)
    lines: list[str] = []
    mlflow: Any = LastingMlflow(fake, lines.append)  # pyrefly: ignore[bad-argument-type]
    if hangs:
        fake.free.clear()
    started = time.monotonic()
    mlflow.finish("KILLED")
    assert time.monotonic() - started < 30
    assert (fake.logged, lines) == ([] if hangs else ["KILLED"], [])


def test_a_run_may_fail_while_an_iteration_begins_to_be_logged(
    fake: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`finish` joined a thread that was not started yet, and its error took the place of what the run had failed with."""
    starts, goes_on = threading.Event(), threading.Event()

    class Slow(threading.Thread):
        def start(self) -> None:
            if self.name == "MLflow" and not starts.is_set():
                starts.set()
                assert goes_on.wait(60)
            super().start()

    lines: list[str] = []
    mlflow: Any = LastingMlflow(fake, lines.append)  # pyrefly: ignore[bad-argument-type]
    logging = threading.Thread(target=mlflow.iteration, args=("001", 0.1))
    ending = threading.Thread(target=mlflow.finish, args=("FAILED",))
    monkeypatch.setattr("steps.tracking.lasting.threading.Thread", Slow)
    logging.start()
    assert starts.wait(60)
    ending.start()
    ending.join(0.2)
    goes_on.set()
    for thread in (logging, ending):
        thread.join(60)
    assert fake.logged == [("001", 0.1), "FAILED"]
    assert lines == []


@pytest.mark.parametrize("fails_at", ["begin", "iteration", "finish"])
def test_an_addons_tracker_that_raises_ends_alone_and_says_so_once(fails_at: str) -> None:
    calls, lines = list[str](), list[str]()

    class Comet:
        def iteration(self, number: str, overhead_seconds: float | None = None, system: Any = ()) -> None:
            self.called("iteration")

        def finish(self, status: str = "FINISHED") -> None:
            self.called("finish")

        def called(self, name: str) -> None:
            calls.append(name)
            if name == fails_at:
                raise ValueError("no such\nproject")

    def begin(run: Any, is_live: bool) -> Comet:
        assert is_live
        if fails_at == "begin":
            raise ValueError("no such\nproject")
        return Comet()

    guarded = Guarded(begin, SimpleNamespace(log_message=lines.append))  # pyrefly: ignore[bad-argument-type]
    guarded.iteration("001")
    guarded.iteration("002")
    guarded.finish()
    assert calls == {"begin": [], "iteration": ["iteration"], "finish": ["iteration", "iteration", "finish"]}[fails_at]
    reason = "ValueError: no such project"
    assert lines == [f"the tracker {__name__} has failed ({reason}); the run goes on without it"]


def test_a_tracker_that_is_not_switched_on_gets_nothing() -> None:
    lines = list[str]()
    guarded = Guarded(lambda run, is_live: None, SimpleNamespace(log_message=lines.append))  # pyrefly: ignore[bad-argument-type]
    guarded.iteration("001")
    guarded.finish()
    assert (guarded.tracker, lines) == (None, [])
