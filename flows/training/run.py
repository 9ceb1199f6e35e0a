"""A training run as a Prefect flow: iterations until validation no longer improves, the tests, and the registration.

Each task runs one stage of dvc.yaml through DVC, which skips what is up to date. Training stops early when validation has
not improved for `train.patience` iterations, or the reward rises while success falls (port `watch`); the best
iteration, not the last, is registered. flows/train.py starts it by hand, and imports this only when all that could be
refused is checked; flows/training/deployed.py starts it from Prefect's pages.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import TerminationSignal

from flows.repro.pipeline import Pipeline
from flows.terminal import health, recorded, report
from flows.terminal.command import stop_if_signalled, undisturbed
from flows.terminal.display import RunDisplay
from flows.terminal.report import RUN, Point
from flows.training import ended, start
from flows.training.ending import best, ending, passed_over, result_lines, write_page, write_summary
from steps.core.errors import UserError, causes
from steps.core.masking import masked
from steps.core.params import Params, load
from steps.core.ports import every
from steps.core.records import ITERATION_STAGES, read_records
from steps.core.section import at
from steps.policy import machine
from steps.project import chain, store
from steps.project.chain import iteration_name

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

    from steps.tracking.lasting import LastingMlflow
    from steps.tracking.tracker import Sample, Tracker


@task(task_run_name="{stage}", cache_policy=NO_CACHE)
def run_stage(stage: str, pipeline: Pipeline, display: RunDisplay) -> bool:
    """Run one stage of dvc.yaml if it is stale: whether it ran."""
    stop_if_signalled()
    display.begin(stage)
    return pipeline.reproduce(stage)


@task(task_run_name="{stage}", cache_policy=NO_CACHE)
def run_beside(stage: str, pipeline: Pipeline, display: RunDisplay) -> bool:
    """The same in another thread, while the main one runs other stages. What it fails with is raised when it is needed."""
    display.begin_beside(stage)
    try:
        return pipeline.reproduce(stage, beside=True)
    except Exception:
        display.say(f"{stage} failed. What is under way goes on until {stage} is needed.")
        raise
    finally:
        display.end_beside()


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
    mlflow = lasting.LastingMlflow(tracker.MlflowTracker(Path.cwd(), log, name, recorded.origin()), log)
    return mlflow, [mlflow, *(lasting.Guarded(begin, mlflow.tracker) for begin in every("tracker"))]


def log_message(display: RunDisplay, text: str) -> None:
    """Show a line of tracking, such as that a host does not take traces, in the log and on the terminal."""
    line = f"tracking: {masked(text)}"
    print(line, flush=True)
    display.lack(line)


def train_here(display: RunDisplay, name: str = "") -> dict[str, Any]:
    """Train in the current folder, the project's or a worktree, by its params.yaml; the content of run/summary.json.

    With a name, MLflow's run has it. However it ends, its run in MLflow does not stay RUNNING.
    """
    started = time.monotonic()
    machine.use_one_arena()
    params = load("params.yaml", Params)
    beside, usual = dict[str, str](), dict[str, str]()
    for ahead in ahead_of(params):
        beside, usual, alone = ahead.worker(params, machine.gpus(), machine.cores())
        if alone:
            display.say(
                f"Stages run one after another, with the bytes of train.overlap: {lead(params)}, because {alone}."
            )
    importing = threading.Thread(target=store.import_ahead, daemon=True)
    importing.start()
    with store.variables(**usual):
        pipeline = Pipeline(Path.cwd(), beside, display.say)
        try:
            if not chain.fits(Path.cwd(), bool(params.tasks)):
                write_chain(params, 1, 1)
            pipeline.look()
            begin(params, partial(run_stage, pipeline=pipeline, display=display), display)
            importing.join()
            summary = _tracked(display, started, pipeline, name)
            if not display.lacks:
                ended.keep(name, pipeline.look)
            return summary
        except Exception as problem:
            if was_interrupted(problem):  # by whatever Ctrl-C met: Prefect must see it as what it is
                raise KeyboardInterrupt from problem
            raise


def was_interrupted(problem: BaseException) -> bool:
    """Whether a run ended by Ctrl-C, or by SIGTERM, of which Prefect makes its own exception."""
    return any(isinstance(link, KeyboardInterrupt | TerminationSignal) for link in causes(problem))


def begin(params: Params, run: Callable[[str], bool], display: RunDisplay) -> None:
    """The base policy's validation, and the choice of the way from there, which may add a section to params.yaml. To choose,
    iteration 001 may be sampled and scored here, which DVC then skips as up to date."""
    write_chain(params, 1, 1)
    for name in params.tasks or ():
        run(f"mix@{name}")
    for stage in ("scenarios", "initialise", f"evaluate@{chain.BASE}"):
        run(stage)
    display.row(base := report.point(0), None, None)
    if by_task := report.task_line(base):
        display.say(by_task)
    for line in health.lines(0):
        display.say(line)

    def play() -> None:
        for stage in [f"start@{chain.START}"] * (chain.START in start.origins(params)):
            run(stage)
        for stage in ("rollout", "score"):
            run(f"{stage}@{iteration_name(1)}")

    for choose in every("way"):
        choose(params, play, display.say)


def lead(params: Params) -> int:
    """By how many iterations rollouts run ahead of the updates."""
    return at(params, "train.overlap") or 0


def ahead_of(params: Params) -> list[Any]:
    """What runs them ahead, where params.yaml asks for that."""
    return list(every("ahead")) if lead(params) else []


def write_chain(params: Params, iterations: int, best: int | str) -> None:
    """Write chain.yaml for the parameters, up to an iteration."""
    mixed = params.task if params.tasks else ""
    chain.write_chain(iterations, best, lead(params), start.origins(params), mixed, start.opponent(params))


def _tracked(display: RunDisplay, started: float, pipeline: Pipeline, name: str) -> dict[str, Any]:
    """All stages after the base policy's validation, and what trackers get of them."""
    mlflow, trackers = open_trackers(display, name)
    try:
        return _iterations(mlflow, trackers, display, started, pipeline)
    except BaseException as problem:
        with undisturbed():
            for tracker in trackers:
                tracker.finish("KILLED" if was_interrupted(problem) else "FAILED")
        raise


