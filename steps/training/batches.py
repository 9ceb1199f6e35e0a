"""The parts of an update: rows with their advantages, optimiser steps of whole groups, micro-batches by tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from steps.core.records import Row
from steps.training import packing

STD_FLOOR = 1e-4  # added to a standard deviation of rewards, as TRL does


class Example(NamedTuple):
    """A training row, its trajectory's advantage, and the group that it was compared with."""

    row: Row
    advantage: float
    group: str = ""


def advantages(
    rewards: Sequence[float | None], groups: Sequence[str], scale: str = "group"
) -> tuple[list[float | None], int]:
    """Group-normalised advantages, and how many groups had no signal.

    A group's baseline is the mean of its scored attempts, however many there are. None marks an attempt that is not trained
    on: it has no score, or all scores of its group are equal. `scale` divides by the group's standard deviation, the
    batch's, or not at all (GRPO; Hu et al. 2025, REINFORCE++; Dr. GRPO), each plus 1e-4 as in TRL.
    """
    from statistics import fmean, stdev

    scored: dict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            scored[group].append(reward)
    flat = {group for group, values in scored.items() if max(values) - min(values) < 1e-9}
    all_scores = [reward for reward in rewards if reward is not None]
    batch_std = stdev(all_scores) if len(all_scores) > 1 else 0.0
    result: list[float | None] = []
    for reward, group in zip(rewards, groups, strict=True):
        if reward is None or group in flat:
            result.append(None)
            continue
        centred = reward - fmean(scored[group])
        std = {"group": stdev(scored[group]), "batch": batch_std, "none": None}[scale]
        result.append(centred if std is None else centred / (std + STD_FLOOR))
    return result, len(flat) + len(set(groups) - set(scored))


class OptimizerStep(NamedTuple):
    """One optimiser step: this process's micro-batches, and the rows, sampled tokens and groups of all processes."""

    batches: list[dict[str, Any]]
    rows: int
    tokens: float
    groups: frozenset[str]


def by_group(examples: Sequence[Example]) -> dict[str, list[Example]]:
    """The rows of each group, in the order given."""
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        groups[example.group].append(example)
    return groups


def split_evenly(rows: list[Example], parts: int) -> list[list[Example]]:
    """`parts` lists whose lengths differ by at most one, in order."""
    return [rows[len(rows) * part // parts : len(rows) * (part + 1) // parts] for part in range(parts)]


def micro_batches(rows: Sequence[Example], budget: int) -> Iterator[list[Example]]:
    """Sorted rows in order, split into batches. The tokens that rows do not share with the row before are at most `budget`
    per batch, and all tokens, which are attention's keys, at most 8 times as many. One row alone may be longer."""
    batch: list[Example] = []
    own = whole = 0
    for example in rows:
        length = len(example.row.ids)
        fresh = length - (packing.shared(example.row.ids, batch[-1].row.ids) if batch else 0)
        if batch and (own + fresh > budget or whole + length > 8 * budget):
            yield batch
            batch, own, whole, fresh = [], 0, 0, length
        batch.append(example)
        own, whole = own + fresh, whole + length
    if batch:
        yield batch
