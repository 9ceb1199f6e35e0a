"""Mixes scenarios from production into those that a task draws by itself (scenarios.ingested).

They are in start/scenarios.jsonl, a copy of ingested/<task>/scenarios.jsonl that DVC versions with the run (start.dvc) and
whose md5 is in params.yaml: another version is another run. The number of scenarios stays the same, so that a night's cost
does: `share` of a split's scenarios are replaced. Those of a split are whole clusters (`Env.cluster`), which a hash of their
names sends to validation or to training, the same ones every night. The test split stays the task's own: what went wrong in
production is tested by the regression set (flows/promotion/evaluations.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from steps.core.errors import UserError
from steps.data.contamination import pairs

if TYPE_CHECKING:
    from environments.base import Env, Scenario, Split
    from steps.core.params import Ingested, Scenarios

INGESTED = Path("ingested")  # has a folder for each task, which add-ons write
FILE = Path("start/scenarios.jsonl")
VALIDATION = 0.2  # share of clusters
MIXED: tuple[Split, ...] = ("train", "val")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON lines file; none where it does not exist. UserError names a line that is damaged."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line:
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise UserError(
                    f"{path}, line {number} is damaged: `.venv/bin/dvc checkout {path.parent}` brings back the last version"
                )
            rows.append(row)
    return rows


def read_scenarios(path: Path) -> list[Scenario]:
    """The scenarios of scenarios.jsonl or regression.jsonl, without their sources. UserError where a row is none."""
    from environments.base import Scenario

    try:
        return [Scenario.model_validate({k: v for k, v in row.items() if k != "source"}) for row in read_rows(path)]
    except ValidationError as problem:
        raise UserError(
            f"{path} holds a row that is no scenario ({problem.errors()[0]['msg']}): ingest again"
        ) from None


def md5(path: Path) -> str:
    """The version of a file, as scenarios.ingested.version has it and DVC counts it."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def read_version(settings: Ingested, path: Path = FILE) -> list[Scenario]:
    """The scenarios of the version that params.yaml names. UserError where the file is not here, or is another version."""
    if not path.is_file():
        raise UserError(
            f"scenarios.ingested: {path} is not here: `.venv/bin/dvc checkout {path.parent}.dvc` brings it back, and "
            "`make train` "
            "makes it anew of what was ingested"
        )
    if settings.version != (held := md5(path)):
        raise UserError(
            f"scenarios.ingested.version is {settings.version}, and {path} is {held}: `.venv/bin/dvc checkout "
            f"{path.parent}.dvc` "
            "brings the run's own back, and `make train` takes the version that is set"
        )
    return read_scenarios(path)


def mixed(
    env: type[Env],
    data: Any,
    own: Mapping[Split, Sequence[Scenario]],
    more: Sequence[Scenario],
    task: str,
    settings: Scenarios,
    seed: int,
) -> tuple[dict[Split, list[Scenario]], dict[str, int]]:
    """(the scenarios by split, how many of `more` are in each split, and how many could be in none).

    `share` of the task's own scenarios of train and val are replaced by as many of `more`, or by all of these where they are
    fewer. One that is there already is not taken again, nor one too much like a scenario of the other side."""
    assert settings.ingested is not None
    there = {scenario.id for scenarios in own.values() for scenario in scenarios}
    new: dict[Split, list[Scenario]] = {"train": [], "val": [], "test": []}
    for scenario in more:
        split = split_of(env.cluster(scenario, data))
        moved = scenario.make(scenario.task, split, scenario.messages, scenario.data)  # the split is part of the id
        if moved.id not in there:
            new[split].append(moved)
    held: dict[Split, Sequence[Scenario]] = {"val": own["val"], "test": own["test"]}
    while alike := {pair.training for pair in pairs(env, task, {"train": new["train"], **held}, settings)}:
        new["train"] = [scenario for scenario in new["train"] if scenario.id not in alike]
    training = [*own["train"], *new["train"]]
    sides: dict[Split, Sequence[Scenario]] = {"train": training, "val": new["val"], "test": []}
    alike = {pair.scenario for pair in pairs(env, task, sides, settings)}
    new["val"] = [scenario for scenario in new["val"] if scenario.id not in alike]
    made, counts = {split: list(scenarios) for split, scenarios in own.items()}, dict[str, int]()
    for split in MIXED:
        rng = Random(f"ingested {split} {seed}")
        count = counts[split] = min(round(settings.ingested.share * len(made[split])), len(new[split]))
        if count == 0:
            continue
        made[split] = [*made[split][: len(made[split]) - count], *rng.sample(new[split], count)]
        rng.shuffle(made[split])
    return made, counts | {"left_out": len(more) - len(new["train"]) - len(new["val"])}


def split_of(cluster: str) -> Split:
    """The split that a cluster of ingested scenarios belongs to, by a hash of its name."""
    place = int(hashlib.sha256(cluster.encode()).hexdigest()[:8], 16) / 16**8
    return "val" if place < VALIDATION else "train"
