"""Shows how well the agent did, what it did, and where it failed, by iteration, by split, or by slice of the scenarios.

    python -m steps.analytics                                   # run/, its training rollouts, by iteration
    python -m steps.analytics --split val                       # its evaluations instead, the base policy's too
    python -m steps.analytics --by iteration,kind --picture analytics.png
    python -m steps.analytics --langfuse --json                 # from Langfuse's public API; nothing of run/ is read

Success comes with its 95 % interval, in which attempts at one scenario count as alike, and scenarios do that the task calls
alike (steps/core/alike.py); the column groups has how many groups of these there are. Latency is the time from asking the
policy to its answer in a turn, where it was kept beside the trajectories (run/NNN/timings/<output>.turns.json). The command
only reads; the gate decides about promotion.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steps.analytics.analysis import Analysis, analyse
from steps.analytics.episodes import SPLITS
from steps.analytics.transcripts import printable
from steps.core.ports import bring
from steps.core.terminal import command_parser, console, exit_code, table
from steps.training.fates import FATES


def run(words: argparse.Namespace) -> None:
    """Analyse what the command line names, and show the result."""
    splits = tuple(words.split.split(",")) if words.split else ()
    if words.langfuse:
        analysis = bring("reader", "langfuse", "--langfuse")(words.by, splits, words.run)
    else:
        analysis = analyse(words.folder, words.by, splits)
    if words.picture is not None:
        picture(analysis, words.picture)
    if words.json:
        print(analysis.model_dump_json(indent=2))
        return
    output = console(160)
    for shown in tables(analysis):
        output.print(shown)
        output.print()
    for note in analysis.notes:
        output.print(f"note: {note}")
    if words.picture is not None:
        output.print(f"picture: {words.picture}")


def tables(analysis: Analysis) -> list[Any]:
    """The analysis as tables of rich, for a terminal."""

    def titled(title: str, *columns: str, words: int = 1) -> Any:
        names = [printable(name) for name in columns]
        empty = table(names, names[words:], title)
        for column in empty.columns:
            column.overflow = "fold"
        return empty

    lines = [*analysis.lines, *([analysis.total] if len(analysis.lines) > 1 else [])]
    by = ", ".join(analysis.by)
    columns = "n|groups|success (95 %)|reward|turns|tokens 50/90/99 %|s/turn 50/90/99 %|failed|unscored"
    results = titled(f"{analysis.source}: {', '.join(analysis.splits)}", by, *columns.split("|"))
    acts = titled("actions: share of all", by, *(names := list(analysis.total.actions)))
    for line in lines:
        group, success = printable(", ".join(line.group)), ""
        if line.success is not None and line.ci95 is not None:
            success = "{:.3f} [{:.3f}, {:.3f}]".format(line.success, *line.ci95)
        means = ["" if line.reward is None else f"{line.reward:.3f}", f"{line.turns:.2f}"]
        tokens = " / ".join(f"{value:.0f}" for _, value in line.tokens)
        latency = "not recorded" if line.latency is None else " / ".join(f"{value:.2f}" for _, value in line.latency)
        clusters = "" if line.clusters is None else str(line.clusters)
        results.add_row(
            group, str(line.n), clusters, success, *means, tokens, latency, str(line.failed), str(line.unscored)
        )
        total = sum(line.actions.values())
        acts.add_row(group, *(f"{line.actions.get(name, 0) / total:.1%}" if total else "" for name in names))
    shown = [results, acts]
    if analysis.patterns:
        errors = titled("errors", "where", "message", "times", "episodes", words=2)
        for pattern in analysis.patterns:
            errors.add_row(pattern.where, printable(pattern.text), str(pattern.count), str(pattern.episodes))
        shown.append(errors)
    if analysis.waste:
        fates = ("iteration", "tokens", *FATES, "µs/gradient token", "judge")
        shown.append(titled("sampled tokens: what became of them", *fates))
        for number, waste in analysis.waste.items():
            seconds, cost = waste.seconds_per_gradient_token, waste.judge_cost
            cells = [f"{waste.shares[fate]:.1%}" for fate in FATES]
            cells += ["" if seconds is None else f"{1e6 * seconds:.0f}", "" if cost is None else f"{cost:.4g}"]
            shown[-1].add_row(number, str(waste.sampled), *cells)
    return shown


def picture(analysis: Analysis, path: Path) -> None:
    """Write one PNG: success, reward, turns and actions by group, and error patterns. Same analysis, same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines, patterns = analysis.lines, analysis.patterns
    names, places = [printable(", ".join(line.group)) for line in lines], range(len(lines))
    rows = 4 + bool(patterns)
    ratios = (2, 1, 1, 2, 0.4 + 0.25 * len(patterns))[:rows]
    width = max(7.0, min(20.0, 2 + 0.45 * len(names)))
    figure, axes = plt.subplots(rows, 1, figsize=(width, 1.2 * sum(ratios)), height_ratios=ratios, layout="constrained")
    style = "o-" if analysis.by == ("iteration",) else "o"  # connected only where the groups have an order
    judged = [(place, line) for place, line in zip(places, lines, strict=True) if line.success is not None]
    for place, line in judged:
        axes[0].plot((place, place), line.ci95, color="tab:blue", alpha=0.5)
    axes[0].plot([place for place, _ in judged], [line.success for _, line in judged], style, color="tab:blue")
    axes[0].set(ylabel="success (95 %)", ylim=(0, 1))
    scored = [(place, line.reward) for place, line in zip(places, lines, strict=True) if line.reward is not None]
    axes[1].plot([place for place, _ in scored], [reward for _, reward in scored], style, color="tab:green")
    axes[1].set(ylabel="reward")
    axes[2].plot(places, [line.turns for line in lines], style, color="tab:orange")
    axes[2].set(ylabel="turns")
    below = [0.0] * len(lines)  # each action's share is a bar on top of those before it
    totals = [max(1, sum(line.actions.values())) for line in lines]
    for number, action in enumerate(analysis.total.actions):
        shares = [line.actions.get(action, 0) / total for line, total in zip(lines, totals, strict=True)]
        axes[3].bar(places, shares, bottom=below, label=printable(action), color=f"C{number % 10}", width=0.7)
        below = [low + share for low, share in zip(below, shares, strict=True)]
    axes[3].set(ylabel="actions", ylim=(0, 1))
    axes[3].legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, fontsize="small")
    for axis in axes[:4]:
        axis.set_xticks(list(places), names, rotation=0 if len(names) < 9 else 90)
        axis.grid(alpha=0.3)
    axes[0].set_title(f"{analysis.source}: {', '.join(analysis.splits)}, by {', '.join(analysis.by)}", loc="left")
    if patterns:
        axes[4].barh(range(len(patterns)), [pattern.count for pattern in patterns], color="tab:red", alpha=0.4)
        for place, pattern in enumerate(patterns):
            text = printable(pattern.text)[:90].replace("$", "\\$")  # $ begins a formula
            label = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
            axes[4].annotate(f"{pattern.count} × {text}", (0, place), (4, 0), **label)
        axes[4].set(xlabel="errors", yticks=())
        axes[4].invert_yaxis()
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=120, format="png", metadata={"Software": None})
    plt.close(figure)
    temporary.replace(path)


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = command_parser("steps.analytics", __doc__, allow_abbrev=False)
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
