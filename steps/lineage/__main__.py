"""Lineage: where a model came from, and what a scenario, a judge or a batch touched.

python -m steps.lineage index                                     # adds run/ of this folder
python -m steps.lineage back models:/email_search@champion        # or models:/email_search/3, or an adapter's hash
python -m steps.lineage forward scenario 9ee353964b374d87         # what must be retrained, were it wrong
python -m steps.lineage rebuild                                   # from the files alone; `replies` is left alone
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core import dotenv
from steps.core.terminal import exit_code
from steps.project.ledger import Ledger

if TYPE_CHECKING:
    pass

from steps.lineage.index import Indexed, index, rebuild
from steps.lineage.questions import Back, Forward, back, forward
from steps.lineage.show import show_back, show_forward
from steps.lineage.tables import KINDS, counts


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser("python -m steps.lineage", description=about, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("index", "add what run/ holds"), ("rebuild", "make the index anew, of these folders alone")):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "roots", nargs="*", type=Path, default=[Path()], metavar="ROOT", help="default: this folder"
        )
    command = commands.add_parser("back", help="where a model came from")
    command.add_argument("model", help="models:/<name>@<alias>, models:/<name>/<number>, or an adapter's hash")
    command.add_argument("--json", action="store_true", help="everything, with all ids")
    command = commands.add_parser("forward", help="what must be retrained, were this wrong")
    command.add_argument("kind", help=", ".join(KINDS))
    command.add_argument("id", help="or its beginning, or a trajectory's name")
    command.add_argument("--json", action="store_true", help="everything")
    return parser.parse_args(words)


def run(words: argparse.Namespace) -> None:
    """Do what the command line says."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=160)
    with Ledger() as ledger:
        if words.command in ("back", "forward"):
            found: Back | Forward
            found = back(words.model, ledger) if words.command == "back" else forward(words.kind, words.id, ledger)
            if words.json:
                print(json.dumps(dataclasses.asdict(found), indent=2))
            elif isinstance(found, Back):
                show_back(found, console)
            else:
                show_forward(found, console)
            return
        lost: dict[str, dict[str, Any]] = {}
        if words.command == "rebuild":
            done, lost = rebuild(words.roots, ledger)
        else:
            totals = [index(root, ledger) for root in words.roots]
            texts = [text for one in totals for text in one.left_out]
            done = Indexed(sum(one.nodes for one in totals), sum(one.edges for one in totals), texts)
        for text in done.left_out:
            console.print(f"left out: {text}")
        for key, about in lost.items():
            back_again = f"check out commit {about.get('git_commit')} or its run, `dvc checkout`, and index it"
            console.print(f"run {key} is no longer in the index, for its files are not here: {back_again}")
        kinds = ", ".join(f"{number} {kind}" for kind, number in counts(ledger).items())
        console.print(f"{done.nodes} nodes and {done.edges} edges added; the ledger has {kinds}")


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    dotenv.load(Path.cwd())
    return exit_code(lambda: run(parse(words)))


if __name__ == "__main__":
    sys.exit(main())
