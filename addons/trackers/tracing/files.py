"""Reads the stored trajectories to trace, with their rewards, judgements, scenarios and times.

FLYWHEEL_TRACE_RATE is the share of scenarios that is traced. They are chosen by a hash of their id, so they are the same in
every iteration.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments.base import Scenario
from steps.core.errors import UserError
from steps.core.parquet import read_columns
from steps.core.records import Judgement, Reward, Trajectory, unpack

RATE = 0.05  # the default share of scenarios

Times = list[tuple[float, float, float]]  # asked, answered, ended of each turn; Unix seconds


def rate() -> float:
    """The share of scenarios that is traced, from FLYWHEEL_TRACE_RATE. UserError where that is no share."""
    text = os.environ.get("FLYWHEEL_TRACE_RATE") or str(RATE)
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        advice = "give the share of scenarios to trace, from 0 (none) to 1 (all)"
        raise UserError(f"FLYWHEEL_TRACE_RATE is {text}: {advice}")
    return share


def is_chosen(scenario_id: str, share: float) -> bool:
    """Whether a scenario is traced. A larger share includes the scenarios of a smaller one."""
    return int.from_bytes(hashlib.sha256(scenario_id.encode()).digest()[:8]) < share * 2**64


def read_batch(
    folder: Path, scenarios: Path, share: float, timings: Path
) -> Iterator[tuple[Scenario, Trajectory, Reward | None, Times | None, Judgement | None]]:
    """The traced episodes of a folder with trajectories and rewards; None where no times or no judgement were kept."""
    by_id = {scenario.id: scenario for scenario in read(Scenario, scenarios, "id", share)}
    trajectories = read(Trajectory, folder / "trajectories.parquet", "scenario_id", share)
    read_rewards = read(Reward, folder / "rewards.parquet", "scenario_id", share)
    rewards = {reward.trajectory_id: reward for reward in read_rewards}
    times, judgements = read_times(timings), read_judgements(folder / "judgements.jsonl", share)
    for trajectory in trajectories:
        moments = times.get(trajectory.fingerprint())
        if moments is not None and len(moments) != len(trajectory.turns):
            moments = None
        scenario_id = trajectory.scenario_id
        yield by_id[scenario_id], trajectory, rewards.get(trajectory.id), moments, judgements.get(scenario_id)


def read(kind: Any, path: Path, column: str, share: float) -> list[Any]:
    """The records of a file whose scenario, named in `column`, is traced."""
    import pyarrow as pa

    table = read_columns(path)
    if not table.num_rows:  # it has no columns then
        return []
    kept = table.filter(pa.array([is_chosen(name, share) for name in table[column].to_pylist()], pa.bool_()))
    return [kind.model_validate(unpack(row)) for row in kept.to_pylist()]


def read_judgements(path: Path, share: float) -> dict[str, Judgement]:
    """A model's judgement of each traced scenario, by scenario id; none where no model judges."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    judgements = [Judgement.model_validate_json(line) for line in lines if line]
    return {judgement.scenario_id: judgement for judgement in judgements if is_chosen(judgement.scenario_id, share)}


def read_times(path: Path) -> dict[str, Times]:
    """Times by the trajectory's fingerprint; none where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text())
        began = float(content["began"])
        return {
            name: [(began + asked, began + answered, began + ended) for asked, answered, ended in turns]
            for name, turns in content["turns"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
