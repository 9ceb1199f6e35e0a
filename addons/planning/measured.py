"""What the last run in this folder measured: how long its episodes were, and how long its stages took.

Read are dvc.lock (the parameters of that iteration), run/NNN/timings/ and run/NNN/trajectories.parquet.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from addons.planning.workload import Episodes
from steps.core.params import Params
from steps.core.parquet import read_columns
from steps.core.records import ITERATION_STAGES
from steps.project.lock import read_lock


class Run(NamedTuple):
    """An iteration of the last run."""

    params: Params  # those of its stages
    episodes: Episodes
    seconds: dict[str, float]  # stage -> seconds of its own work


def last(root: Path) -> Run | None:
    """The latest iteration in run/ that is whole and that dvc.lock describes; None where there is none."""
    for folder in sorted(root.glob("run/[0-9][0-9][0-9]"), reverse=True):
        timings = {stage: folder / "timings" / f"{output}.json" for stage, output in ITERATION_STAGES.items()}
        trajectories = folder / "trajectories.parquet"
        if trajectories.exists() and all(path.exists() for path in timings.values()):
            lock = read_lock(root)
            recorded: dict[str, Any] = {}
            for name in (*(f"{stage}@{folder.name}" for stage in ITERATION_STAGES), "scenarios"):
                recorded |= lock.get(name, {}).get("params", {}).get("params.yaml", {})
            if "rollout" not in recorded:
                return None
            params = Params.model_validate(
                {key: value for key, value in recorded.items() if key in Params.model_fields}
            )
            seconds = {stage: float(json.loads(path.read_text())["seconds"]) for stage, path in timings.items()}
            return Run(params, episodes(trajectories), seconds)
    return None


def episodes(path: Path) -> Episodes:
    """The mean episode in a file of trajectories."""
    prompts, turns, sampled, observed = [], [], [], []
    for played in read_columns(path, ["turns"])["turns"].to_pylist():
        if not played:
            continue
        made = [len(turn["completion_ids"]) for turn in played]
        prompts.append(len(played[0]["prompt_ids"]))
        turns.append(len(played))
        sampled.append(sum(made))
        observed.append(len(played[-1]["prompt_ids"]) - prompts[-1] - sum(made[:-1]))
    mean = fmean(turns)
    answers = fmean(observed) / (mean - 1) if mean > 1 else 0.0
    return Episodes(fmean(prompts), mean, fmean(sampled) / mean, answers, f"as in {path}")
