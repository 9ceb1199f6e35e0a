"""The keys `task` and `tasks` of params.yaml: names of tasks, and how batches are shared out among several."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from environments.kit.shares import PLUS, shares

if TYPE_CHECKING:
    from steps.core.params import Params


def check_tasks(params: Params) -> None:
    """ValueError for what is no name, for a task beside `tasks`, and for settings that speak of a single task."""
    if params.tasks is None:
        if PLUS in params.task:
            each = ", ".join(f"{name}: 1" for name in params.task.split(PLUS))
            raise ValueError(f"task: {params.task[:80]!r} are several tasks: write `tasks: {{{each}}}` in its place")
        check_name("task", params.task)
        return
    for name in params.tasks:
        check_name("tasks", name)
    if len(params.tasks) < 2:
        raise ValueError("tasks: name two tasks at least, each with its weight; a single one is `task: <name>`")
    if min(params.tasks.values()) < 1:
        raise ValueError(f"tasks: the weights must be whole numbers from 1 on, not {min(params.tasks.values())}")
    joined = PLUS.join(sorted(params.tasks))
    if "task" in params.model_fields_set and params.task != joined:
        raise ValueError(f"task ({params.task[:80]}) and tasks ({joined}) cannot both be set: take one of the two out")
    object.__setattr__(params, "task", joined)
    weights = dict(sorted(params.tasks.items()))
    for key, count in {
        "rollout.scenarios": params.rollout.scenarios,
        **{f"scenarios.{split}": getattr(params.scenarios, split) for split in ("train", "val", "test")},
    }.items():
        if forgotten := [name for name, weight in weights.items() if count * weight < sum(weights.values())]:
            raise ValueError(
                f"{key} ({count}) leaves {forgotten[0]} less than one scenario, by its weight in tasks: raise {key} to "
                f"{-(-sum(weights.values()) // weights[forgotten[0]])} at least, or the weight"
            )
    of_train = shares(weights, params.scenarios.train)
    for name, weight in weights.items():
        if (most := -(-params.rollout.scenarios * weight // sum(weights.values()))) > of_train[name]:
            raise ValueError(
                f"rollout.scenarios ({params.rollout.scenarios}) takes up to {most} of {name}, which has {of_train[name]} "
                f"of scenarios.train ({params.scenarios.train}): raise scenarios.train"
            )


def check_name(key: str, name: str) -> None:
    """ValueError for what is no name of a task. dvc.yaml writes it into the commands and paths of stages, so it holds
    nothing that a shell would read."""
    if not re.fullmatch(r"\w+(\.\w+)*|\w+:[\w-]+(\.\w+)?(\?[\w=.&-]+)?", name, re.ASCII):
        raise ValueError(
            f"{key}: {name[:80]!r} is no name of a task: letters, digits and _ only, with dots for a module elsewhere "
            "(email_search, my_package.my_task), or a package's environment (gymnasium:Taxi-v4)"
        )


def short_name(task: str) -> str:
    """A task's name where dots, colons and the like have a meaning of their own, as in the registry."""
    return re.sub(r"[^\w-]+", "_", task) if ":" in task else task.rpartition(".")[2]
