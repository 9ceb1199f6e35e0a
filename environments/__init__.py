"""The tasks: one module each, found by name.

`load("email_search")` returns the `Env` class that environments/email_search.py defines. A dotted name loads a module of
your own (`load("my_package.my_task")`).
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.base import Env


def tasks() -> list[str]:
    """The tasks that come with the project, but `mcp`, whose server and scenarios are yours. No task's module is run."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py") if path.stem not in ("base", "mcp"))


def load(task: str) -> type[Env]:
    """The environment class of a task. A ModuleNotFoundError or ValueError says what is missing and where."""
    from environments.base import Env

    name = task if "." in task else f"environments.{task}"
    module = importlib.import_module(name)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Env) and value.__module__ == name
    ]
    if len(classes) != 1:
        raise ValueError(f"{name} defines {len(classes)} environments; a task's module defines exactly one Env class")
    if lacking := sorted(classes[0].__abstractmethods__):
        raise ValueError(
            f"{name}: {classes[0].__name__} does not define {', '.join(lacking)}; see environments/_template.py"
        )
    return classes[0]
