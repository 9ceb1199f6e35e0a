"""Several tasks at once: `load("multiplication+tic_tac_toe")` is an environment made of those of the tasks.

Each scenario carries its task's name, and so everything about it is left to that task: `Mixed(scenario, data)` is an episode
of the scenario's own class, with its own tools and limits, and reward, success and the others are its own. So stages do the
same for one task as for several, but for three things, which belong to a batch and not to a scenario: the share of each
task (shares.py), the chat template with the tools of each (steps/sampling/engine.py), and results by task. For
those, `Env.task_classes` names the tasks.

Left out: agents of your own, tasks without a rule, a judge model with its one rubric, and scenarios or demonstrations from
elsewhere, which do not say of which task they are. Each task can still be trained on with them by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from environments.base import Component, Env, Message, Outcome, Scenario, Split, TaskProblem
from environments.kit.shares import PLUS, interleaved, shares


class Mixed(Env):
    """An episode of one of several tasks. A subclass says of which (`mixed`)."""

    folders: ClassVar[Mapping[str, str]]  # of the tasks' data, by the name that a task's scenarios carry
    weights: ClassVar[Mapping[str, int]]

    def __new__(cls, scenario: Scenario, data: Mapping[str, Any]) -> Any:
        """An episode of the scenario's own task, whose players it has. This class has no instances, and so no players."""
        return cls.of(scenario)(scenario, data[scenario.task])

    @classmethod
    def of(cls, scenario: Scenario) -> type[Env]:
        """The environment of a scenario's own task. TaskProblem where the task is none of these."""
        if scenario.task not in cls.task_classes:
            raise TaskProblem(
                f"scenario {scenario.id} is of the task {scenario.task}, and these tasks are "
                f"{', '.join(cls.task_classes)}: draw the scenarios again"
            )
        return cls.task_classes[scenario.task]

    @classmethod
    def load(cls, folder: Path) -> dict[str, Any]:
        """The data of each task, from its own folder in `folder`."""
        return {task: part.load(folder / cls.folders[task]) for task, part in cls.task_classes.items()}

    @classmethod
    def scenarios(cls, data: Mapping[str, Any], split: Split, count: int, seed: int) -> list[Scenario]:
        """Each task's share of `count`, drawn as the task draws so many for itself; spread evenly."""
        drawn: dict[str, list[Scenario]] = {}
        for task, share in shares(cls.weights, count).items():
            drawn[task] = cls.task_classes[task].scenarios(data[task], split, share, seed)
            if strange := [scenario for scenario in drawn[task] if scenario.task != task]:
                raise TaskProblem(
                    f"{cls.folders[task]} names the task of its scenarios {strange[0].task}: among several tasks it must be "
                    f"{task}, the name of its module (Scenario.make)"
                )
        return interleaved(drawn)

    @classmethod
    def has_player(cls, player: str) -> bool:
        return all(part.has_player(player) for part in cls.task_classes.values())

    @classmethod
    def lacks(cls, player: str) -> str:
        """That of the first task without the player."""
        return next(part.lacks(player) for part in cls.task_classes.values() if not part.has_player(player))

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        return cls.of(scenario).components(scenario, messages)

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        return cls.of(scenario).success(scenario, messages)

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        return cls.of(scenario).outcome(scenario, messages)

    @classmethod
    def cluster(cls, scenario: Scenario, data: Mapping[str, Any]) -> str:
        """The task's own group, under the task's name."""
        return f"{scenario.task}: {cls.of(scenario).cluster(scenario, data[scenario.task])}"

    @classmethod
    def anchor_state(cls, scenario: Scenario, messages: Sequence[Message]) -> str | None:
        return cls.of(scenario).anchor_state(scenario, messages)

    @classmethod
    def tools(cls) -> dict[str, Any]:
        """Nothing: tools are those of a scenario's own task. TypeError, so that no batch is played with those of none."""
        raise TypeError(
            f"{cls.__qualname__} has no tools of its own; ask each of its `task_classes` (environments/kit/mixed.py)"
        )

    @classmethod
    def lag(cls) -> int:
        """The longest of any task: the engine takes all answers of a batch so many steps later."""
        return max(part.lag() for part in cls.task_classes.values())

    @classmethod
    def decisions(cls, scenario: Scenario, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        return cls.of(scenario).decisions(scenario, messages)


@cache
def _made(load: Callable[[str], type[Env]], names: tuple[str, ...], weights: tuple[int, ...]) -> type[Mixed]:
    loaded = {name: load(name) for name in names}
    parts = {name.rpartition(".")[2]: env for name, env in loaded.items()}
    for name, env in loaded.items():
        if env.is_agent or not env.has_rule:
            why = "is an agent of your own" if env.is_agent else "has no rule"
            raise TaskProblem(f"tasks: {name} {why}, and such a task is trained on by itself: set `task: {name}`")
    if len(parts) < len(names):
        raise TaskProblem(
            f"tasks: {', '.join(names)}: two of them have the same name, which their scenarios would carry"
        )
    title = PLUS.join(names)
    fields = {
        "__module__": "environments",  # where another process finds it by its name
        "__qualname__": title,
        "__doc__": "\n\n".join(f"{task}: {env.describe(None)}" for task, env in parts.items()),
        "task_classes": parts,
        "folders": dict(zip(parts, names, strict=True)),
        "weights": dict(zip(parts, weights, strict=True)),
        "max_turns": max(env.max_turns for env in parts.values()),
        "openings_repeat": any(env.openings_repeat for env in parts.values()),
    }
    return type(title, (Mixed,), fields)


def mixed(
    load: Callable[[str], type[Env]], names: Sequence[str], weights: Mapping[str, int] | None = None
) -> type[Mixed]:
    """The environment of several tasks, which `load` loads by their full names; without `weights` all count the same. The
    same tasks and weights give the same class. TaskProblem for a task that cannot be one of several."""
    names = sorted(names)
    return _made(load, tuple(names), tuple((weights or {}).get(name, 1) for name in names))
