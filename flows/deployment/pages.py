"""What Prefect's pages show of a run: a table of its iterations, its progress, the learning curve, and what the agent did.

Nothing is made without a server that keeps it (PREFECT_API_URL). A failing artifact ends no run, and after one that
took longer than PATIENCE no more are made. All of them are masked.
"""

from __future__ import annotations

import base64
import functools
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec
from uuid import UUID

from flows.terminal.command import TakesTooLong, limit
from flows.terminal.report import RUN, Point
from steps.core.masking import Masker, masked
from steps.project.chain import iteration_name

SAMPLES = 2  # trajectories shown of each iteration: the best and the worst
LONGEST = 1500  # characters shown of a message
PATIENCE = 20.0  # seconds for an artifact
HANGS = threading.Event()  # set once an artifact has taken longer
CHALLENGER = "flywheel.challenger.new"  # the Prefect event for a new version


Words = ParamSpec("Words")


def shown(make: Callable[Words, None]) -> Callable[Words, None]:
    """Call `make` only where a server keeps the flow run. Its error becomes a warning in the flow run's log."""

    @functools.wraps(make)
    def guarded(*words: Words.args, **options: Words.kwargs) -> None:
        if os.environ.get("PREFECT_API_URL") and not HANGS.is_set():
            try:
                with limit(PATIENCE):
                    make(*words, **options)
            except (Exception, TakesTooLong) as problem:
                if isinstance(problem, TakesTooLong):
                    HANGS.set()
                logger = logging.getLogger("prefect.flow_runs")
                logger.warning("an artifact of this run was not kept: %s", masked(str(problem)))

    return guarded


@shown
def iteration(curve: list[Point], row: dict[str, Any], iterations: int) -> None:
    """Show the table so far, how far the run is, and two trajectories of the latest iteration."""
    from prefect.artifacts import create_markdown_artifact, create_progress_artifact, create_table_artifact

    table = [
        {
            "iteration": point.iteration or "base",
            f"validation {point.measure}": f"{point.success:.3f}",
            "95 % interval": f"{point.ci95[0]:.3f} to {point.ci95[1]:.3f}",
            "sampled success": "" if point.sampled is None else f"{point.sampled:.3f}",
            "validation reward": "" if point.reward is None else f"{point.reward:+.3f}",
        }
        for point in curve
    ]
    of = f", intervals of {curve[-1].counted}" if curve[-1].counted else ""
    note = f"train reward of the last batch {row['reward']:+.3f}, {row['tokens_per_second']} tokens/s{of}"
    create_table_artifact(table, key="iterations", description=note)
    create_progress_artifact(100.0 * row["iteration"] / iterations, key="progress", description="of the iterations")
    text = samples(row["iteration"])
    create_markdown_artifact(text, key="trajectories", description="the best and the worst of the batch")


@shown
def end(curve: Path, where: str) -> None:
    """Show the learning curve, and where MLflow has the run."""
    from prefect.artifacts import create_markdown_artifact

    show_picture(curve, "learning-curve", "learning curve")
    create_markdown_artifact(masked(f"{where}\n"), key="mlflow", description="where the run is tracked")


@shown
def result(lines: list[str]) -> None:
    """Show the result of the tests, and what was registered."""
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(
        masked(indented("\n".join(lines))), key="result", description="the result on the test split"
    )


@shown
def rename(name: str) -> None:
    """Give the flow run the name of the run that it makes, which may have been chosen in the form."""
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    if flow_run.id and flow_run.name != name:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(flow_run.id), name=name)


def origin() -> dict[str, str]:
    """Tags that lead from MLflow to Prefect's flow run, and to its page where a server keeps it. Empty outside a flow."""
    from prefect.runtime import flow_run

    if not flow_run.id:
        return {}
    page = {"prefect_flow_run_url": str(flow_run.ui_url)} if os.environ.get("PREFECT_API_URL") else {}
    return {"prefect_flow_run_id": str(flow_run.id), **page}


def show_picture(png: Path, key: str, description: str) -> None:
    """Show a picture."""
    from prefect.artifacts import create_image_artifact

    encoded = base64.b64encode(png.read_bytes()).decode()
    create_image_artifact(f"data:image/png;base64,{encoded}", key=key, description=description)


@shown
def challenger(name: str, version: str) -> None:
    """Tell Prefect of a new version in the registry: an automation (flows/deploy.py) starts `evaluate`."""
    from prefect.events import emit_event

    resource = {"prefect.resource.id": f"flywheel.model.{name}.{version}", "model": name, "version": str(version)}
    emit_event(CHALLENGER, resource=resource)


def samples(number: int) -> str:
    """The attempts of an iteration with the highest and the lowest reward, as markdown."""
    from environments.base import Scenario
    from steps.core.records import Reward, Trajectory, read_records

    folder = RUN / iteration_name(number)
    trajectories = {row.id: row for row in read_records(Trajectory, folder / "trajectories.parquet")}
    rewards = [row for row in read_records(Reward, folder / "rewards.parquet") if row.score is not None]
    scenarios = {row.id: row for row in read_records(Scenario, RUN / "scenarios" / "train.parquet")}
    ordered = sorted(rewards, key=lambda reward: reward.score or 0.0)
    extremes = [*ordered[:-SAMPLES:-1], *ordered[: SAMPLES - 1]]
    texts = [transcript(row, trajectories[row.trajectory_id], scenarios[row.scenario_id]) for row in extremes]
    return "\n\n".join(texts)


def transcript(reward: Any, trajectory: Any, scenario: Any) -> str:
    """One attempt as markdown. What an agent or a judge wrote is indented line by line, so that markup has no effect."""
    mask = Masker()
    heading = f"### {trajectory.id}: reward {reward.score:+.2f}{', success' if reward.success else ''}"
    lines = [heading, indented(mask.text(reward.explanation))]
    for message in map(mask, trajectory.messages(scenario)):
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = [f"{function['name']}({function['arguments']})" for function in functions]
        text = "\n".join([str(message.get("content") or ""), *calls]).strip()
        text = text if len(text) <= LONGEST else f"{text[:LONGEST]} [{len(text) - LONGEST} characters more]"
        lines.append(f"**{re.sub(r'[^a-z]', '', message['role'])}**\n\n{indented(text)}")
    return "\n\n".join(lines)


def indented(text: str) -> str:
    """A text as a block of code in markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines())
