"""Lineage: where a model came from, and which models a scenario, a judge or a batch affected.

python -m addons.lineage index                                     # adds run/ of this folder
python -m addons.lineage back models:/email_search@champion        # or models:/email_search/3, or an adapter's hash
python -m addons.lineage forward scenario 9ee353964b374d87         # what must be retrained if it was wrong
python -m addons.lineage rebuild                                   # from the files alone; the ledger's `replies` stay
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from addons.lineage.index import Indexed, index, rebuild
from addons.lineage.questions import Ancestry, Impact, back, forward
from addons.lineage.tables import KINDS, SHORT, UNLINKED, counts
from steps.core import dotenv
from steps.core.terminal import command_parser, console, exit_code, table
from steps.project.ledger import Ledger
from steps.registry.decisions import Decision
from steps.registry.model import Version


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = command_parser("addons.lineage", __doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("index", "add what run/ holds"), ("rebuild", "build the index anew, from these folders alone")):
        command = commands.add_parser(name, help=text)
        here = [Path()]
        command.add_argument("roots", nargs="*", type=Path, default=here, metavar="ROOT", help="default: this folder")
    command = commands.add_parser("back", help="where a model came from")
    command.add_argument("model", help="models:/<name>@<alias>, models:/<name>/<number>, or an adapter's hash")
    command.add_argument("--json", action="store_true", help="everything, with all ids")
    command = commands.add_parser("forward", help="what must be retrained if this was wrong")
    command.add_argument("kind", help=", ".join(KINDS))
    command.add_argument("id", help="an id, its beginning, or a trajectory's name")
    command.add_argument("--json", action="store_true", help="everything")
    dotenv.load(Path.cwd())
    return exit_code(lambda: run(parser.parse_args(words)))


def run(words: argparse.Namespace) -> None:
    """Answer a question, or add to the index, as the command line says."""
    output = console(160, soft_wrap=True)
    with Ledger() as ledger:
        if words.command in ("back", "forward"):
            answer: Ancestry | Impact
            answer = back(words.model, ledger) if words.command == "back" else forward(words.kind, words.id, ledger)
            if words.json:
                print(json.dumps(dataclasses.asdict(answer), indent=2))
            elif isinstance(answer, Ancestry):
                show_back(answer, output)
            else:
                show_forward(answer, output)
            return
        lost: dict[str, dict[str, Any]] = {}
        if words.command == "rebuild":
            indexed, lost = rebuild(words.roots, ledger)
        else:
            totals = [index(root, ledger) for root in words.roots]
            nodes, edges = sum(total.nodes for total in totals), sum(total.edges for total in totals)
            indexed = Indexed(nodes, edges, [text for total in totals for text in total.left_out])
        for text in indexed.left_out:
            output.print(f"left out: {text}")
        for key, about in lost.items():
            advice = f"check out commit {about.get('git_commit')} or its run, `.venv/bin/dvc checkout`, and index it"
            output.print(f"run {key} is no longer in the index, for its files are not here: {advice}")
        kinds = ", ".join(f"{number} {kind}" for kind, number in counts(ledger).items())
        output.print(f"{indexed.nodes} nodes and {indexed.edges} edges added; the ledger has {kinds}")


def share_text(evaluation: Mapping[str, Any]) -> str:
    """An evaluation's success, or how often a judge found the policy better than the base."""
    if judged := evaluation.get("judged"):
        return f"judged better than the {judged['rival']} on {judged['share']:.3f} of {evaluation['n']}"
    return f"{evaluation['success']:.3f} of {evaluation['n']}"


