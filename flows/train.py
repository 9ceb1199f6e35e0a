"""Train: the main job. Rollout, score, update, evaluate, again and again; then test the best iteration and register it.

    python -m flows.train                                   # what params.yaml says
    python -m flows.train --set seed=2 --set train.iterations=6
    python -m flows.train --dry-run                         # the resolved parameters, and nothing else

Each task runs one stage of dvc.yaml through DVC, which skips what is up to date: the same command goes on where a stopped
run was. Training stops early when validation has not improved for `train.patience` iterations; the best iteration, not the
last, is registered. Without PREFECT_API_URL the flow runs by itself, on a server of its own that ends with it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.deployment import pages
from flows.deployment.settings import TrainSettings
from flows.deployment.workspace import LIMIT, workspace
from flows.repro import pipeline
from flows.terminal import report
from flows.terminal.command import LOG, end_worker, prepare, run_command, sentence
from flows.terminal.display import Display
from flows.terminal.report import RUN, Point
from steps.core import params
from steps.core.errors import UserError
from steps.core.masking import masked
from steps.core.records import OUTPUTS
from steps.project import chain
from steps.project.chain import name
from steps.tracking import system_metrics

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

    from steps.tracking.system_metrics import Sample
    from steps.tracking.tracker import MlflowTracker, Tracker
from flows.repro.parameters import choose_task, set_params

display = Display()


@task(task_run_name="{stage}", cache_policy=NO_CACHE)
def run_stage(stage: str) -> bool:
    """One stage of dvc.yaml, if it is stale."""
    display.begin(stage)
    return pipeline.reproduce(stage)


@task(task_run_name="track {iteration}", cache_policy=NO_CACHE)
def track(trackers: list[Tracker], iteration: str, overhead: float, system: list[Sample]) -> None:
    """Log an iteration to MLflow, to Weights & Biases where that is on, and to the ledger."""
    for tracker in trackers:
        tracker.iteration(iteration, overhead, system)
    index(["000", iteration] if iteration == "001" else [iteration])


def index(iterations: list[str] | None) -> None:
    """Add iterations to the ledger's lineage; one that is away stops no run, for `make ledger` makes up for it."""
    from steps.lineage import index as lineage_index
    from steps.project.ledger import Ledger

    try:
        with Ledger() as ledger:
            lineage_index.index(Path.cwd(), ledger, iterations)
    except UserError as problem:
        display.say(f"The ledger was not written: {problem}; `make ledger` does it later.")


def open_trackers() -> tuple[MlflowTracker, list[Tracker]]:
    """MLflow's tracker, and all trackers: MLflow's first, whose metrics Weights & Biases gets."""
    from steps.tracking import tracker, wandb

    display.begin("opening MLflow's store")
    mlflow = tracker.start(Path.cwd(), log_message)
    weights_and_biases = wandb.start(mlflow.root, mlflow.params, mlflow.metrics, log_message)
    return mlflow, [mlflow, weights_and_biases] if weights_and_biases else [mlflow]


def log_message(text: str) -> None:
    """Show a line of tracking, such as that a host does not take traces, in the log and on the terminal."""
    line = f"tracking: {masked(text)}"
    print(line, flush=True)
    display.say(line)


@flow(name="train", log_prints=False)
def train() -> dict[str, Any]:
    """Train on the task of params.yaml. What summary.json says."""
    return train_here()


@flow(name="train", log_prints=False)
def deployed(settings: TrainSettings) -> dict[str, Any]:
    """Train in the worktree that the deployment's pull step made, when this machine has room for another run."""
    from prefect import get_run_logger
    from prefect.concurrency.sync import concurrency

    prepare()
    with concurrency(LIMIT, occupy=1, strict=True), workspace(), display.shown(LOG, get_run_logger()):
        try:
            choose_task(settings.chosen)
            set_params(settings.assignments())
            return train_here()
        except Exception as problem:  # on the run's page stands what the command would say
            raise UserError(sentence(problem)) from problem
        finally:
            end_worker()


def train_here() -> dict[str, Any]:
    """The flow, in the folder of the project or in a worktree. MLflow's run of it never stays RUNNING when it ends."""
    started = time.monotonic()
    mlflow, trackers = open_trackers()
    try:
        return _train(mlflow, trackers, started)
    except BaseException as problem:
        for tracker in trackers:
            tracker.finish("FAILED" if isinstance(problem, Exception) else "KILLED")
        raise


