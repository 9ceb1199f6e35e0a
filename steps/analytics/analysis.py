"""Analyses stored runs: success, actions, errors, latency and waste, by iteration, split or slice of the scenarios."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from steps.analytics.episodes import SPLITS, EpisodeSummary, read_episodes, slices_by_scenario
from steps.analytics.waste import Waste, waste
from steps.core import alike
from steps.core.alike import Groups
from steps.core.errors import UserError
from steps.core.records import Record
from steps.core.stats import mean
from steps.project.chain import iteration_folders
from steps.registry import paired

TOP = 10  # error patterns shown
KEYS = ("iteration", "split", "slice")  # of --by, beside the keys of slices, such as kind


INDEPENDENT = (
    "nothing says which scenarios are alike, so the intervals take each for independent of the others; attempts at one "
    "scenario are not"
)
Where = Literal["tool", "episode"]


class Percentiles(Record):
    """Percentiles by the nearest rank, so each is a value that occurred."""

    p50: float
    p90: float
    p99: float


class GroupSummary(Record):
    """Statistics of the episodes of one group."""

    group: tuple[str, ...]  # one value per key of `by`
    n: int  # episodes
    success: float | None  # share of the episodes with a reward; None where no episode has one
    ci95: tuple[float, float] | None  # of clusters: the attempts at a scenario, and those at scenarios that are alike
    clusters: int | None  # groups of alike scenarios; None where the run does not say which are
    reward: float | None  # mean of the scored episodes
    unscored: int
    failed: int  # episodes that ended with an error
    turns: float  # mean
    actions: dict[str, int]  # number of calls by tool, the most frequent first; then, in brackets, what was no call
    tokens: Percentiles  # sampled in an episode
    latency: Percentiles | None  # seconds of a turn; None where they were not recorded


class Pattern(Record):
    """Error messages that differ only in names and numbers."""

    where: Where  # a tool's answer, or the reason why an episode failed
    text: str
    count: int
    episodes: int  # in which it occurred


class Analysis(Record):
    """The result of `analyse`."""

    source: str  # "run", or an address
    by: tuple[str, ...]
    splits: tuple[str, ...]
    lines: tuple[GroupSummary, ...]  # in the order of their groups
    total: GroupSummary
    patterns: tuple[Pattern, ...]  # the TOP most frequent
    waste: dict[str, Waste]  # by iteration, for those whose update has run
    notes: tuple[str, ...]  # what was left out, and why


def analyse(root: Path, by: str | Sequence[str] = "iteration", splits: Sequence[str] = ()) -> Analysis:
    """Analyse a run folder (run/, or the project that holds it). Without `splits`: train, or all when grouping by split.

    UserError where it holds no episodes, or they have no such key.
    """
    keys = tuple(by.split(",") if isinstance(by, str) else by)
    run = root / "run" if (root / "run").is_dir() else root
    chosen = tuple(splits) or (tuple(SPLITS) if "split" in keys else ("train",))
    if unknown := [split for split in chosen if split not in SPLITS]:
        raise UserError(f"there is no split {unknown[0]}: name {', '.join(SPLITS)}")
    slices = slices_by_scenario(run / "scenarios")
    episodes: list[EpisodeSummary] = []
    wasted, notes = {}, []
    for folder in iteration_folders(run):
        for split in chosen:
            episodes += read_episodes(folder, split, slices)
        if (folder / "metrics.json").is_file():
            try:
                wasted[folder.name] = waste(folder)
            except UserError as problem:
                notes.append(f"waste of {folder.name} is left out: {problem}")
    if not episodes:
        raise UserError(
            f"{run} holds no episodes of {', '.join(chosen)}: train first (`make train`), or name a run folder"
        )
    made = summed(episodes, keys, chosen, run.name, alike.read(run / "scenarios"))
    return made.model_copy(update={"waste": wasted, "notes": (*notes, *made.notes)})


def summed(
    episodes: Sequence[EpisodeSummary], by: tuple[str, ...], splits: tuple[str, ...], source: str, alike: Groups
) -> Analysis:
    """Statistics of episodes by group; `alike`: which scenarios are. UserError where no episode has such a key."""
    keys = (*KEYS, *sorted({name.partition("=")[0] for episode in episodes for name in episode.slices}))
    if unknown := [key for key in by if key not in keys]:
        raise UserError(f"--by {unknown[0]}: group by {', '.join(keys)}")
    groups: dict[tuple[str, ...], list[EpisodeSummary]] = {}
    for episode in episodes:
        for group in _groups(episode, by):
            groups.setdefault(group, []).append(episode)
    places = {split: str(place) for place, split in enumerate(SPLITS)}  # splits sort in the order of a run
    order = sorted(groups, key=lambda group: [places.get(value, value) for value in group])
    return Analysis(
        source=source,
        by=by,
        splits=splits,
        lines=tuple(group_summary(group, groups[group], alike) for group in order),
        total=group_summary(("all",), episodes, alike),
        patterns=patterns(episodes),
        waste={},
        notes=() if alike.names else (INDEPENDENT,),
    )


def _groups(episode: EpisodeSummary, by: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The groups of an episode: several where it is in several slices, "other" where it is in none."""
    groups: list[tuple[str, ...]] = [()]
    for key in by:
        if key in ("iteration", "split"):
            values = [getattr(episode, key)]
        else:
            values = [name for name in episode.slices if key in ("slice", name.partition("=")[0])] or ["other"]
        groups = [(*group, value) for group in groups for value in values]
    return groups


