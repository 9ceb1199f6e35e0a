"""What an iteration's stages wrote, and those before it: what the tripwires look at."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from steps.analytics import gaps
from steps.core import alike
from steps.core.evaluations import Evaluation
from steps.core.records import Reward, Trajectory, read_records
from steps.policy.adapter import adapter_hash


class Iteration:
    """The outputs of an iteration, and of those before it; files are read when a tripwire asks for them."""

    def __init__(self, run: Path, number: int) -> None:
        self.run, self.number = run, number
        self.folder = run / f"{number:03d}"
        self.earlier = [run / f"{place:03d}" for place in range(1, number)]

    @cached_property
    def batch(self) -> list[Trajectory]:
        return read_records(Trajectory, self.folder / "trajectories.parquet")

    @cached_property
    def groups(self) -> dict[str, list[Trajectory]]:
        """The attempts at each scenario."""
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in self.batch:
            groups.setdefault(trajectory.scenario_id, []).append(trajectory)
        return groups

    @cached_property
    def rewards(self) -> list[Reward]:
        return read_records(Reward, self.folder / "rewards.parquet")

    @cached_property
    def metrics(self) -> dict[str, Any]:
        return metrics(self.folder)

    @cached_property
    def evaluation(self) -> Evaluation:
        return evaluation(self.folder)

    @cached_property
    def adapters(self) -> set[str]:
        """The hashes of the adapters from before this iteration: of earlier ones, and of what the run began with."""
        later = {path for path in self.run.glob("[0-9]*") if path.name >= self.folder.name}
        folders = [path for path in self.run.iterdir() if path not in later and (path / "adapter").is_dir()]
        return {adapter_hash(path / "adapter") for path in folders}

    def gap(self, earlier: Path) -> tuple[float, float, float]:
        """(difference of validation success, low, high) since an earlier policy, whose folder this is."""
        now, before = (gaps.scores_of(folder / "evaluation") for folder in (self.folder, earlier))
        return gaps.difference(now, before, alike.read(self.run / "scenarios"), gaps.SURELY)

    def before(self, name: str) -> list[float]:
        """A metric of the earlier iterations that have it."""
        return [float(values[name]) for values in map(metrics, self.earlier) if name in values]


def metrics(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "metrics.json").read_text()))


def evaluation(folder: Path) -> Evaluation:
    return Evaluation.model_validate_json((folder / "evaluation/summary.json").read_text())
