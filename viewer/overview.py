"""Scenarios before and after training, and what the first page says of a run before its list: what training brought, its
learning curve, and scenarios that it fixed and broke.

The numbers are those that the stage evaluate wrote (summary.json): of the test split once the base policy and the best
iteration are tested, of validation until then. Of a run without an evaluated iteration there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from steps.core.evaluations import Evaluation
from steps.project import chain
from steps.project.chain import BASE
from viewer.charts import Chart, learning
from viewer.index import WORDS, ListRow, TrajectoryFile, line

SHOWN = 3  # scenarios that training fixed, and as many that it broke
CHANGES = ("fixed", "broken", "solved", "unsolved", "unscored")


class ScenarioChange(NamedTuple):
    """A scenario before and after."""

    before: ListRow
    after: ListRow
    change: str  # fixed or broken: success rose or fell; solved or unsolved: it stayed above 0 or at 0; unscored


def pairs(before: TrajectoryFile, after: TrajectoryFile) -> list[ScenarioChange]:
    """The scenarios in both batches, in the order of the first."""
    later = {group.scenario: group for group in after.groups}
    changes = []
    for group in before.groups:
        if group.scenario in later:
            first, second = (line(side, side.attempts, ()) for side in (group, later[group.scenario]))
            changes.append(ScenarioChange(first, second, change(first.success, second.success)))
    return changes


def change(before: float | None, after: float | None) -> str:
    """What became of a scenario, by its success before and after."""
    if before is None or after is None:
        return "unscored"
    if before == after:
        return "solved" if after else "unsolved"
    return "fixed" if after > before else "broken"


def evaluations(run: Path, kind: str = "evaluation") -> dict[str, Evaluation]:
    """The evaluations of a kind (evaluation: on validation; test) by iteration, and of what the iterations began with
    (start, sft). Those of a longer run before it are left out.

    One that is being written, or that another version wrote, is left out.
    """
    listed, results = chain.listed(run), dict[str, Evaluation]()
    paths = {path.parent.parent.name: path for path in run.glob(f"*/{kind}/summary.json")}
    for name in sorted(filter(chain.NAME.fullmatch, paths), key=chain.place):
        path = paths[name]
        if listed is None or name in listed:
            with suppress(OSError, ValueError):
                results[name] = Evaluation.model_validate_json(path.read_text())
    return results


class Overview(NamedTuple):
    """What the first page shows of a run above the list."""

    headline: str
    curve: Chart | None
    before: str  # the key of the base policy's batch
    after: str  # and of the best iteration's
    split: str  # validation or test
    changes: Mapping[str, tuple[int, Sequence[ScenarioChange]]]  # fixed, broken: how many, and the first SHOWN


def overview(run: Path, batches: Mapping[str, TrajectoryFile]) -> Overview | None:
    """The overview of the run in a folder; None until an iteration is evaluated."""
    shown, kind = evaluations(run), "evaluation"
    iterations = [name for name in shown if name != BASE]
    if BASE not in shown or not iterations:
        return None
    curve = learning(shown)
    # as flows.train chooses it
    best = max(iterations, key=lambda name: (shown[name].share, shown[name].reward or 0.0, -chain.place(name)))
    tests = evaluations(run, "test")
    # a run before this one in the same folder leaves tests of adapters of its own
    if all(name in tests and tests[name].adapter_hash == shown[name].adapter_hash for name in (BASE, best)):
        shown, kind = tests, "test"
    before, after = f"{BASE}/{kind}", f"{best}/{kind}"
    changed = pairs(batches[before], batches[after]) if {before, after} <= set(batches) else []
    by_change = {name: [pair for pair in changed if pair.change == name] for name in ("fixed", "broken")}
    return Overview(
        headline(shown[BASE], shown[best], best),
        curve,
        before,
        after,
        WORDS[kind],
        {name: (len(scenarios), scenarios[:SHOWN]) for name, scenarios in by_change.items()} if changed else {},
    )


def headline(base: Evaluation, trained: Evaluation, iteration: str) -> str:
    """Base policy and best iteration in one line, each with its 95 % interval."""
    if trained.judged is not None:  # the base policy is what it is compared with
        return f"{trained.sentence()} ({chain.label(iteration)})"
    (low, high), (least, most) = base.interval, trained.interval
    return (
        f"success {base.share:.3f} [{low:.3f}, {high:.3f}] → {trained.share:.3f} [{least:.3f}, {most:.3f}] of "
        f"{trained.counted} (base policy → {chain.label(iteration)})"
    )
