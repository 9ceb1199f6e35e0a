"""What entries of dvc.lock and lines of files say to the lineage index: judges by their code, runs, sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.records import ITERATION_STAGES
from steps.project import chain, git
from steps.project.lock import Lock, digest


def source_of(line: str) -> str:
    """Where a demonstration is from; empty where its line does not say."""
    try:
        return str(json.loads(line)["source"])
    except (ValueError, LookupError, TypeError):
        return ""


def unreadable(path: str, what: str, reason: str) -> UserError:
    line = (reason.strip().splitlines() or [""])[0]
    advice = "`.venv/bin/dvc checkout` brings back what was recorded, `.venv/bin/dvc repro` makes it"
    return UserError(f"{path} holds no {what} ({line}); {advice}")


def code_judge(name: str, entry: dict[str, Any]) -> str:
    """The identity of a judge that is code: its name, and a hash of the code, task and parameters in dvc.lock. Older locks
    have the judge's own file, and of the task the list of its code or all of environments/, in place of the stage's list."""
    parameters = (entry.get("params") or {}).get("params.yaml") or {}
    code = {dep["path"]: dep.get("md5") for dep in entry.get("deps", [])}
    listed = "run/code/score.json"
    paths = (listed, f"steps/judging/{name}.py", f"steps/{name}.py")  # older locks have the second one, or the third
    own = next((code[path] for path in paths if path in code), None)
    if own is None:
        missing = f"dvc.lock records no code of the judge {name} ({listed} under the deps of score)"
        raise UserError(f"{missing}: the judge cannot be identified; `.venv/bin/dvc repro` scores again")
    task_code = code.get(listed) or code.get("run/task_code.json") or code.get("environments")
    parts = [task_code, own, task_of(parameters)]
    return f"{name}-{digest([*parts, (parameters.get('score') or {}).get(name)])}"


def task_of(parameters: dict[str, Any]) -> str | None:
    """The task by a stage's parameters in dvc.lock; of several tasks their names, with + between them."""
    return "+".join(sorted(parameters.get("tasks") or ())) or parameters.get("task")


def describe(root: Path, lock: Lock) -> dict[str, Any]:
    """The data of a run: its parameters, as dvc.lock recorded them for its first iteration, and the state of git."""
    names = ["scenarios", "initialise", *(f"{stage}@001" for stage in ITERATION_STAGES)]
    parameters: dict[str, Any] = {}
    for name in names:
        parameters |= (lock[name].get("params") or {}).get("params.yaml") or {}
    state, _ = git.git_state(root)
    path = root / "start" / "origin.json"
    origin = json.loads(path.read_text()) if chain.origins(root) and path.is_file() else {}
    data = {"task": task_of(parameters), "seed": parameters.get("seed"), "params": digest(parameters)}
    data |= {"start": {key: origin[key] for key in ("policy", "demonstrations") if key in origin}} if origin else {}
    return data | {"git_commit": state.get("git_commit"), "git_dirty": state.get("git_dirty") == "true"}
