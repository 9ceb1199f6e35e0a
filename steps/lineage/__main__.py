"""Lineage: where a model came from, and which models a scenario, a judge or a batch affected.

python -m steps.lineage index                                     # adds run/ of this folder
python -m steps.lineage back models:/email_search@champion        # or models:/email_search/3, or an adapter's hash
python -m steps.lineage forward scenario 9ee353964b374d87         # what must be retrained if it was wrong
python -m steps.lineage rebuild                                   # from the files alone; the ledger's `replies` stay
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steps.core import dotenv
from steps.core.terminal import exit_code
from steps.lineage.index import Indexed, index, rebuild
from steps.lineage.questions import Ancestry, Impact, back, forward
from steps.lineage.show import show_back, show_forward
from steps.lineage.tables import KINDS, counts
from steps.project.ledger import Ledger


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser("python -m steps.lineage", description=about, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("index", "add what run/ holds"), ("rebuild", "build the index anew, from these folders alone")):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "roots", nargs="*", type=Path, default=[Path()], metavar="ROOT", help="default: this folder"
        )
    command = commands.add_parser("back", help="where a model came from")
    command.add_argument("model", help="models:/<name>@<alias>, models:/<name>/<number>, or an adapter's hash")
    command.add_argument("--json", action="store_true", help="everything, with all ids")
    command = commands.add_parser("forward", help="what must be retrained if this was wrong")
    command.add_argument("kind", help=", ".join(KINDS))
    command.add_argument("id", help="an id, its beginning, or a trajectory's name")
    command.add_argument("--json", action="store_true", help="everything")
    return parser.parse_args(words)


def run(words: argparse.Namespace) -> None:
    """Answer a question, or add to the index, as the command line says."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=160)
    with Ledger() as ledger:
        if words.command in ("back", "forward"):
            answer: Ancestry | Impact
            answer = back(words.model, ledger) if words.command == "back" else forward(words.kind, words.id, ledger)
            if words.json:
                print(json.dumps(dataclasses.asdict(answer), indent=2))
            elif isinstance(answer, Ancestry):
                show_back(answer, console)
            else:
                show_forward(answer, console)
            return
        lost: dict[str, dict[str, Any]] = {}
        if words.command == "rebuild":
            indexed, lost = rebuild(words.roots, ledger)
        else:
            totals = [index(root, ledger) for root in words.roots]
            nodes, edges = sum(total.nodes for total in totals), sum(total.edges for total in totals)
            indexed = Indexed(nodes, edges, [text for total in totals for text in total.left_out])
        for text in indexed.left_out:
            console.print(f"left out: {text}")
        for key, about in lost.items():
            advice = f"check out commit {about.get('git_commit')} or its run, `dvc checkout`, and index it"
            console.print(f"run {key} is no longer in the index, for its files are not here: {advice}")
        kinds = ", ".join(f"{number} {kind}" for kind, number in counts(ledger).items())
        console.print(f"{indexed.nodes} nodes and {indexed.edges} edges added; the ledger has {kinds}")


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    dotenv.load(Path.cwd())
    return exit_code(lambda: run(parse(words)))


if __name__ == "__main__":
    sys.exit(main())
