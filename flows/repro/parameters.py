"""Changes to params.yaml: a task's preset, and `--set key=value`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steps.core import params
from steps.core.errors import UserError


def choose_task(task: str) -> None:
    """A task other than params.yaml's: its preset, tasks_data/<task>.yaml, becomes params.yaml; without one, the name."""
    path, preset = Path("params.yaml"), Path("tasks_data") / f"{task.rpartition('.')[2]}.yaml"
    if path.exists() and params.load(path, params.Params).task == task:
        return
    if preset.is_file():
        params.load(preset, params.Params)
        path.write_text(preset.read_text())
    set_params([f"task={task}"])


def changes(assignments: list[str]) -> dict[str, Any]:
    """`key=value` pairs, the values read as YAML. UserError where there is no `=`."""
    from ruamel.yaml import YAML

    found = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator:
            raise UserError(f"--set {assignment}: give key=value, as in --set rollout.scenarios=8")
        found[key] = YAML(typ="safe").load(value)
    return found


def set_params(assignments: list[str], path: Path = Path("params.yaml")) -> None:
    """Write `key=value` pairs to the file, comments kept. UserError where the result is not valid: nothing is written."""
    from dvc.utils.serialize import modify_yaml

    before = path.read_text() if path.exists() else None
    for key, value in changes(assignments).items():
        with modify_yaml(path) as found:
            *folders, last = key.split(".")
            place = found
            for folder in folders:
                place[folder] = place.get(folder) or {}  # null, too, is where a section may begin
                place = place[folder]
            place[last] = value
    try:
        params.load(path, params.Params)
    except UserError:
        if before is not None:
            path.write_text(before)
        raise
