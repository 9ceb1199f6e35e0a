"""Brings scenarios from production to start/, and mixes them into those that a task draws by itself (scenarios.ingested).

They are in start/scenarios.jsonl, a copy of ingested/<task>/scenarios.jsonl that DVC versions with the run (start.dvc) and
whose md5 is in params.yaml: another version is another run. The number of scenarios stays the same, so that a night's cost
does: `share` of a split's scenarios are replaced. Those of a split are whole clusters (`Env.cluster`), which a hash of their
names sends to validation or to training, the same ones every night. The test split stays the task's own: what went wrong in
production is tested by the regression set (flows/promotion/evaluations.py).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from addons.production.section import Ingested
from steps.core.errors import UserError
from steps.core.progress import say
from steps.data.contamination import pairs
from steps.data.ingested import INGESTED, read_scenarios

if TYPE_CHECKING:
    from environments.base import Env, Scenario, Split
    from steps.core.params import Params, Scenarios, ScenariosParams

FILE = Path("start/scenarios.jsonl")
VALIDATION = 0.2  # share of clusters
MIXED: tuple[Split, ...] = ("train", "val")


def mix(
    env: type[Env], data: Any, drawn: dict[Split, list[Scenario]], params: ScenariosParams
) -> dict[Split, list[Scenario]]:
    """The scenarios that were drawn, with those of scenarios.ingested among them where params.yaml has it."""
    if (settings := Ingested.of(params)) is None:
        return drawn
    more = read_version(settings)
    made, counts = mixed(env, data, drawn, more, params.task, params.scenarios, settings.share, params.seed)
    say(f"from production: {counts['train']} train, {counts['val']} val; {counts['left_out']} of {len(more)} left out")
    return made


def md5(path: Path) -> str:
    """The version of a file, as scenarios.ingested.version has it and DVC counts it."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def read_version(settings: Ingested, path: Path = FILE) -> list[Scenario]:
    """The scenarios of the version that params.yaml names. UserError where the file is not here, or is another version."""
    if not path.is_file():
        raise UserError(
            f"scenarios.ingested: {path} is not here: `.venv/bin/dvc checkout {path.parent}.dvc` brings it back, and "
            "`make train` makes it anew of what was ingested"
        )
    if settings.version != (held := md5(path)):
        raise UserError(
            f"scenarios.ingested.version is {settings.version}, and {path} is {held}: `.venv/bin/dvc checkout "
            f"{path.parent}.dvc` brings the run's own back, and `make train` takes the version that is set"
        )
    return read_scenarios(path)


def mixed(
    env: type[Env],
    data: Any,
    own: Mapping[Split, Sequence[Scenario]],
    more: Sequence[Scenario],
    task: str,
    settings: Scenarios,
    share: float,
    seed: int,
) -> tuple[dict[Split, list[Scenario]], dict[str, int]]:
    """(the scenarios by split, how many of `more` are in each split, and how many could be in none).

    `share` of the task's own scenarios of train and val are replaced by as many of `more`, or by all of these where they are
    fewer. One that is there already is not taken again, nor one too much like a scenario of the other side."""
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
        count = counts[split] = min(round(share * len(made[split])), len(new[split]))
        if count == 0:
            continue
        made[split] = [*made[split][: len(made[split]) - count], *rng.sample(new[split], count)]
        rng.shuffle(made[split])
    return made, counts | {"left_out": len(more) - len(new["train"]) - len(new["val"])}


def split_of(cluster: str) -> Split:
    """The split that a cluster of ingested scenarios belongs to, by a hash of its name."""
    place = int(hashlib.sha256(cluster.encode()).hexdigest()[:8], 16) / 16**8
    return "val" if place < VALIDATION else "train"


def asked(params: Params) -> dict[str, Any]:
    """What decides which scenarios are brought, as JSON data."""
    settings = Ingested.of(params)
    return {} if settings is None else {"ingested": settings.version}


def take(root: Path, params: Params, folder: Path) -> dict[str, Any]:
    """Copy the scenarios of scenarios.ingested: the present ones, or the set version where start/ has it. UserError where
    there are none, or the version is not to be had."""
    from steps.project.kept_runs import STARTED

    settings = Ingested.of(params)
    assert settings is not None
    version, name = settings.version, INGESTED / params.task / "scenarios.jsonl"
    places = [path for path in (FILE, root / name) if path.is_file()]
    if version is None and not (root / name).is_file():
        raise UserError(
            f"scenarios.ingested: there is no {name}: `.venv/bin/python -m addons.production.ingest` makes it of "
            f"conversations, and `.venv/bin/dvc pull {name.parent}.dvc` brings one that others made"
        )
    wanted = version or md5(root / name)
    path = next((path for path in places if md5(path) == wanted), None)
    if path is None:
        raise UserError(
            f"scenarios.ingested.version {wanted} is neither in {FILE} nor the present {name}: "
            f"`.venv/bin/dvc checkout {STARTED}` brings back the version of the run that is checked out, and "
            "--set scenarios.ingested.version=null takes the present one"
        )
    rows = len(read_scenarios(path))
    if not rows:
        raise UserError(
            f"scenarios.ingested: {path} holds no scenario: ingest conversations whose right answer is known"
        )
    shutil.copyfile(path, folder / FILE.name)
    return {"version": wanted, "rows": rows}


def resolved(params: Params, entry: dict[str, Any]) -> list[str]:
    """The version, as an assignment to params.yaml, where it was open."""
    settings = Ingested.of(params)
    is_open = settings is not None and settings.version is None
    return [f"scenarios.ingested.version={json.dumps(entry['version'])}"] * is_open


def described(entry: dict[str, Any]) -> str:
    return f"mixes in scenarios from production: {entry['rows']}, version {entry['version']}"
