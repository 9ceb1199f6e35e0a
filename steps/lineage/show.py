"""Prints the answers of steps/lineage/questions.py for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steps.lineage.questions import Ancestry, Impact
from steps.lineage.tables import SHORT, UNLINKED
from steps.registry.decisions import Decision
from steps.registry.model import Version

if TYPE_CHECKING:
    from rich.console import Console


def show_back(answer: Ancestry, console: Console) -> None:
    """Print the versions, a table with one row per adapter, the runs, and the verdicts and decisions."""
    console.print(f"{answer.model}: adapter {answer.adapter}{_names(answer.versions)}")
    table = _table("iteration", "adapter", "batch", "trajectories", "scenarios", "judges", "judge calls", "success")
    for step in answer.steps:
        splits = {evaluation["split"]: evaluation for evaluation in step.evaluations}
        success = ", ".join(f"{name} {splits[name]['success']:.3f} of {splits[name]['n']}" for name in sorted(splits))
        counts = [str(len(step.trajectories)), str(len(step.scenarios))]
        row = [_places(step.runs), step.adapter, ", ".join(md5[:SHORT] for md5 in step.batches), *counts]
        table.add_row(*row, ", ".join(step.judges), str(len(step.replies)), success)
    console.print(table)
    scenarios = {name for step in answer.steps for name in step.scenarios}
    trajectories = sum(len(step.trajectories) for step in answer.steps)
    calls = len({key for step in answer.steps for key in step.replies})
    if answer.unlinked:
        console.print(f"NOT WHOLE: {UNLINKED} {', '.join(answer.unlinked)}; `python -m steps.lineage index` says why")
    console.print(
        f"{trajectories} trajectories of {len(scenarios)} scenarios, {calls} judge calls; --json has their ids"
    )
    for key, run in answer.runs.items():
        commit = run.get("git_commit") or "no commit"
        changed = " (and changes not committed)" if run.get("git_dirty") else ""
        console.print(f"run {key}: {run.get('task')}, seed {run.get('seed')}, git {commit}{changed}")
    for run in answer.steps[0].runs if answer.steps else ():
        console.print(f"in DVC: {run['md5']}; hash of what dvc.lock says of its making: {run.get('dvc_lock')}")
    show_decisions(answer.verdicts, answer.decisions, console)


def show_forward(answer: Impact, console: Console) -> None:
    """Print the adapters to train or evaluate again, and the verdicts and decisions that rest on the node."""
    console.print(f"{answer.kind} {answer.id}: {len(answer.trained)} adapters to train again if it was wrong")
    table = _table("iteration", "adapter", "touched", "versions")
    for touched in [*answer.trained, *answer.evaluated]:
        names = _names(touched.versions).removeprefix(", ")
        table.add_row(_places(touched.runs), touched.adapter, touched.how, names)
    if table.rows:
        console.print(table)
    if answer.evaluated:
        console.print(f"{len(answer.evaluated)} more were evaluated on it, not trained: evaluate them again")
    if answer.verdicts:
        console.print(
            f"verdicts that rest on it, to be given again by `python -m flows.promote`: {len(answer.verdicts)}"
        )
    show_decisions(answer.verdicts, answer.decisions, console)
    if answer.unlinked:
        console.print(f"NOT KNOWN: {UNLINKED} {', '.join(answer.unlinked)}; `python -m steps.lineage index` says why")


def show_decisions(verdicts: list[dict[str, Any]], decisions: list[Decision], console: Console) -> None:
    for verdict in verdicts:
        role = f" (here: {verdict['as']})" if verdict["as"] else ""
        outcome = "for" if verdict["promoted"] else "against"
        challenger = verdict["sides"]["challenger"]["adapter_hash"]
        counts = f"{len(verdict['wins'])} won and {len(verdict['losses'])} lost of {verdict['n']} scenarios"
        counts += f" against the {verdict['against']}"
        console.print(f"verdict {verdict['verdict']}{role} {outcome} {challenger}: {verdict['reason']}; {counts}")
    for decision in decisions:
        before = f", champion before: {decision.champion}" if decision.champion else ""
        event = f"{decision.event} of {decision.model} {decision.version}"
        console.print(f"{decision.created} {event}{before}: {decision.why}")


def _places(runs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{run['iteration']} of run {run['run'][:6]}" for run in runs) or "unknown"


def _names(versions: list[Version]) -> str:
    return "".join(
        f", {version.name} {version.version}" + "".join(f" @{alias}" for alias in version.aliases)
        for version in versions
    )


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in ("trajectories", "scenarios", "judge calls") else "left")
    return table
