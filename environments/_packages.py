"""Tasks that other packages have: `package:name`, such as reasoning_gym:chain_sum or gymnasium:Taxi-v4.

Each package has an adapter, environments/_<package>.py, whose `make` gives the environment class of a name. The packages are
extras of this project.
"""

from __future__ import annotations

import importlib
from functools import cache

from environments.base import Env

ADAPTERS = ("gymnasium", "pettingzoo", "reasoning_gym", "textarena")


@cache  # each name has a single class
def load(task: str) -> type[Env]:
    """The environment class of `package:name`. ValueError for another package or name; ModuleNotFoundError with the command
    that installs a package."""
    package, _, name = task.partition(":")
    if package not in ADAPTERS or not name:
        raise ValueError(
            f"{task} is no task: before the colon stands one of {', '.join(ADAPTERS)}, and after it a name"
        )
    adapter = importlib.import_module(f"environments._{package}")
    try:
        made: type[Env] = adapter.make(name)
    except ModuleNotFoundError as problem:
        raise ModuleNotFoundError(
            f"{task} needs the package {problem.name}: install it with `make install EXTRAS=environments`",
            name=problem.name,
        ) from None
    return made