def _iterations(
    mlflow: LastingMlflow, trackers: list[Tracker], display: RunDisplay, started: float, pipeline: Pipeline
) -> dict[str, Any]:
    """All iterations, and what comes after the last one."""
    params, pages = mlflow.tracker.params, list(every("pages"))
    overlap, iterations = lead(params), params.train.iterations
    origins, extend = start.origins(params), partial(write_chain, params)
    extend(1, 1)
    run = partial(run_stage, pipeline=pipeline, display=display)
    curve, begun = [report.point(0)], list[Point]()
    for origin in origins:
        run(f"{origin}@{origin}")
        run(f"evaluate@{origin}")
        display.say(report.origin_line(origin))
        begun.append(report.point(origin))
    watches = [watch(RUN, params) for watch in every("watch")]
    for watch in watches:
        watch.add(0)
        if watch.warning:
            display.say(watch.warning)
    gc.freeze()  # a full collection of all objects that imports made takes 0.15 s
    tracked = None  # the previous iteration, which is tracked while the next one samples
    chooses = at(params, "train.way") not in (None, "grpo")
    quiet = 0  # iterations in a row without a signal, where the run chose its way

    def submit(stage: str, before: PrefectFuture[bool] | None) -> PrefectFuture[bool]:
        """Begin a stage in another thread, after the one before it there."""
        return run_beside.submit(stage, pipeline, display, wait_for=[before] if before else None)

    sampled: Any = next(every("machine"), partial(nullcontext, list))
    with sampled() as drain, ExitStack() as stack:
        ahead = [stack.enter_context(each.Ahead(params, pipeline, submit)) for each in ahead_of(params)]
        loop = Loop(run, ahead, trackers, pages, drain, display, iterations)
        for iteration in range(1, iterations + 1):
            chosen = best(begun, curve)
            extend(min(iteration + overlap, iterations), iteration if chosen is curve[0] else chosen.name)
            tests = report.tests_seconds(iteration_name(iteration - 1), params.scenarios)
            display.begin_iteration(iteration, iterations, tests)
            for rollouts in ahead if pipeline.beside else ():
                rollouts.begin(iteration)
            tracked = iterate(loop, iteration, curve, tracked)
            if at(params, "train.tripwires") == "stop" and (seen := health.tripped(iteration)):
                raise UserError(
                    f"iteration {iteration} set off {len(seen)} tripwires ({', '.join(seen)}), and train.tripwires is stop: "
                    "the lines above say what was seen; mend it, or go on with --set train.tripwires=warn"
                )
            gc.collect()  # 0.02 s: what earlier stages left in cycles lies between what stays
            machine.return_memory()
            quiet = quiet + 1 if chooses and health.teaches_nothing(iteration) else 0
            alarms = [alarm for watch in watches if (alarm := watch.add(iteration))]
            if why := ending(begun, curve, alarms, params.train.patience, quiet):
                display.say(f"{why}: training ends here.")
                break
    display.end_iterations(report.tests_seconds(iteration_name(len(curve) - 1), params.scenarios))
    if tracked is not None:
        tracked.result()
    if why := passed_over(begun, curve):
        display.say(why)
    return _tested(mlflow, loop, begun, curve, started)


