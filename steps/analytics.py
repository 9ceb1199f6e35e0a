"""Analytics: how well the agent did, what it did, and where it failed: by iteration, by split, by slice of the scenarios.

    python -m steps.analytics                                   # run/, its training rollouts, by iteration
    python -m steps.analytics --split val                       # its evaluations instead, the base policy's too
    python -m steps.analytics --by iteration,kind --picture analytics.png
    python -m steps.analytics --langfuse --json                 # from Langfuse's public API; nothing of run/ is read

Success has its 95 % interval (Wilson), which takes episodes for independent: attempts at one scenario are alike, so that of
training rollouts is too narrow. Latency is of a turn, from asking to the answer; it is known where the sampler's clock was
kept beside the trajectories (run/NNN/timings/<output>.turns.json). Reads only, and decides nothing: promotion is the gate's.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from steps.analytics_episodes import SPLITS, Episode, iterations, read_episodes, slices_by_scenario
from steps.stage import UserError, exit_code
from steps.types import Record
from steps.waste import Waste, waste

KEYS = ("iteration", "split", "slice")  # of --by; and any key that slices have, as kind
TOP = 10  # error patterns that are shown


class Percentiles(Record):
    """By the nearest rank: each is a value that was seen."""

    p50: float
    p90: float
    p99: float


class Line(Record):
    """The episodes of one group."""

    group: tuple[str, ...]  # a value for each key of `by`
    n: int  # episodes
    success: float | None  # share of those with a reward; None where none has one
    ci95: tuple[float, float] | None  # Wilson interval
    reward: float | None  # mean of those that were scored
    unscored: int
    failed: int  # episodes that ended with an error
    turns: float  # mean: an episode's length
    actions: dict[str, int]  # how often: calls by tool, the most frequent first; then what was none, in brackets
    tokens: Percentiles  # sampled, of an episode
    latency: Percentiles | None  # seconds, of a turn; None where it was not recorded


class Pattern(Record):
    """Error messages that are alike but for names and numbers."""

    where: Literal["tool", "episode"]  # what a tool answered, or why an episode failed
    text: str
    count: int
    episodes: int  # in which it came


class Analysis(Record):
    """What `analyse` found."""

    source: str  # "run", or an address
    by: tuple[str, ...]
    splits: tuple[str, ...]
    lines: tuple[Line, ...]  # in the order of their groups
    total: Line
    patterns: tuple[Pattern, ...]  # the most frequent, TOP of them at most
    waste: dict[str, Waste]  # by iteration, where its update has run
    notes: tuple[str, ...]  # what was left out, and why


def analyse(root: Path, by: str | Sequence[str] = "iteration", splits: Sequence[str] = ()) -> Analysis:
    """Of a run folder (run/, or the project that holds it). No splits: train, or all where they are grouped by.

    UserError where there is nothing to read, or nothing to group by.
    """
    keys = tuple(by.split(",") if isinstance(by, str) else by)
    run = root / "run" if (root / "run").is_dir() else root
    wanted = tuple(splits) or (tuple(SPLITS) if "split" in keys else ("train",))
    if strange := [split for split in wanted if split not in SPLITS]:
        raise UserError(f"there is no split {strange[0]}: name {', '.join(SPLITS)}")
    slices = slices_by_scenario(run / "scenarios")
    episodes: list[Episode] = []
    wasted, notes = {}, []
    for folder in iterations(run):
        for split in wanted:
            episodes += read_episodes(folder, split, slices)
        if (folder / "metrics.json").is_file():
            try:
                wasted[folder.name] = waste(folder)
            except UserError as problem:
                notes.append(f"waste of {folder.name} is left out: {problem}")
    if not episodes:
        raise UserError(
            f"{run} holds no episodes of {', '.join(wanted)}: train first (`make train`), or name a run folder"
        )
    return summed(episodes, keys, wanted, run.name).model_copy(update={"waste": wasted, "notes": tuple(notes)})


# --- Summing up


def summed(episodes: Sequence[Episode], by: tuple[str, ...], splits: tuple[str, ...], source: str) -> Analysis:
    """The episodes by group. UserError where no episode has such a key."""
    known = {name.partition("=")[0] for episode in episodes for name in episode.slices}
    if strange := [key for key in by if key not in (*KEYS, *known)]:
        raise UserError(f"--by {strange[0]}: group by {', '.join((*KEYS, *sorted(known)))}")
    groups: dict[tuple[str, ...], list[Episode]] = {}
    for episode in episodes:
        for group in _groups(episode, by):
            groups.setdefault(group, []).append(episode)
    return Analysis(
        source=source,
        by=by,
        splits=splits,
        lines=tuple(line(group, of) for group, of in sorted(groups.items(), key=lambda item: _order(item[0]))),
        total=line(("all",), episodes),
        patterns=patterns(episodes),
        waste={},
        notes=(),
    )


def _groups(episode: Episode, by: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The groups that an episode is in: several where it is of several slices, "other" where it is of none."""
    found: list[tuple[str, ...]] = [()]
    for key in by:
        values: Iterable[str]
        if key in ("iteration", "split"):
            values = (getattr(episode, key),)
        elif key == "slice":
            values = episode.slices or ("other",)
        else:
            values = [name for name in episode.slices if name.partition("=")[0] == key] or ("other",)
        found = [(*group, value) for group in found for value in values]
    return found


