"""Scenarios: what the policy will be asked, by split.

Reads a task's data, writes scenarios/{train,val,test}.parquet. The same seed gives the same scenarios; the splits share
none, nor what answers come from, nor wording: steps/data/contamination.py checks it, and scenarios/contamination.json
says what was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.progress import say
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from environments.base import Scenario, Split
    from steps.core.params import ScenariosParams

SPLITS: tuple[Split, ...] = ("train", "val", "test")


def scenarios(task_data: Input, scenarios: Output, params: ScenariosParams) -> None:
    """Write a file a split."""
    import json

    import environments
    from steps.core.records import write_records
    from steps.data import contamination
    from steps.data.generated import read_generated

    env = environments.load(params.task)
    data = env.load(task_data)
    made: dict[Split, list[Scenario]] = {}
    for split in SPLITS:
        try:
            made[split] = env.scenarios(data, split, getattr(params.scenarios, split), params.seed)
        except ValueError as problem:
            raise UserError(f"scenarios.{split}: {problem}") from None
    if params.scenarios.generated:
        for split, more in read_generated(env, data, task_data / params.scenarios.generated).items():
            known = {one.id for one in made[split]}
            made[split] += [one for one in more if one.id not in known]
    report = contamination.check(env, params.task, made, params.scenarios)
    names = [scenario.id for split in SPLITS for scenario in made[split]]
    if len(set(names)) != len(names):
        raise UserError(
            f"task {params.task}: {len(names) - len(set(names))} scenarios are in the splits more than once"
        )
    scenarios.mkdir()
    (scenarios / "contamination.json").write_text(json.dumps(report, indent=2) + "\n")
    for split in SPLITS:
        write_records(made[split], scenarios / f"{split}.parquet")
    say(", ".join(f"{len(made[split])} {split}" for split in SPLITS) + " scenarios")


if __name__ == "__main__":
    main(scenarios)
