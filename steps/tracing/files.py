"""Trace files: which stored trajectories are traced, and what lies beside them: rewards, judgements, scenarios, times.

FLYWHEEL_TRACE_RATE is a share of the scenarios, chosen by a hash of their id: the same ones in every iteration.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.parquet import read_columns

if TYPE_CHECKING:
    from environments.base import Scenario
    from steps.core.records import Judgement, Reward, Trajectory

RATE = 0.05  # of the scenarios, by default

Times = list[tuple[float, float, float]]  # of each turn: asked, answered, done; Unix seconds


def rate() -> float:
    """FLYWHEEL_TRACE_RATE: the share of scenarios that is traced. UserError where it is none."""
    text = os.environ.get("FLYWHEEL_TRACE_RATE") or str(RATE)
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise UserError(
            f"FLYWHEEL_TRACE_RATE is {text}: give the share of scenarios to trace, from 0 (none) to 1 (all)"
        )
    return found


def is_chosen(scenario_id: str, share: float) -> bool:
    """Whether a scenario is traced; with a larger share, so are those of a smaller one."""
    return int.from_bytes(hashlib.sha256(scenario_id.encode()).digest()[:8]) < share * 2**64


def read_batch(
    folder: Path, scenarios: Path, share: float, timings: Path
) -> Iterator[tuple[Scenario, Trajectory, Reward | None, Times | None, Judgement | None]]:
    """The traced episodes of a folder with trajectories.parquet and rewards.parquet; times, judgements where there are."""
    from environments.base import Scenario
    from steps.core.records import Reward, Trajectory

    known = {one.id: one for one in read(Scenario, scenarios, "id", share)}
    played = read(Trajectory, folder / "trajectories.parquet", "scenario_id", share)
    rewards = {one.trajectory_id: one for one in read(Reward, folder / "rewards.parquet", "scenario_id", share)}
    times, said = read_times(timings), read_judgements(folder / "judgements.jsonl", share)
    for one in played:
        found = times.get(one.fingerprint())
        whole = found if found is not None and len(found) == len(one.turns) else None
        yield known[one.scenario_id], one, rewards.get(one.id), whole, said.get(one.scenario_id)


def read(kind: Any, path: Path, column: str, share: float) -> list[Any]:
    """The records of a file whose scenario is traced."""
    import pyarrow as pa

    from steps.core.records import unpack

    table = read_columns(path)
    if not table.num_rows:  # it has no columns then
        return []
    kept = table.filter(pa.array([is_chosen(name, share) for name in table[column].to_pylist()], pa.bool_()))
    return [kind.model_validate(unpack(row)) for row in kept.to_pylist()]


def read_judgements(path: Path, share: float) -> dict[str, Judgement]:
    """What a model made of the attempts at each traced scenario; none where no model judges."""
    from steps.core.records import Judgement

    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    found = [Judgement.model_validate_json(line) for line in lines if line]
    return {one.scenario_id: one for one in found if is_chosen(one.scenario_id, share)}


def read_times(path: Path) -> dict[str, Times]:
    """Times by fingerprint, in Unix seconds; none where the file is missing or not whole."""
    try:
        found = json.loads(path.read_text())
        began = float(found["began"])
        return {
            name: [(began + asked, began + answered, began + done) for asked, answered, done in turns]
            for name, turns in found["turns"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
