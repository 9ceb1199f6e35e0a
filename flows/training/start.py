"""What a run starts from: policy.start_from and the demonstrations of sft, brought together in start/, which DVC versions.

An address such as models:/email_search@champion means another adapter tomorrow. So it is resolved once, before anything of
the run is made: the adapter is copied to start/policy, the demonstrations to start/demonstrations.jsonl, and origin.json
says where they are from. start.dvc, which is kept with the run, holds their hash: `dvc checkout start.dvc` brings them back,
and the stages start and sft depend on them. A run that starts from nothing has neither.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from flows.deployment import workspace
from flows.training import sources
from flows.training.demonstrations import collect
from steps.core.errors import UserError
from steps.core.params import Params
from steps.core.yaml_text import read_mapping
from steps.project.chain import SFT, START
from steps.project.git import git

FOLDER, POINTER = Path("start"), Path(workspace.STARTED)
ORIGIN = "origin.json"


def origins(params: Params) -> list[str]:
    """The stages before iteration 001 that make what it continues: START, SFT, both or none."""
    return [START] * (params.policy.start_from is not None) + [SFT] * (params.sft is not None)


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
    if not origins(params):
        shutil.rmtree(FOLDER, ignore_errors=True)
        POINTER.unlink(missing_ok=True)
        return []
    if keep and (before := read_origin(Path())) and before["asked"] == asked and POINTER.exists():
        return described(before)
    root = Path(git(Path.cwd(), "rev-parse", "--path-format=absolute", "--git-common-dir")).parent
    temporary = Path(f".tmp-{os.getpid()}.start")
    try:
        temporary.mkdir()
        origin: dict[str, Any] = {"asked": asked}
        if params.policy.start_from is not None:
            origin["policy"] = sources.bring(root, params, temporary / "policy")
        if params.sft is not None:
            origin["demonstrations"] = collect(root, params, temporary / "demonstrations.jsonl")
        (temporary / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n")
        shutil.rmtree(FOLDER, ignore_errors=True)
        temporary.rename(FOLDER)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    workspace.dvc(Path.cwd(), "add", "--quiet", os.fspath(FOLDER))
    return described(origin)


def asked_for(params: Params) -> dict[str, Any]:
    """What decides what start/ holds, as JSON data."""
    asked: dict[str, Any] = {"start_from": params.policy.start_from, "start_optimizer": params.policy.start_optimizer}
    if params.sft is not None:
        kept = {"demonstrations", "from_runs", "min_reward"}
        asked["sft"] = params.sft.model_dump(mode="json", include=kept)
    return asked


def read_origin(root: Path) -> dict[str, Any] | None:
    """What start/ of a project's folder holds; None where there is none."""
    path = root / FOLDER / ORIGIN
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
    if demonstrations := origin.get("demonstrations"):
        counts = ", ".join(f"{count} of {name}" for name, count in demonstrations["from"].items())
        lines.append(f"learns from {demonstrations['rows']} demonstrations first: {counts}")
    return lines


def fork(name: str) -> tuple[str, list[str]]:
    """(the text of a kept run's params.yaml, the assignments that make a run start from that run's iteration), for
    `--from <run>/<NNN>`. UserError where there is no such run."""
    root = Path(git(Path.cwd(), "rev-parse", "--path-format=absolute", "--git-common-dir")).parent
    run, number = sources.named(name.removeprefix("run:"))
    made = sources.source(root, run)
    text = made.files.get("params.yaml") or git(root, "show", f"{made.commit}:params.yaml") + "\n"
    address = f"run:{run}/{number}" if number else f"run:{run}"
    changes = [f"policy.start_from={json.dumps(address)}", "policy.start_optimizer=true"]
    return text, [*changes, *(["sft=null"] if read_mapping(text, f"params.yaml of {run}").get("sft") else [])]