def _tested(
    mlflow: LastingMlflow, loop: Loop, begun: list[Point], curve: list[Point], started: float
) -> dict[str, Any]:
    """The tests of the best policy, its registration, and what is shown of the run."""
    params, display, chosen = mlflow.tracker.params, loop.display, best(begun, curve)
    write_chain(params, len(curve) - 1, chosen.name)
    for each in ahead_of(params):
        each.settle(len(curve) - 1, params)
    for stage in chain.tested_stages(Path.cwd()):
        loop.run(stage)
    registered = loop.run("register")
    count_look(display)
    picture = RUN / "learning_curve.png"
    for page in loop.pages:
        page.draw(curve, chosen.iteration, picture)
    for tracker in loop.trackers:
        tracker.finish()
    if loop.pages:
        mlflow.log_artifact(picture)
    for page in loop.pages:
        page.end(picture, mlflow.tracker)
    summary = write_summary(params.task, chosen, len(curve) - 1, started, display)
    write_page(params, summary, mlflow, display.say)
    if (new := summary["registered"]) and new["version"]:
        link = f"#/models/{new['name']}/versions/{new['version']}"
        mlflow.note(f"Registered as [{new['name']}, version {new['version']}]({link}).")
    for page in loop.pages:
        page.result(result_lines(summary), new if registered and new and new["version"] else None)
    return summary


class Loop(NamedTuple):
    """What every iteration of a run works with."""

    run: Callable[[str], bool]  # a stage, by its name; whether it ran
    ahead: Sequence[Any]  # the rollouts that run ahead of it, where there are some
    trackers: list[Tracker]
    pages: Sequence[Any]  # what shows the run elsewhere
    drain: Callable[[], list[Sample]]
    display: RunDisplay
    iterations: int  # of the run at most


def iterate(loop: Loop, iteration: int, curve: list[Point], tracked: PrefectFuture[None] | None) -> PrefectFuture[None]:
    """Run one iteration and append its point to the curve. Tracking goes on beside the next one: the future waits for it."""
    display, started = loop.display, time.monotonic()
    ran, waited = {}, dict[str, float]()
    for rollouts in loop.ahead:
        if rollouts.futures:
            ran["rollout"], waited["rollout"] = rollouts.result(iteration)
    ran |= {stage: loop.run(f"{stage}@{iteration_name(iteration)}") for stage in ITERATION_STAGES if stage not in ran}
    curve.append(report.point(iteration))
    seconds = report.seconds(iteration) | waited  # of a rollout that ran ahead only what it kept this iteration waiting
    now = sum(spent for stage, spent in seconds.items() if ran[stage])  # after an interrupt, some had run before
    if tracked is not None:
        tracked.result()
    overhead = time.monotonic() - started - now
    future = track.submit(loop.trackers, iteration_name(iteration), overhead, loop.drain(), display)
    if any(ran.values()):
        report.keep_overhead(iteration, time.monotonic() - started - now)
    row = report.iteration_row(iteration)
    for page in loop.pages:
        page.iteration(curve, row, loop.iterations)
    display.row(curve[-1], row["reward"], sum(seconds.values()) + (row["overhead_seconds"] or 0))
    if by_task := report.task_line(curve[-1]):
        display.say(by_task)
    for line in health.lines(iteration):
        display.say(line)
    return future


def count_look(display: RunDisplay) -> None:
    """Record that the run has looked at its test scenarios, whether or not it has registered what it tested there."""
    from environments.base import Scenario
    from steps.project.ledger import Ledger
    from steps.registry import looks

    receipt = report.read(RUN / "receipt.json")
    ids = [scenario.id for scenario in read_records(Scenario, RUN / "scenarios/test.parquet")]
    try:
        with Ledger(patience=5) as ledger:
            looks.tested(ledger, receipt["name"], ids, receipt["adapter_hash"])
    except UserError as problem:
        display.lack(f"The look at the test scenarios was not counted: {problem}; the same command again counts it.")


def title(params: Params, name: str) -> str:
    """The name of Prefect's flow run: the run's own, or what MLflow's run begins with."""
    from steps.tracking import tracker

    return name or str(masked(tracker.title(params)))
