"""Scenarios: what the policy will be asked, by split.

Reads a task's data, writes scenarios/{train,val,test}.parquet. The same seed gives the same scenarios; the splits share
none, which is checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.stage import Input, Output, UserError, main, say

if TYPE_CHECKING:
    from environments.base import Split
    from steps.params import ScenariosParams

SPLITS: tuple[Split, ...] = ("train", "val", "test")


def scenarios(task_data: Input, scenarios: Output, params: ScenariosParams) -> None:
    """Write a file a split."""
    import environments
    from steps.types import write_records

    env = environments.load(params.task)
    data = env.load(task_data)
    made = {}
    for split in SPLITS:
        try:
            made[split] = env.scenarios(data, split, getattr(params.scenarios, split), params.seed)
        except ValueError as problem:
            raise UserError(f"scenarios.{split}: {problem}") from None
    names = [scenario.id for split in SPLITS for scenario in made[split]]
    if len(set(names)) != len(names):
        raise UserError(
            f"task {params.task}: {len(names) - len(set(names))} scenarios are in the splits more than once"
        )
    scenarios.mkdir()
    for split in SPLITS:
        write_records(made[split], scenarios / f"{split}.parquet")
    say(", ".join(f"{len(made[split])} {split}" for split in SPLITS) + " scenarios")


if __name__ == "__main__":
    main(scenarios)
