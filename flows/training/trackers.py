"""What a training run is logged to while it goes on: MLflow, Weights & Biases where that is on, and the ledger."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from flows.deployment import pages
from flows.terminal.display import RunDisplay
from steps.core.errors import UserError
from steps.core.masking import masked
from steps.project import chain

if TYPE_CHECKING:
    from steps.tracking.lasting import LastingMlflow
    from steps.tracking.system_metrics import Sample
    from steps.tracking.tracker import Tracker


@task(task_run_name="track {iteration}", cache_policy=NO_CACHE)
def track(trackers: list[Tracker], iteration: str, overhead: float, system: list[Sample], display: RunDisplay) -> None:
    """Log an iteration to MLflow, to Weights & Biases where that is on, and to the ledger."""
    for tracker in trackers:
        tracker.iteration(iteration, overhead, system)
    index([chain.BASE, *chain.origins(Path.cwd()), iteration] if iteration == "001" else [iteration], display)


def index(iterations: list[str], display: RunDisplay) -> None:
    """Add iterations to the ledger's lineage. An unreachable ledger stops no run: `make ledger` adds them later."""
    from addons.lineage import index as lineage_index
    from steps.project.ledger import Ledger

    try:
        with Ledger(patience=5) as ledger:
            lineage_index.index(Path.cwd(), ledger, iterations)
    except UserError as problem:
        display.say(f"The ledger was not written: {problem}; `make ledger` does it later.")


def open_trackers(display: RunDisplay, name: str = "") -> tuple[LastingMlflow, list[Tracker]]:
    """MLflow's tracker, and all trackers: MLflow's first, whose metrics Weights & Biases gets. `name` is the run's."""
    from addons.trackers import wandb
    from steps.tracking import lasting, tracker

    display.begin("opening MLflow's store")
    log = partial(log_message, display)
    mlflow = lasting.LastingMlflow(tracker.MlflowTracker(Path.cwd(), log, name, pages.origin()), log)
    weights_and_biases = wandb.start(Path.cwd(), mlflow.params, mlflow.metrics, log)
    return mlflow, [mlflow, weights_and_biases] if weights_and_biases else [mlflow]


def log_message(display: RunDisplay, text: str) -> None:
    """Show a line of tracking, such as that a host does not take traces, in the log and on the terminal."""
    line = f"tracking: {masked(text)}"
    print(line, flush=True)
    display.say(line)
