"""What a training run is logged to while it goes on: MLflow, and what add-ons bring, such as the ledger's lineage."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from flows.deployment import pages
from flows.terminal.display import RunDisplay
from steps.core.masking import masked
from steps.core.ports import every

if TYPE_CHECKING:
    from steps.tracking.lasting import LastingMlflow
    from steps.tracking.system_metrics import Sample
    from steps.tracking.tracker import Tracker


@task(task_run_name="track {iteration}", cache_policy=NO_CACHE)
def track(trackers: list[Tracker], iteration: str, overhead: float, system: list[Sample], display: RunDisplay) -> None:
    """Log an iteration to each of them."""
    for tracker in trackers:
        tracker.iteration(iteration, overhead, system)


def open_trackers(display: RunDisplay, name: str = "") -> tuple[LastingMlflow, list[Tracker]]:
    """MLflow's tracker, and all trackers: MLflow's first, whose runs and metrics others read. `name` is the run's."""
    from steps.tracking import lasting, tracker

    display.begin("opening MLflow's store")
    log = partial(log_message, display)
    mlflow = lasting.LastingMlflow(tracker.MlflowTracker(Path.cwd(), log, name, pages.origin()), log)
    return mlflow, [mlflow, *(lasting.Guarded(begin, mlflow.tracker) for begin in every("tracker"))]


def log_message(display: RunDisplay, text: str) -> None:
    """Show a line of tracking, such as that a host does not take traces, in the log and on the terminal."""
    line = f"tracking: {masked(text)}"
    print(line, flush=True)
    display.lack(line)
