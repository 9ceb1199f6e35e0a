"""Which scenarios are alike, as their task says (`Env.cluster`).

The stage scenarios writes the groups to run/scenarios/clusters.json, by scenario, so that what reads a run later needs
neither the task's code nor its data. Without that file, which older runs do not have, and where a task says nothing of what
is alike, each scenario is a group of its own, and there is no number of groups: texts then say that scenarios were taken as
independent (`steps.core.stats.counted`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.progress import say

if TYPE_CHECKING:
    from environments.base import Env, Scenario

FILE = "clusters.json"  # in run/scenarios


@dataclass(frozen=True)
class Groups:
    """The groups of alike scenarios."""

    names: Mapping[str, str]  # scenario id -> its group; empty where the task does not say which are alike

    def of(self, ids: Iterable[str]) -> list[str]:
        """The group of each scenario."""
        return [self.names.get(name, name) for name in ids]

    def count(self, ids: Iterable[str]) -> int | None:
        """How many groups these scenarios are of; None where the task does not say."""
        return len(set(self.of(ids))) if self.names else None


def groups_of(env: type[Env], scenarios: Sequence[Scenario], data: Any) -> Groups:
    """The groups of scenarios, from the task and its data."""
    names = clusters_of(env, scenarios, data)
    return Groups({} if names is None else dict(zip((each.id for each in scenarios), names, strict=True)))


def clusters_of(env: type[Env], scenarios: Sequence[Scenario], data: Any) -> list[str] | None:
    """The group of each scenario, in their order; None where the task does not say which are alike, or cannot say it of
    these scenarios, which is said."""
    if not says(env):
        return None
    try:
        return [str(env.cluster(scenario, data)) for scenario in scenarios]
    except LookupError as problem:  # scenarios of an older form, or other data
        say(f"each scenario counts as independent: {env.__name__} names no cluster of them ({problem!r})")
        return None


def named_clusters(task: str, scenarios: Sequence[Scenario]) -> list[str] | None:
    """The same by the task's name; None, too, where the task is not there to say it. UserError for its data."""
    import environments

    try:
        env = environments.load(task)
        return clusters_of(env, scenarios, env.load(environments.data_of(task)))
    except (FileNotFoundError, ValueError) as problem:
        raise UserError(str(problem)) from None
    except (ModuleNotFoundError, LookupError) as problem:
        say(f"each scenario counts as independent: {task} is not there to say which are alike ({problem!r})")
        return None


def says(env: type[Env]) -> bool:
    """Whether a task, or each of several, says which scenarios are alike: by `sources`, or by a `cluster` of its own."""
    from environments.base import Env

    return all(
        bool(each.sources) or each.cluster.__func__ is not Env.cluster.__func__
        for each in env.task_classes.values() or [env]
    )


def write(groups: Groups, folder: Path) -> None:
    """Write clusters.json into run/scenarios; nothing where the task does not say which scenarios are alike."""
    if groups.names:
        (folder / FILE).write_text(json.dumps(groups.names, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def read(folder: Path) -> Groups:
    """The groups that the stage scenarios wrote into this folder; of no scenario where there is no such file."""
    path = folder / FILE
    return Groups(json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})
