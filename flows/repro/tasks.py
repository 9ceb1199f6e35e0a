"""A sentence about the name of a task that does not exist. No task's module is run, but a package's that has the task."""

from __future__ import annotations

import importlib.util

import environments
from steps.core.errors import UserError


def check_task(name: str) -> None:
    """UserError with the nearest name and all others where there is no such task. Several have a + between their names."""
    if "+" in name:
        for each in name.split("+"):
            check_task(each)
        return
    if ":" in name:
        try:
            environments.load(name)
        except (ValueError, ModuleNotFoundError) as problem:
            raise UserError(f"task: {problem}") from None
        return
    if "." in name:
        if not is_importable(name):
            raise UserError(
                f"task: there is no module {name}: start the command in a folder, or set PYTHONPATH to one, from which it "
                "can be imported"
            )
        return
    if name not in environments.tasks() and name != "mcp":
        raise UserError(f"task: {environments.no_task(name)}")


def is_importable(module: str) -> bool:
    """Whether a dotted module exists. The packages that it is in are imported, but not the module."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
