"""A run's policies played in this process, without a server: by the run's own engine, as the stage evaluate plays them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.terminal import report
from steps.core import params
from steps.core.errors import UserError
from steps.project.chain import BASE

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.records import Trajectory


def policies(root: Path, task: str, why: str) -> dict[str, Path]:
    """The adapters of the run in run/, by what they are: the base policy's and the best one's. UserError, which begins with
    why no server is asked, where there is no finished run of this task."""
    path = root / report.RUN / "summary.json"
    cure = "`make train` makes one, and `make serve` serves the champion"
    if not path.exists():
        raise UserError(f"{why}, and there is no finished run in run/ to ask: {cure}")
    summary = report.read(path)
    if summary["task"] != task:
        raise UserError(f"{why}, and the run in run/ is of {summary['task']}, not of {task} (params.yaml): {cure}")
    folders = dict.fromkeys((BASE, report.tested(summary)))
    adapters = {f"{'base' if name == BASE else 'trained'} (run/{name})": root / report.RUN / name for name in folders}
    for who, folder in adapters.items():
        if not (folder / "adapter").is_dir():
            raise UserError(f"{why}, and the adapter of {who} is not here: `.venv/bin/dvc checkout` brings it back")
    return {who: folder / "adapter" for who, folder in adapters.items()}


def start_engine(settings: params.Params) -> None:
    """Load the engine, where it is one of this process. UserError where the policy has no adapter."""
    if not settings.policy.has_adapter:
        raise UserError(f"policy.kind: {settings.policy.kind} has no adapters, so there are no two policies to ask")
    if settings.policy.kind == "vllm":
        from steps.sampling import engine

        engine.get(settings.policy)


def play(
    root: Path, env: type[Env], data: Any, scenario: Scenario, adapters: dict[str, Path]
) -> dict[str, tuple[Trajectory, float]]:
    """An episode of each of these adapters, as the stage evaluate plays it, and its seconds."""
    import environments
    from steps.sampling import play as sampling
    from steps.sampling.job import Job

    settings = params.load(root / "params.yaml", params.EvaluateParams)
    folder = root / environments.data_of(settings.task)
    played = {}
    for who, adapter in adapters.items():
        begun = time.monotonic()
        job = Job(
            settings.policy, settings.evaluate, adapter, env, [(scenario, 0)], "ask", 0, data, folder,
            task=settings.task, settings=settings,
        )  # fmt: skip
        [trajectory] = sampling.play(job)
        played[who] = trajectory, time.monotonic() - begun
    return played
