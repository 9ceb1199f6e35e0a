"""Shows how well the agent did, what it did, and where it failed, by iteration, by split, or by slice of the scenarios.

    python -m steps.analytics                                   # run/, its training rollouts, by iteration
    python -m steps.analytics --split val                       # its evaluations instead, the base policy's too
    python -m steps.analytics --by iteration,kind --picture analytics.png
    python -m steps.analytics --langfuse --json                 # from Langfuse's public API; nothing of run/ is read

Success comes with its 95 % interval (Wilson), which assumes independent episodes. Attempts at one scenario are alike, so
the interval of training rollouts is too narrow. Latency is the time from asking the policy to its answer in a turn, where
it was kept beside the trajectories (run/NNN/timings/<output>.turns.json). The command only reads; the gate decides about
promotion.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from steps.analytics.analysis import analyse
from steps.analytics.episodes import SPLITS
from steps.core.terminal import exit_code


def run(words: argparse.Namespace) -> None:
    """Analyse what the command line names, and show the result."""
    from steps.analytics import show

    splits = tuple(words.split.split(",")) if words.split else ()
    if words.langfuse:
        from steps.analytics import langfuse

        analysis = langfuse.analyse(words.by, splits, words.run)
    else:
        analysis = analyse(words.folder, words.by, splits)
    if words.picture is not None:
        show.picture(analysis, words.picture)
    if words.json:
        print(analysis.model_dump_json(indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=160)
    for table in show.tables(analysis):
        console.print(table)
        console.print()
    for note in analysis.notes:
        console.print(f"note: {note}")
    if words.picture is not None:
        console.print(f"picture: {words.picture}")


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        "python -m steps.analytics", description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("run"), help="a run folder (default: run)")
    keys = "iteration, split, slice, or a key of slices such as kind, difficulty, language; several with commas"
    parser.add_argument("--by", default="iteration", metavar="KEYS", help=keys)
    parser.add_argument("--split", metavar="NAMES", help=f"{', '.join(SPLITS)}; several with commas (default: train)")
    parser.add_argument("--langfuse", action="store_true", help="read traces from LANGFUSE_HOST instead of files")
    parser.add_argument("--run", metavar="KEY", help="with --langfuse: the run (a session); default: the latest")
    parser.add_argument("--json", action="store_true", help="print the analysis as JSON")
    parser.add_argument("--picture", type=Path, metavar="PATH", help="write a PNG as well")
    options = parser.parse_args(words)
    return exit_code(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
