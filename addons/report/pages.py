"""What Prefect's pages show of a run: a table of its iterations, its progress, the learning curve, and what the agent did.
All of it is masked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.report import curve
from flows.deployment.artifacts import challenger, rename, show_picture, shown
from flows.terminal.report import RUN, Point
from steps.core.masking import Masker, masked
from steps.project.chain import iteration_name

if TYPE_CHECKING:
    from steps.tracking.tracker import MlflowTracker

SAMPLES = 2  # trajectories shown of each iteration: the best and the worst
LONGEST = 1500  # characters shown of a message


@shown
def iteration(points: list[Point], row: dict[str, Any], iterations: int) -> None:
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
        for point in points
    ]
    of = f", intervals of {points[-1].counted}" if points[-1].counted else ""
    note = f"train reward of the last batch {row['reward']:+.3f}, {row['tokens_per_second']} tokens/s{of}"
    create_table_artifact(table, key="iterations", description=note)
    create_progress_artifact(100.0 * row["iteration"] / iterations, key="progress", description="of the iterations")
    text = samples(row["iteration"])
    create_markdown_artifact(text, key="trajectories", description="the best and the worst of the batch")


def draw(points: list[Point], best: int, picture: Path) -> None:
    """Draw the learning curve, with the success of others."""
    curve.draw(points, best, picture, curve.references())


def end(picture: Path, tracker: MlflowTracker) -> None:
    """Show the learning curve, and where MLflow has the run, whose name the flow run takes."""
    if tracker.run_name:
        rename(tracker.run_name)
    learned(picture, tracker.where())


@shown
def learned(picture: Path, where: str) -> None:
    from prefect.artifacts import create_markdown_artifact

    show_picture(picture, "learning-curve", "learning curve")
    create_markdown_artifact(masked(f"{where}\n"), key="mlflow", description="where the run is tracked")


def result(lines: list[str], new: Mapping[str, str] | None) -> None:
    """Show the result of the tests, and tell Prefect of a version that is `new` in the registry, by name and version."""
    tested("\n".join(lines))
    if new:
        challenger(new["name"], new["version"])


@shown
def tested(text: str) -> None:
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(masked(indented(text)), key="result", description="the result on the test split")


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
