"""A sentence about the name of a task that does not exist, and whether a task has tools. A name is checked without running
the task's module, unless it is a package's."""

from __future__ import annotations

import importlib.util

import environments
from environments.kit import mixed
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


def has_tools(name: str) -> bool:
    """Whether a task, or one of several, shows its policy tools. Environments of packages and agents of the user's own are
    taken to do so. UserError where the task's module cannot be loaded."""
    if ":" in name:
        return True
    try:
        env = environments.load(name)
        parts = list(mixed.parts(env).values()) or [env]
        return any(part.is_agent or part.tools() for part in parts)
    except (ValueError, ModuleNotFoundError, FileNotFoundError) as problem:
        raise UserError(f"task: {problem}") from None
