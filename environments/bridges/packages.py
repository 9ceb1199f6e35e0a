"""Tasks that other packages have: `package:name`, such as reasoning_gym:chain_sum or gymnasium:Taxi-v4.

Each package has an adapter, <package>.py, whose `make` gives the environment class of a name. The packages are
an extra of this project, except those in `APART`, which have an interpreter of their own. A task's data are two files that
`write` makes (`make train TASK=gymnasium:Taxi-v4` does): a rubric for judges, and package.json with the package's version.
Another version, which may make other scenarios of the same seeds, is then another run and not the same with other bytes.

    python -m environments.bridges.packages gymnasium:Taxi-v4     # writes tasks_data/gymnasium:Taxi-v4/
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from environments.base import Env

ADAPTERS = {  # the adapter of each name, and the packages that decide what it makes
    "gymnasium": ("gymnasium", "minigrid"),
    "pettingzoo": ("pettingzoo",),
    "reasoning_gym": ("reasoning-gym",),
    "textarena": ("textarena",),
    "verifiers": (),
    "openenv": (),
    "harness": (),
}
EXTRA = ("gymnasium", "minigrid", "pettingzoo", "reasoning_gym", "textarena")  # what the extra `environments` installs
APART = ("verifiers", "openenv")  # whose versions another interpreter has
VERSIONS = "package.json"
RUBRIC = """# {task}

An attempt is better the more of the goal it reaches by the package's own score, and among equals the fewer turns it takes.
Turns without an action make it worse.
"""


@cache  # each name has a single class
def load(task: str) -> type[Env]:
    """The environment class of `package:name`. ValueError for another package or name; ModuleNotFoundError with the command
    that installs a package."""
    package, _, name = task.partition(":")
    if package not in ADAPTERS or not name:
        raise ValueError(
            f"{task} is no task: before the colon stands one of {', '.join(ADAPTERS)}, and after it a name"
        )
    adapter = importlib.import_module(f"{__package__}.{package}")
    try:
        made: type[Env] = adapter.make(name)
    except ModuleNotFoundError as problem:
        missing = str(problem.name).partition(".")[0]
        how = (
            "of this project's extra `environments`: install it with `make install DEV=1`, or `.venv/bin/uv pip install "
            "--override requirements/overrides.txt '.[environments]'`"
            if missing in EXTRA
            else f"which {package} does not bring and this project does not lock: `.venv/bin/uv pip install {missing}`, or "
            "the extra of that package that has it"
        )
        raise ModuleNotFoundError(f"{task} needs the package {missing}, {how}", name=problem.name) from None
    return made


def versions(task: str) -> dict[str, str]:
    """The installed versions of the packages that make a task's scenarios."""
    package, _, name = task.partition(":")
    if package in APART:
        apart = importlib.import_module(f"{__package__}.apart")
        return dict(apart.child_of(*apart.key_of(package, *options_of(name))[0]).facts["versions"])
    installed = {}
    for each in ADAPTERS[package]:
        try:
            installed[each] = metadata.version(each)
        except metadata.PackageNotFoundError:
            continue
    return installed


def options_of(name: str) -> tuple[str, dict[str, Any]]:
    """A name without what follows its question mark, and that as arguments: `?size=8&is_slippery=true`."""
    bare, _, query = name.partition("?")
    return bare, {key: value(text) for key, _, text in (part.partition("=") for part in query.split("&") if part)}


def value(text: str) -> Any:
    """A number, true or false, or the text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return float(text) if re.fullmatch(r"-?\d+\.\d+", text) else int(text) if re.fullmatch(r"-?\d+", text) else text


def write(task: str, folder: Path) -> None:
    """Write a task's data. FileNotFoundError where they are the user's to write."""
    if (env := load(task)).is_agent:
        env.load(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / VERSIONS).write_text(json.dumps(versions(task), indent=2) + "\n", encoding="utf-8")
    if not (folder / "rubric.md").exists():
        (folder / "rubric.md").write_text(RUBRIC.format(task=task), encoding="utf-8")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m environments.bridges.packages PACKAGE:NAME")
    try:
        write(sys.argv[1], Path("tasks_data") / sys.argv[1])
    except (ValueError, ModuleNotFoundError, FileNotFoundError) as problem:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    main()