def _order(group: tuple[str, ...]) -> tuple[str, ...]:
    """Splits as they come in a run, the rest by name."""
    return tuple(f"{list(SPLITS).index(value)}" if value in SPLITS else value for value in group)


def line(group: tuple[str, ...], episodes: Sequence[Episode]) -> Line:
    """The numbers of some episodes, of which there is one at least."""
    from steps.evaluate import mean, wilson

    judged = [episode.success for episode in episodes if episode.success is not None]
    scores = [episode.score for episode in episodes if episode.score is not None]
    acts = Counter(act.name for episode in episodes for act in episode.acts)
    seconds = [second for episode in episodes for second in episode.latencies]
    return Line(
        group=group,
        n=len(episodes),
        success=mean(judged) if judged else None,
        ci95=wilson(sum(judged), len(judged)) if judged else None,
        reward=mean(scores) if scores else None,
        unscored=len(episodes) - len(scores),
        failed=sum(episode.stop_reason == "error" for episode in episodes),
        turns=mean([episode.turns for episode in episodes]),
        actions=dict(sorted(acts.items(), key=lambda item: (item[0].startswith("("), -item[1], item[0]))),
        tokens=percentiles([episode.tokens for episode in episodes]),
        latency=percentiles(seconds) if seconds else None,
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """Nearest rank: the smallest value that so many percent of them do not exceed."""
    ranked = sorted(values)
    p50, p90, p99 = (float(ranked[math.ceil(share * len(ranked) / 100) - 1]) for share in (50, 90, 99))
    return Percentiles(p50=p50, p90=p90, p99=p99)


VARIABLE = re.compile(
    r"\"(?:[^\"\\]|\\.)*\"?|(?<!\w)'(?:[^'\\]|\\.)*'"  # quoted
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b|\b[a-z]+\d+\b|(?<![\w.])[-+]?\d+(?:[.,:-]\d+)*"  # hashes, ids as m418, numbers
)


def normalised(text: str) -> str:
    """An error message without what differs from case to case: what is quoted, ids and numbers are "…"."""
    text = VARIABLE.sub("…", " ".join(text.removeprefix("Error: ").split()))
    return text if len(text) <= 140 else text[:139] + "…"


def patterns(episodes: Sequence[Episode]) -> tuple[Pattern, ...]:
    """The most frequent kinds of errors, TOP of them at most."""
    counts: Counter[tuple[str, str]] = Counter()
    inside: Counter[tuple[str, str]] = Counter()
    for episode in episodes:
        own = [("tool", normalised(act.answer)) for act in episode.acts if act.error]
        if episode.stop_reason == "error":
            own.append(("episode", normalised(episode.error or "no reason was given")))
        counts.update(own)
        inside.update(set(own))
    ranked = sorted(counts, key=lambda key: (-counts[key], key))[:TOP]
    return tuple(
        Pattern(
            where="tool" if where == "tool" else "episode",
            text=text,
            count=counts[where, text],
            episodes=inside[where, text],
        )
        for where, text in ranked
    )


# --- The command


def run(words: argparse.Namespace) -> None:
    """Read what the command line names, and show it."""
    from steps import analytics_show

    splits = tuple(words.split.split(",")) if words.split else ()
    if words.langfuse:
        from steps import analytics_langfuse

        found = analytics_langfuse.analyse(words.by, splits, words.run)
    else:
        found = analyse(words.folder, words.by, splits)
    if words.picture is not None:
        analytics_show.picture(found, words.picture)
    if words.json:
        print(found.model_dump_json(indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=160)
    for table in analytics_show.tables(found):
        console.print(table)
        console.print()
    for note in found.notes:
        console.print(f"note: {note}")
    if words.picture is not None:
        console.print(f"picture: {words.picture}")


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        "python -m steps.analytics", description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("run"), help="a run folder (default: run)")
    keys = "iteration, split, slice, or a key of slices, as kind, difficulty, language; several with commas"
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
