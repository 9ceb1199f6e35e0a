"""Prints the answers of steps/lineage/questions.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steps.registry.decisions import Decision

if TYPE_CHECKING:
    from rich.console import Console

from steps.lineage.questions import Back, Forward
from steps.lineage.tables import SHORT, UNLINKED
from steps.registry.versions import Version

# --- For a person


def show_back(found: Back, console: Console) -> None:
    """The versions, a row an adapter, then the runs."""
    console.print(f"{found.model}: adapter {found.adapter}{_holding(found.versions)}")
    table = _table("iteration", "adapter", "batch", "trajectories", "scenarios", "judges", "judge calls", "success")
    for one in found.steps:
        tried = {evaluation["split"]: evaluation for evaluation in one.evaluations}
        told = ", ".join(f"{split} {tried[split]['success']:.3f} of {tried[split]['n']}" for split in sorted(tried))
        counted = [len(one.trajectories), len(one.scenarios)]
        row = [_where(one.runs), one.adapter, ", ".join(md5[:SHORT] for md5 in one.batches), *map(str, counted)]
        table.add_row(*row, ", ".join(one.judges), str(len(one.replies)), told)
    console.print(table)
    together = {name for one in found.steps for name in one.scenarios}
    played = sum(len(one.trajectories) for one in found.steps)
    calls = len({key for one in found.steps for key in one.replies})
    if found.unlinked:
        console.print(f"NOT WHOLE: {UNLINKED} {', '.join(found.unlinked)}; `python -m steps.lineage index` says why")
    console.print(f"{played} trajectories of {len(together)} scenarios, {calls} judge calls; --json has their ids")
    for key, run in found.runs.items():
        commit = run.get("git_commit") or "no commit"
        changed = " (and changes not committed)" if run.get("git_dirty") else ""
        console.print(f"run {key}: {run.get('task')}, seed {run.get('seed')}, git {commit}{changed}")
    for one in found.steps[:1]:
        for run in one.runs:
            console.print(f"in DVC: {run['md5']}; hash of what dvc.lock says of its making: {run.get('dvc_lock')}")
    show_decided(found.verdicts, found.decisions, console)


def show_forward(found: Forward, console: Console) -> None:
    console.print(f"{found.kind} {found.id}: {len(found.trained)} adapters to train again if it was wrong")
    table = _table("iteration", "adapter", "touched", "versions")
    for one in [*found.trained, *found.evaluated]:
        table.add_row(_where(one.runs), one.adapter, one.how, _holding(one.versions).removeprefix(", "))
    if table.rows:
        console.print(table)
    if found.evaluated:
        console.print(f"{len(found.evaluated)} more were evaluated on it, not trained: evaluate them again")
    if found.verdicts:
        console.print(
            f"verdicts that rest on it, to be given again by `python -m flows.promote`: {len(found.verdicts)}"
        )
    show_decided(found.verdicts, found.decisions, console)
    if found.unlinked:
        console.print(f"NOT KNOWN: {UNLINKED} {', '.join(found.unlinked)}; `python -m steps.lineage index` says why")


def show_decided(verdicts: list[dict[str, Any]], decided: list[Decision], console: Console) -> None:
    for one in verdicts:
        role = f" (here: {one['as']})" if one["as"] else ""
        how, who = "for" if one["promoted"] else "against", one["sides"]["challenger"]["adapter_hash"]
        counts = (
            f"{len(one['wins'])} won and {len(one['losses'])} lost of {one['n']} scenarios against the {one['against']}"
        )
        console.print(f"verdict {one['verdict']}{role} {how} {who}: {one['reason']}; {counts}")
    for each in decided:
        before = f", champion before: {each.champion}" if each.champion else ""
        console.print(f"{each.created} {each.event} of {each.model} {each.version}{before}: {each.why}")


def _where(runs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{run['iteration']} of run {run['run'][:6]}" for run in runs) or "unknown"


def _holding(of: list[Version]) -> str:
    return "".join(f", {one.name} {one.version}" + "".join(f" @{alias}" for alias in one.aliases) for one in of)


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in ("trajectories", "scenarios", "judge calls") else "left")
    return table
