"""What a run starts from, brought together in start/, which DVC versions: the adapter of policy.start_from, the
champion that rollout.opponent seats, and what add-ons bring (port `material`): demonstrations, scenarios from production.

An address such as models:/email_search@champion means another adapter tomorrow. So it is resolved once, before anything of
the run is made: the adapter is copied to start/policy, the champion to start/champion, demonstrations to
start/demonstrations.jsonl, scenarios to start/scenarios.jsonl, and origin.json says where they are from. start.dvc, which is
kept with the run, holds their hash: `dvc checkout start.dvc` brings them back, and the stages that read them depend on them.
A run that starts from nothing has neither.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from flows.repro.parameters import set_params
from steps.core.errors import UserError
from steps.core.params import Params
from steps.core.params_tasks import short_name
from steps.core.ports import bring, every, names
from steps.core.section import at
from steps.project import kept_runs
from steps.project.chain import CHAMPION, SFT, START
from steps.project.dvc import dvc
from steps.project.git import git

FOLDER, POINTER = Path("start"), Path(kept_runs.STARTED)
ORIGIN = "origin.json"
DEMONSTRATIONS = "demonstrations.jsonl"  # in tasks_data/<task>/: looked for without being named


def origins(params: Params) -> list[str]:
    """The stages before iteration 001 that make what it continues: START, SFT, both or none."""
    return [START] * (at(params, "policy.start_from") is not None) + [SFT] * params.is_taught


def opponent(params: Params) -> int | str | None:
    """What the chain needs to know of rollout.opponent: after how many iterations it changes, or its folder; None: no
    adapter plays the other side."""
    asked = at(params, "rollout.opponent")
    if asked is None or not asked.is_adapter:
        return None
    return CHAMPION if asked.player == "champion" else asked.every


def champion_of(params: Params) -> str:
    """The address of the champion of the run's registered model."""
    name = params.register_.name or short_name(params.task)
    return f"models:/{name}@champion"


def prepare(params: Params, keep: bool = False) -> list[str]:
    """Make start/ and start.dvc in the current folder what these parameters say; lines that say what it holds.

    With `keep`, what an earlier attempt at the same run resolved stays. UserError where an address leads nowhere, and where
    an adapter is of another base model, rank or set of layers.
    """
    asked = asked_for(params)
    if FOLDER.is_dir() and any(FOLDER.iterdir()) and not (FOLDER / ORIGIN).exists():
        raise UserError(
            f"{FOLDER}/ is where a run keeps what it starts from, and holds something else: move it away, then run the same "
            "again"
        )
    if not asked:
        shutil.rmtree(FOLDER, ignore_errors=True)
        POINTER.unlink(missing_ok=True)
        return []
    before = read_origin(FOLDER)
    if keep and before and before["asked"] == asked and POINTER.exists():
        pin(params, before)
        return described(before)
    root = Path(git(Path.cwd(), "rev-parse", "--path-format=absolute", "--git-common-dir")).parent
    temporary = Path(f".tmp-{os.getpid()}.start")
    try:
        temporary.mkdir(mode=0o700)  # people's words may be in it
        origin: dict[str, Any] = {"asked": asked}
        if at(params, "policy.start_from") is not None:
            origin["policy"] = bring("source", "adapter", "policy.start_from").bring(root, params, temporary / "policy")
        if opponent(params) == CHAMPION:
            source = bring("source", "adapter", "rollout.opponent")
            origin["opponent"] = source.bring_champion(root, params, temporary / Path(CHAMPION).name)
        for name, brought in materials(params).items():
            origin[name] = brought.take(root, params, temporary)
        (temporary / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n")
        for check in every("start"):
            check(root, params, temporary)
        shutil.rmtree(FOLDER, ignore_errors=True)
        temporary.rename(FOLDER)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    dvc(Path.cwd(), "add", "--quiet", os.fspath(FOLDER))
    pin(params, origin)
    return described(origin)


def asked_for(params: Params) -> dict[str, Any]:
    """What decides what start/ holds, as JSON data."""
    asked: dict[str, Any] = {}
    if at(params, "policy.start_from") is not None:
        asked |= {name: at(params.policy, name) for name in ("start_from", "start_optimizer")}
    if opponent(params) == CHAMPION:
        asked["opponent"] = champion_of(params)
    for brought in materials(params).values():
        asked |= brought.asked(params)
    return asked


def materials(params: Params) -> dict[str, Any]:
    """What add-ons bring to start/, by its name in origin.json, where these parameters ask for it."""
    modules = {name: bring("material", name, "start") for name in names("material")}
    return {name: module for name, module in modules.items() if module.asked(params)}


def pin(params: Params, origin: dict[str, Any]) -> None:
    """Set in params.yaml what was open there and has been resolved: stages depend on it."""
    for name, brought in materials(params).items():
        if open_ones := brought.resolved(params, origin[name]):
            set_params(open_ones)


def read_origin(folder: Path) -> dict[str, Any] | None:
    """What a folder start/ holds; None where it does not say so."""
    path = folder / ORIGIN
    return dict(json.loads(path.read_text())) if path.is_file() else None


def described(origin: dict[str, Any]) -> list[str]:
    """What a run starts from, in words."""
    lines = []
    if policy := origin.get("policy"):
        named = "" if policy["resolved"] == policy["from"] else f" ({policy['from']})"
        optimizer = ", with its optimiser" if origin["asked"]["start_optimizer"] else ""
        lines.append(
            f"starts from {policy['resolved']}{named}: adapter {policy['adapter']}{optimizer}{policy['about']}"
        )
    if champion := origin.get("opponent"):
        lines.append(f"plays against {champion['resolved']}: adapter {champion['adapter']}{champion['about']}")
    brought = (name for name in names("material") if name in origin)
    return lines + [bring("material", name, "start").described(origin[name]) for name in brought]