def show_back(answer: Ancestry, output: Console) -> None:
    """Print the versions, a table with one row per adapter, the runs, and the verdicts and decisions."""
    output.print(f"{answer.model}: adapter {answer.adapter}{_names(answer.versions)}")
    columns = ("iteration", "adapter", "batch", "trajectories", "scenarios", "judges", "judge calls", "success")
    steps = table(columns, ("trajectories", "scenarios", "judge calls"))
    for step in answer.steps:
        splits = {evaluation["split"]: evaluation for evaluation in step.evaluations}
        success = ", ".join(f"{name} {share_text(splits[name])}" for name in sorted(splits))
        counts = [str(len(step.trajectories)), str(len(step.scenarios))]
        row = [_places(step.runs), step.adapter, ", ".join(md5[:SHORT] for md5 in step.batches), *counts]
        steps.add_row(*row, ", ".join(step.judges), str(len(step.replies)), success)
    output.print(steps)
    scenarios = {name for step in answer.steps for name in step.scenarios}
    trajectories = sum(len(step.trajectories) for step in answer.steps)
    calls = len({key for step in answer.steps for key in step.replies})
    if answer.unlinked:
        output.print(
            f"NOT WHOLE: {UNLINKED} {', '.join(answer.unlinked)}; `.venv/bin/python -m addons.lineage index` says why"
        )
    counted = f"{trajectories} trajectories of {len(scenarios)} scenarios, {calls} judge calls"
    output.print(f"{counted}; --json has their ids")
    for key, run in answer.runs.items():
        commit = run.get("git_commit") or "no commit"
        changed = " (and changes not committed)" if run.get("git_dirty") else ""
        output.print(f"run {key}: {run.get('task')}, seed {run.get('seed')}, git {commit}{changed}")
        begun = run.get("start") or {}
        if policy := begun.get("policy"):
            output.print(f"  started from {policy['resolved']} ({policy['from']}), adapter {policy['adapter']}")
        for source, rows in (begun.get("demonstrations") or {}).get("from", {}).items():
            output.print(f"  learnt first from {rows} demonstrations of {source}")
    for run in answer.steps[0].runs if answer.steps else ():
        output.print(f"in DVC: {run['md5']}; hash of what dvc.lock says of its making: {run.get('dvc_lock')}")
    show_decisions(answer.verdicts, answer.decisions, output)


def show_forward(answer: Impact, output: Console) -> None:
    """Print the adapters to train or evaluate again, and the verdicts and decisions that rest on the node."""
    output.print(f"{answer.kind} {answer.id}: {len(answer.trained)} adapters to train again if it was wrong")
    adapters = table(("iteration", "adapter", "touched", "versions"), ())
    for touched in [*answer.trained, *answer.evaluated]:
        names = _names(touched.versions).removeprefix(", ")
        adapters.add_row(_places(touched.runs), touched.adapter, touched.how, names)
    if adapters.rows:
        output.print(adapters)
    if answer.evaluated:
        output.print(f"{len(answer.evaluated)} more were evaluated on it, not trained: evaluate them again")
    if answer.verdicts:
        advice = "to be given again by `.venv/bin/python -m flows.promote`"
        output.print(f"verdicts that rest on it, {advice}: {len(answer.verdicts)}")
    show_decisions(answer.verdicts, answer.decisions, output)
    if answer.unlinked:
        output.print(
            f"NOT KNOWN: {UNLINKED} {', '.join(answer.unlinked)}; `.venv/bin/python -m addons.lineage index` says why"
        )


def show_decisions(verdicts: list[dict[str, Any]], decisions: list[Decision], output: Console) -> None:
    for verdict in verdicts:
        role = f" (here: {verdict['as']})" if verdict["as"] else ""
        outcome = "for" if verdict["promoted"] else "against"
        challenger = verdict["sides"]["challenger"]["adapter_hash"]
        counts = f"{len(verdict['wins'])} won and {len(verdict['losses'])} lost of {verdict['n']} scenarios"
        counts += f" against the {verdict['against']}"
        output.print(f"verdict {verdict['verdict']}{role} {outcome} {challenger}: {verdict['reason']}; {counts}")
    for decision in decisions:
        before = f", champion before: {decision.champion}" if decision.champion else ""
        event = f"{decision.event} of {decision.model} {decision.version}"
        by = f" by {decision.decided_by}" if decision.decided_by else ""
        output.print(f"{decision.created} {event}{by}{before}: {decision.why}")


def _places(runs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{run['iteration']} of run {run['run'][:6]}" for run in runs) or "unknown"


def _names(versions: list[Version]) -> str:
    names = [" @".join([f"{version.name} {version.version}", *version.aliases]) for version in versions]
    return "".join(f", {name}" for name in names)


if __name__ == "__main__":
    sys.exit(main())