def group_summary(group: tuple[str, ...], episodes: Sequence[EpisodeSummary], alike: Groups) -> GroupSummary:
    """Statistics of at least one episode."""
    pairs = [(episode.scenario_id, episode.success) for episode in episodes if episode.success is not None]
    judged = [success for _, success in pairs]
    scores = [episode.score for episode in episodes if episode.score is not None]
    acts = Counter(act.name for episode in episodes for act in episode.acts)
    seconds = [second for episode in episodes for second in episode.latencies]
    return GroupSummary(
        group=group,
        n=len(episodes),
        success=mean(judged) if judged else None,
        ci95=paired.attempts_interval(pairs, alike) if pairs else None,
        clusters=alike.count(name for name, _ in pairs),
        reward=mean(scores) if scores else None,
        unscored=len(episodes) - len(scores),
        failed=sum(episode.stop_reason == "error" for episode in episodes),
        turns=mean([episode.turns for episode in episodes]),
        actions=dict(sorted(acts.items(), key=lambda item: (item[0].startswith("("), -item[1], item[0]))),
        tokens=percentiles([episode.tokens for episode in episodes]),
        latency=percentiles(seconds) if seconds else None,
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """By the nearest rank: the smallest value that at least so many percent of the values do not exceed."""
    ranked = sorted(values)
    p50, p90, p99 = (float(ranked[math.ceil(share * len(ranked) / 100) - 1]) for share in (50, 90, 99))
    return Percentiles(p50=p50, p90=p90, p99=p99)


VARIABLE = re.compile(
    r"\"(?:[^\"\\]|\\.)*\"?|(?<!\w)'(?:[^'\\]|\\.)*'"  # quoted
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b|\b[a-z]+\d+\b|(?<![\w.])[-+]?\d+(?:[.,:-]\d+)*"  # hashes, ids as m418, numbers
)


def normalised(text: str) -> str:
    """An error message in which quoted texts, ids and numbers, which differ from case to case, are "…"."""
    text = VARIABLE.sub("…", " ".join(text.removeprefix("Error: ").split()))
    return text if len(text) <= 140 else text[:139] + "…"


def patterns(episodes: Sequence[EpisodeSummary]) -> tuple[Pattern, ...]:
    """The TOP most frequent kinds of errors."""
    counts, containing = Counter[tuple[Where, str]](), Counter[tuple[Where, str]]()  # occurrences, episodes
    for episode in episodes:
        own: list[tuple[Where, str]] = [("tool", normalised(act.answer)) for act in episode.acts if act.error]
        if episode.stop_reason == "error":
            own.append(("episode", normalised(episode.error or "no reason was given")))
        counts.update(own)
        containing.update(set(own))
    ranked = sorted(counts, key=lambda key: (-counts[key], key))[:TOP]
    return tuple(Pattern(where=key[0], text=key[1], count=counts[key], episodes=containing[key]) for key in ranked)
