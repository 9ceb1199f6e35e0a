"""Trackers for a flow. Whatever MLflow does, training goes on, and waits for it no longer than PATIENCE; an add-on's
tracker that raises gets nothing more (`Guarded`).

A failure is logged once. An iteration that was not logged is tried again with a later one, and at the end; what is missing
then is named, and `python -m steps.tracking` logs it. That command uses the tracker itself, whose errors end it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from steps.core.masking import masked
from steps.tracking.tracker import Begin, MlflowTracker, Sample, Tracker

PATIENCE = 60.0  # seconds that a run waits for one iteration, or for the end, to be logged
PAUSE = 60.0  # seconds after a failure without another attempt
STATUS = 10.0  # seconds for the status of a run that failed or was stopped


class LastingMlflow:
    """A tracker that neither raises nor hangs."""

    def __init__(
        self,
        tracker: MlflowTracker,
        log_message: Callable[[str], None],
        patience: float = PATIENCE,
        pause: float = PAUSE,
    ) -> None:
        self.tracker, self.log_message, self.patience, self.pause = tracker, log_message, patience, pause
        self.waiting: dict[str, tuple[float | None, Sequence[Sample]]] = {}  # iterations that are not logged yet
        self.running: threading.Thread | None = None  # the last call, which may still wait for MLflow
        self.starting = threading.Lock()  # of that thread
        self.has_failed, self.next_attempt = False, 0.0  # time.monotonic()

    def iteration(self, number: str, overhead_seconds: float | None = None, system: Sequence[Sample] = ()) -> object:
        """Log an iteration, and those before it that are not logged yet; whether that was done."""
        self.waiting[number] = overhead_seconds, system
        return time.monotonic() >= self.next_attempt and self._lasting(self._log_waiting)

    def finish(self, status: str = "FINISHED") -> None:
        """End the run. FINISHED first logs what is not logged yet, and names what cannot be."""
        if status != "FINISHED":
            self._call(lambda: self.tracker.finish(status), STATUS)
            return
        if not (self._lasting(self._log_waiting) and self._lasting(self.tracker.finish)):
            missing = ", ".join([*(f"iteration {number}" for number in self.waiting), "the end of the run"])
            self.log_message(f"MLflow lacks {missing}: `.venv/bin/python -m steps.tracking` logs it once MLflow works")

    def log_artifact(self, path: Path) -> None:
        """Log a file with the parent run."""
        self._lasting(lambda: self.tracker.log_artifact(path))

    def note(self, text: str) -> None:
        """Write the description of the run."""
        self._lasting(lambda: self.tracker.note(text))

    def _log_waiting(self) -> None:
        for number, measured in list(self.waiting.items()):
            self.tracker.iteration(number, *measured)
            self.waiting.pop(number, None)

    def _lasting(self, work: Callable[[], object]) -> bool:
        """Whether `work` was done. The first failure is logged, and the next success after one."""
        problem = self._call(work, self.patience)
        if problem is None:
            if self.has_failed:
                self.log_message("MLflow works again")
            self.has_failed = False
            return True
        self.next_attempt = time.monotonic() + self.pause
        if not self.has_failed:
            self.has_failed = True
            reason = masked(" ".join(str(problem).split()))
            self.log_message(f"{reason} (the run goes on meanwhile, and logs this later)")
        return False

    def _call(self, work: Callable[[], object], seconds: float) -> Exception | None:
        """Do `work` in a thread of its own, and wait for it so long; the error, if there was one. A call that has not ended
        is left to itself, and no other begins before it has ended."""
        until, problems = time.monotonic() + seconds, list[Exception]()

        def called() -> None:
            try:
                work()
            except Exception as problem:
                problems.append(problem)

        own = threading.Thread(target=called, name="MLflow", daemon=True)
        while self.running is not own:
            with self.starting:  # an iteration is logged in a thread of the flow, and the run may end in another one
                if self.running is None or not self.running.is_alive():
                    own.start()
                    self.running = own
                running = self.running
            running.join(max(0.0, until - time.monotonic()))
            if running.is_alive():
                break
        else:
            return problems[0] if problems else None
        return TimeoutError(f"MLflow at {self.tracker.uri_shown} did not answer within {seconds:.0f} s")


class Guarded:
    """An add-on's tracker of a run that goes on: the first error that it raises is logged, and ends it, but not the run."""

    def __init__(self, begin: Begin, run: MlflowTracker) -> None:
        self.name, self.log_message = begin.__module__, run.log_message
        self.tracker: Tracker | None = None
        with self._guard():
            self.tracker = begin(run, True)

    def iteration(self, number: str, overhead_seconds: float | None = None, system: Sequence[Sample] = ()) -> None:
        """As Tracker.iteration, which raises nothing here."""
        with self._guard():
            if self.tracker is not None:
                self.tracker.iteration(number, overhead_seconds, system)

    def finish(self, status: str = "FINISHED") -> None:
        """As Tracker.finish, which raises nothing here."""
        with self._guard():
            if self.tracker is not None:
                self.tracker.finish(status)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except Exception as problem:
            self.tracker = None
            reason = " ".join(f"{type(problem).__name__}: {problem}".split())
            self.log_message(f"the tracker {self.name} has failed ({reason}); the run goes on without it")
