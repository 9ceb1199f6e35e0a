"""Traces the episodes of a run: what MLflow's tracker has logged is sent, each iteration once.

A run that goes on waits for it no longer than for MLflow (steps/tracking/lasting.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from addons.trackers.tracing.sender import Tracing
from steps.project.chain import BASE, read_chain
from steps.tracking.lasting import PATIENCE

if TYPE_CHECKING:
    from steps.tracking.tracker import MlflowTracker, Sample


def begin(run: MlflowTracker, is_live: bool) -> TraceTracker:
    """The tracker of a run, also of one that is logged later."""
    return TraceTracker(run, PATIENCE if is_live else None)


class TraceTracker:
    """The traces of one run. `patience`: seconds that a call is waited for; None: until it has ended."""

    def __init__(self, run: MlflowTracker, patience: float | None) -> None:
        self.run, self.patience = run, patience
        self.tracing = Tracing(run.root, run.params, run.client, run.uri, run.experiment, run.log_message)
        self.sent = 0  # of `run.entered`
        self.running: threading.Thread | None = None

    def iteration(self, number: str, overhead_seconds: float | None = None, system: Sequence[Sample] = ()) -> None:
        """Send the traces of this iteration, and of those before it that MLflow lacked until now."""
        self._call(self._send)

    def finish(self, status: str = "FINISHED") -> None:
        """FINISHED sends the traces of the run and of its tests, once MLflow has their end."""
        if status == "FINISHED":
            self._call(self._send)
            self._call(self._end)

    def _send(self) -> None:
        for number in self.run.entered[self.sent :]:
            self.sent += 1
            run, parent = self.run.children[number][0], self.run.parent
            if run.data.tags.get("traced") != self.tracing.key:
                key = parent.data.tags["run_key"]
                if number == "001":
                    self.tracing.iteration(key, parent.info.run_id, BASE, parent.info.start_time / 1000)
                self.tracing.iteration(key, run.info.run_id, number, run.info.start_time / 1000)

    def _end(self) -> None:
        """What has arrived is tagged, and not sent again."""
        parent = self.run.parent
        if parent is None or parent.info.status != "FINISHED":
            return
        nested = [run for runs in self.run.children.values() for run in runs]
        unsent = [run for run in (parent, *nested) if run.data.tags.get("traced") != self.tracing.key]
        if not unsent or not self.tracing.rate:
            return
        info, metrics = parent.info, [run.data.metrics for run in nested]
        tested = {name: number for name, number in (read_chain(self.run.root).get("tested") or {}).items() if number}
        stages = sum(value for values in metrics for name, value in values.items() if name.startswith("seconds/"))
        episodes = sum(values.get("collected", 0.0) for values in metrics)
        totals = parent.data.metrics | {"episodes": episodes, "seconds_of_stages": round(stages, 3)}
        times = (info.start_time / 1000, (info.end_time or info.start_time) / 1000)
        settings = self.run.settings | self.run.flow_settings
        if self.tracing.finish(parent.data.tags["run_key"], info.run_id, tested, settings, totals, times):
            for run in unsent:
                self.run.client.set_tag(run.info.run_id, "traced", self.tracing.key)

    def _call(self, work: Callable[[], None]) -> None:
        """Do `work` in a thread, and wait for it; what it fails with is logged. While one is left to itself, none begins."""

        def called() -> None:
            with self.tracing.one_warning():
                work()

        if self.running is None or not self.running.is_alive():
            self.running = threading.Thread(target=called, name="traces", daemon=True)
            self.running.start()
            self.running.join(self.patience)
