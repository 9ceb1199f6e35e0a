"""A training run that is started from Prefect's pages: in a worktree of its own, when this machine has room for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect import flow

from flows.deployment import artifacts, cards, workspace
from flows.deployment.settings import TrainSettings
from flows.repro import folder_lock
from flows.repro.parameters import set_params
from flows.terminal.command import LOG, explained, prepare
from flows.terminal.display import RunDisplay
from flows.training import start
from flows.training.ending import result_lines
from flows.training.run import train_here
from steps.core.errors import UserError
from steps.core.ports import every
from steps.runner import handover


@flow(name="train", log_prints=False)
def deployed(settings: TrainSettings) -> dict[str, Any]:
    """Train in the worktree that the deployment's pull step made, when this machine has room for another run."""
    prepare()
    with in_worktree() as (folder, display, gpus):
        return train_deployed(folder, display, gpus, settings.assignments(), settings.chosen)


@contextlib.contextmanager
def in_worktree() -> Iterator[tuple[Path, RunDisplay, contextlib.ExitStack]]:
    """Inside, a deployed run in its worktree, while this machine has room for it: the worktree, the display, and what the
    GPUs that it owns are entered into."""
    from prefect import get_run_logger
    from prefect.concurrency.sync import concurrency

    display = RunDisplay()
    place = concurrency(workspace.limit(), occupy=1, strict=True)
    with (
        place,
        workspace.workspace() as folder,
        folder_lock.held(folder, f"deployed run {folder.name}"),
        display.shown(LOG, get_run_logger()),
        contextlib.ExitStack() as gpus,  # given back when the worker, which holds their memory, has ended
    ):
        try:
            yield folder, display, gpus
        except Exception as problem:  # the run's page shows the sentence that the command would print
            raise UserError(explained(problem)[0]) from problem
        finally:
            handover.stop_workers(Path.cwd())


def train_deployed(
    folder: Path, display: RunDisplay, gpus: contextlib.ExitStack, assignments: list[str], task: str
) -> dict[str, Any]:
    """Train in a deployed run's worktree with these settings; the content of run/summary.json."""
    params = set_params(assignments, task=task)
    for check in every("preflight"):
        check(params)
    for line in start.prepare(params, keep=True):
        display.say(line)
    artifacts.rename(folder.name)
    gpus.enter_context(cards.owned(workspace.root_of(folder), cards.needed(folder / "params.yaml")))
    summary = train_here(display, folder.name)
    for line in result_lines(summary):
        display.say(line)
    return summary
