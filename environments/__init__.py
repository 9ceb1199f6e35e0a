"""The tasks: a folder or a module each, loaded by name.

`load("email_search")` returns the `Env` class that environments/email_search/ defines. A dotted name loads a module of your
own (`load("my_package.my_task")`), and `package:name` an environment of another package (environments/bridges/packages.py;
`load("gymnasium:Taxi-v4")`). A module with a function `rollout` in place of an `Env` is an agent of your own
(environments/kit/agents.py); `from environments import Result` is what such a function may return. Names with a plus between
them are several tasks at once (environments/kit/mixed.py).

What tasks share is in base.py, the contract, and in kit/; bridges/ makes tasks of other packages' environments.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.kit.shares import PLUS

# What makes the class of a task that is no module of its own here: each is imported where a task needs it, and by its name.
SEVERAL, PACKAGES, AGENTS = "kit.mixed", "bridges.packages", "kit.agents"
NO_TASKS = {"base", "kit", "bridges", "mcp"}
# A module with an agent (a function `rollout` in place of an Env), or with an MCP server's tools.
NO_TOOLS = re.compile(r"^((async )?def rollout\(|class \w+\(Mcp\))", re.MULTILINE)

if TYPE_CHECKING:
    from environments.base import Env
    from environments.kit.values import Result as Result


def __getattr__(name: str) -> Any:
    """`Result`, which is imported only where it is used; and the class of several tasks by its name, as another process
    looks it up."""
    if PLUS in name:
        return load(name)
    if name != "Result":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from environments.kit.values import Result

    return Result


def tasks(agents: bool = True) -> list[str]:
    """The tasks in this folder but `mcp`, whose server is yours. Without agents, if so wanted, and without tasks with an MCP
    server's tools: neither has tools of its own. No task's module is run."""
    files = {path.stem: path for path in Path(__file__).parent.glob("[!_]*.py")}
    files |= {path.parent.name: path for path in Path(__file__).parent.glob("[!_]*/__init__.py")}
    names = sorted(files.keys() - NO_TASKS)
    return [name for name in names if agents or not NO_TOOLS.search(files[name].read_text(encoding="utf-8"))]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """ "; did you mean X?" with the nearest of these names, whatever the case and the dashes; empty where none is near."""
    from difflib import get_close_matches

    by_form = {each.lower().replace("-", "_"): each for each in names}
    near = get_close_matches(name.lower().replace("-", "_"), by_form, n=1)
    return f"; did you mean {by_form[near[0]]}?" if near else ""


class NoTask(ModuleNotFoundError):
    """There is no task of this name: a sentence, with which the command ends."""

    is_sentence = True


def data_of(task: str) -> Path:
    """The folder with a task's data. Of several tasks it is the one in which each has its own folder."""
    return Path("tasks_data") if PLUS in task else Path("tasks_data") / task


def no_task(name: str) -> str:
    """What is said of a name that no task has."""
    names = tasks()
    question = did_you_mean(name, names) or "."
    return f"there is no task {name}{question} The tasks are {', '.join(names)}; `make new-task NAME=…` makes another"


def made_by(name: str) -> Any:
    """One of the three modules."""
    return importlib.import_module(f"{__name__}.{name}")


def load(task: str, weights: Mapping[str, int] | None = None) -> type[Env]:
    """The environment class of a task, or of several with these weights. A ModuleNotFoundError or ValueError says what is
    missing and where."""
    from environments.base import Env

    made: type[Env]
    if PLUS in task:
        made = made_by(SEVERAL).mixed(load, task.split(PLUS), weights)
        return made
    if ":" in task:
        made = made_by(PACKAGES).load(task)
        return made
    name = task if "." in task else f"environments.{task}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is None or f"{name}.".startswith(f"{problem.name}."):
            if "." in task:
                raise
            raise NoTask(no_task(task), name=name) from None
        absent = f"{name} imports {problem.name}, which is not installed here"
        mend = "install it, or import it in `rollout` where the interpreter of agents.python alone has it"
        raise NoTask(f"{absent}: {mend}", name=problem.name) from None
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Env) and value.__module__ == name
    ]
    if not classes and hasattr(module, "rollout"):
        made = made_by(AGENTS).agent_env(module)
        return made
    if len(classes) != 1:
        raise ValueError(
            f"{name} defines {len(classes)} environments; a task's module defines exactly one Env class, or else a function "
            "rollout"
        )
    [env] = classes
    for method in ("reward", "success"):
        if callable(vars(env).get(method)):
            raise ValueError(f"{name}: {env.__name__}.{method} is of the class: write @classmethod above it")
    for field in ("sources", "secret", "shown"):
        if isinstance(text := getattr(env, field), str):
            raise ValueError(f'{name}: {env.__name__}.{field} is a text, and must be a tuple: ("{text}",)')
    lacking = sorted(env.__abstractmethods__)
    if env.reward.__func__ is Env.reward.__func__ and env.success.__func__ is Env.success.__func__:
        lacking.append("reward or success")
    if lacking:
        raise ValueError(f"{name}: {env.__name__} does not define {', '.join(lacking)}; see environments/_template.py")
    return env
