"""Scenarios: what the policy will be asked, by split.

Reads a task's data, writes scenarios/{train,val,test}.parquet. The same seed gives the same scenarios. The splits share no
scenario, no source of answers, no opening and no wording: steps/data/contamination.py checks this, and writes its results to
scenarios/contamination.json. scenarios/clusters.json has the group of alike ones that each is of (steps/core/alike.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.progress import say
from steps.core.section import at
from steps.core.stats import counted
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from environments.base import Scenario, Split
    from steps.core.params import ScenariosParams

SPLITS: tuple[Split, ...] = ("train", "val", "test")


def scenarios(task_data: Input, scenarios: Output, params: ScenariosParams) -> None:
    """Write one file per split."""
    import json

    import environments
    from steps.core import alike
    from steps.core.ports import bring, names
    from steps.core.records import write_records
    from steps.data import contamination

    env = environments.load(params.task, params.tasks)
    data = env.load(task_data)
    drawn: dict[Split, list[Scenario]] = {}
    for split in SPLITS:
        try:
            count = getattr(params.scenarios, split)
            drawn[split] = checked(env.scenarios(data, split, count, params.seed), split, count)
        except ValueError as problem:
            raise UserError(f"scenarios.{split}: {problem}") from None
    if file := at(params, "scenarios.generated"):
        generated = bring("generated", "supervised", "scenarios.generated")
        for split, more in generated.read_generated(env, data, task_data / file).items():
            ids = {scenario.id for scenario in drawn[split]}
            drawn[split] += [scenario for scenario in more if scenario.id not in ids]
    for name in names("scenarios"):
        if getattr(params.scenarios, name, None) is not None:
            drawn = bring("scenarios", name, f"scenarios.{name}")(env, data, drawn, params)
    report = contamination.check(env, params.task, drawn, params.scenarios)
    every_id = [scenario.id for split in SPLITS for scenario in drawn[split]]
    if repeated := len(every_id) - len(set(every_id)):
        raise UserError(f"task {params.task}: {repeated} scenarios are in the splits more than once")
    if any(report["openings_seen"].values()):
        amounts = ", ".join(
            f"{report['openings_seen'][split]} of {len(drawn[split])} {split}" for split in contamination.HELD
        )
        say(
            f"warning: {amounts} scenarios begin with the very messages of a training one, as `openings_repeat` "
            "allows: success at them says less of what is new to the policy"
        )
    scenarios.mkdir()
    (scenarios / "contamination.json").write_text(json.dumps(report, indent=2) + "\n")
    for split in SPLITS:
        write_records(drawn[split], scenarios / f"{split}.parquet")
    groups = alike.groups_of(env, [scenario for split in SPLITS for scenario in drawn[split]], data)
    alike.write(groups, scenarios)
    sizes = [counted(len(own := drawn[split]), groups.count(each.id for each in own), split) for split in SPLITS]
    say("scenarios: " + "; ".join(sizes))


def checked(made: Any, split: Split, count: int) -> list[Scenario]:
    """What a task's `scenarios` returned. ValueError where it is no list of scenarios of this split, or empty."""
    from environments.base import Scenario

    kinds = (
        {type(each).__name__ for each in made if not isinstance(each, Scenario)} if isinstance(made, list) else set()
    )
    if kinds or not isinstance(made, list):
        what = f"a list with {min(kinds)}" if kinds else type(made).__name__
        raise ValueError(f"the task's `scenarios` returned {what}; it must return a list of Scenario")
    if not made:
        raise ValueError("the task's `scenarios` returned none of this split: write more data, or another split")
    if wrong := [each for each in made if each.split != split]:
        raise ValueError(
            f"the task's `scenarios` returned one of the split {wrong[0].split}: give `Scenario.make` its own"
        )
    if len(made) != count:
        say(
            f"warning: {split} has {len(made)} scenarios, and {count} were asked for: the task's `scenarios` made no other"
        )
    return made


if __name__ == "__main__":
    main(scenarios)
