"""What Prefect's pages show of a run: a table of its iterations, its progress, the learning curve, and what the agent did.

Only where there is a server to keep it (PREFECT_API_URL); a run does not end for want of a picture. What is shown is masked.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.terminal.report import RUN, Point
from steps.core.masking import Masker, masked
from steps.project.chain import iteration_name

SAMPLES = 2  # trajectories of an iteration that can be read: the best and the worst
LONGEST = 1500  # characters of a message that is shown
CHALLENGER = "flywheel.challenger.new"  # Prefect's event of a new version


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """An artifact that cannot be kept is a warning in the flow run's log."""
    try:
        yield
    except Exception as problem:
        logging.getLogger("prefect.flow_runs").warning("an artifact of this run was not kept: %s", masked(str(problem)))


def is_shown() -> bool:
    return bool(os.environ.get("PREFECT_API_URL"))


def iteration(curve: list[Point], row: dict[str, Any], iterations: int) -> None:
    """The table so far, and how far the run is."""
    if not is_shown():
        return
    from prefect.artifacts import create_markdown_artifact, create_progress_artifact, create_table_artifact

    with kept():
        table = [
            {
                "iteration": point.iteration or "base",
                "validation success": f"{point.success:.3f}",
                "95 % interval": f"{point.ci95[0]:.3f} to {point.ci95[1]:.3f}",
                "validation reward": f"{point.reward:+.3f}",
            }
            for point in curve
        ]
        note = f"reward of the last batch {row['reward']:+.3f}, {row['tokens_per_second']} tokens/s"
        create_table_artifact(table, key="iterations", description=note)
        create_progress_artifact(100.0 * row["iteration"] / iterations, key="progress", description="of the iterations")
        create_markdown_artifact(
            samples(row["iteration"]), key="trajectories", description="the best and the worst of the batch"
        )


def end(curve: Path, where: str) -> None:
    """The learning curve as a picture, and where MLflow has the run."""
    if not is_shown():
        return
    from prefect.artifacts import create_image_artifact, create_markdown_artifact

    with kept():
        picture = base64.b64encode(curve.read_bytes()).decode()
        create_image_artifact(f"data:image/png;base64,{picture}", key="learning-curve", description="learning curve")
        create_markdown_artifact(masked(f"{where}\n"), key="mlflow", description="where the run is tracked")


def challenger(name: str, version: str) -> None:
    """Tell Prefect of a new version in the registry: an automation (flows/deployment/automations.py) starts `evaluate`
    on it.
    """
    if not is_shown():
        return
    from prefect.events import emit_event

    with kept():
        known = {"prefect.resource.id": f"flywheel.model.{name}.{version}", "model": name, "version": str(version)}
        emit_event(CHALLENGER, resource=known)


def samples(number: int) -> str:
    """The attempts with the highest and the lowest reward of an iteration, to read."""
    from environments.base import Scenario
    from steps.core.records import Reward, Trajectory, read_records

    folder = RUN / iteration_name(number)
    played = {one.id: one for one in read_records(Trajectory, folder / "trajectories.parquet")}
    scored = [one for one in read_records(Reward, folder / "rewards.parquet") if one.score is not None]
    scenarios = {one.id: one for one in read_records(Scenario, RUN / "scenarios" / "train.parquet")}
    ordered = sorted(scored, key=lambda one: one.score or 0.0)
    chosen = [*ordered[:-SAMPLES:-1], *ordered[: SAMPLES - 1]]
    return "\n\n".join(transcript(one, played[one.trajectory_id], scenarios[one.scenario_id]) for one in chosen)


def transcript(reward: Any, trajectory: Any, scenario: Any) -> str:
    """One attempt as markdown. What it says is quoted line by line: no markup of its own."""
    mask = Masker()
    lines = [
        f"### {trajectory.id}: reward {reward.score:+.2f}{', success' if reward.success else ''}",
        mask.text(reward.explanation),
    ]
    for message in map(mask, trajectory.messages(scenario)):
        calls = [
            f"{one['function']['name']}({one['function']['arguments']})" for one in message.get("tool_calls") or ()
        ]
        text = "\n".join([str(message.get("content") or ""), *calls]).strip()
        text = text if len(text) <= LONGEST else f"{text[:LONGEST]} [{len(text) - LONGEST} characters more]"
        quoted = "\n".join(f"    {line}" for line in text.splitlines())
        lines.append(f"**{re.sub(r'[^a-z]', '', message['role'])}**\n\n{quoted}")
    return "\n\n".join(lines)
