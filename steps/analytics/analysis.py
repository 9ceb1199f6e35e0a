"""Analyses stored runs: success, actions, errors, latency and waste, by iteration, split or slice."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from steps.analytics.episodes import SPLITS, Episode, iterations, read_episodes, slices_by_scenario
from steps.analytics.waste import Waste, waste
from steps.core.errors import UserError
from steps.core.records import Record

TOP = 10  # error patterns that are shown
KEYS = ("iteration", "split", "slice")  # of --by; and any key that slices have, as kind


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
    from steps.core.stats import mean, wilson

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