def _train(mlflow: MlflowTracker, trackers: list[Tracker], started: float) -> dict[str, Any]:
    known = mlflow.params
    chain.write_chain(1, 1)
    run_stage("scenarios")
    run_stage("initialise")
    run_stage(f"evaluate@{chain.BASE}")
    curve = [report.point(0)]
    display.row(curve[0], None, None)
    gc.freeze()  # a full collection of all that the tools' imports left takes 0.15 s
    tracked = None  # the iteration before, while the next one samples
    with system_metrics.sampled() as drain:
        for iteration in range(1, known.train.iterations + 1):
            chain.write_chain(iteration, best(curve).iteration or iteration)
            tracked = iterate(iteration, curve, trackers, tracked, drain, known.train.iterations)
            if iteration - best(curve).iteration >= known.train.patience:
                display.say(f"Validation has not improved for {known.train.patience} iterations: training ends here.")
                break
    if tracked is not None:
        tracked.result()
    chosen = best(curve).iteration
    chain.write_chain(len(curve) - 1, chosen)
    for stage in ("test@base", "test@best"):
        run_stage(stage)
    decided = run_stage("register")
    report.draw(curve, chosen, RUN / "learning_curve.png")
    for tracker in trackers:
        tracker.finish()
    mlflow.log_artifact(RUN / "learning_curve.png")
    index([chain.BASE, name(chosen)])
    pages.end(RUN / "learning_curve.png", mlflow.where())
    found = finish(known.task, chosen, len(curve) - 1, started)
    if decided and found["registered"]:
        pages.challenger(**found["registered"])
    return found


def iterate(
    iteration: int,
    curve: list[Point],
    trackers: list[Tracker],
    tracked: PrefectFuture[None] | None,
    drain: Callable[[], list[Sample]],
    iterations: int,
) -> PrefectFuture[None]:
    """One iteration; its point is appended to the curve. It is tracked beside the next one: the future says when it is."""
    started = time.monotonic()
    ran = {stage: run_stage(f"{stage}@{name(iteration)}") for stage in OUTPUTS}
    curve.append(report.point(iteration))
    seconds = report.seconds(iteration)
    now = sum(spent for stage, spent in seconds.items() if ran[stage])  # after an interrupt some ran before
    if tracked is not None:
        tracked.result()
    future = track.submit(trackers, name(iteration), time.monotonic() - started - now, drain())
    if any(ran.values()):
        report.keep_overhead(iteration, time.monotonic() - started - now)
    row = report.iteration_row(iteration)
    pages.iteration(curve, row, iterations)
    display.row(curve[-1], row["reward"], sum(seconds.values()) + (row["overhead_seconds"] or 0))
    return future


def best(curve: list[Point]) -> Point:
    """The iteration with the highest validation success, then reward, then the earliest. The base only before the first."""
    return max(curve[1:] or curve[:1], key=lambda point: (point.success, point.reward, -point.iteration))


def finish(task: str, chosen: int, iterations: int, started: float) -> dict[str, Any]:
    from steps.registry.versions import registered_version

    receipt = report.read(RUN / "receipt.json")
    version = registered_version(receipt["name"], receipt["adapter_hash"]) if receipt["registered"] else None
    found = report.summary(task, chosen, iterations, version, time.monotonic() - started)
    (RUN / "summary.json").write_text(json.dumps(found, indent=2) + "\n")
    return found


def print_end(found: dict[str, Any]) -> None:
    """The result, and the three commands that come next."""
    say = display.say
    say("")
    for who in ("base", "trained"):
        low, high = found[who]["ci95"]
        say(
            f"{who:>8}: test success {found[who]['success']:.3f} [{low:.3f}, {high:.3f}] of {found[who]['n']} scenarios"
        )
    entry = found["registered"]
    iteration = found["trained"]["iteration"]
    if entry:
        say(f"Registered iteration {iteration} as models:/{entry['name']}/{entry['version']}.")
    else:
        say(f"Not registered: {report.read(RUN / 'receipt.json')['reason']}.")
    say(
        f"Learning curve: {RUN / 'learning_curve.png'}   summary: {RUN / 'summary.json'}   ({found['wall_seconds']:.0f} s)"
    )
    say("\nNext:")
    say(f"  .venv/bin/python -m steps.analytics.transcripts run/{name(iteration)}/test      read what the agent did")
    say("  make mlflow                                    compare iterations and runs, open the registry")
    say(
        "  make reproduce                                 what is stale? everything again with ARGS=--force: same bytes"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.train", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--task", help="the task to train on; another than before begins with its preset")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change params.yaml first")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved parameters and stop")
    options = parser.parse_args()

    def work() -> int:
        if options.task:
            choose_task(options.task)
        if options.set:
            set_params(options.set)
        known = params.load("params.yaml", params.Params)
        if options.dry_run:
            print(known.model_dump_json(indent=2, by_alias=True))
            return 0
        prepare()
        print(f"train: {known.task}, {known.policy.base_model}; log: {LOG}", flush=True)
        with display.shown(LOG):
            display.begin("starting Prefect")
            found = train()
        print_end(found)
        return 0

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
