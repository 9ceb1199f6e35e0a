"""The parts of an update: trajectories with their advantages, optimiser steps, micro-batches by tokens."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.records import Row
from steps.training import packing

if TYPE_CHECKING:
    from steps.core.params import Update
    from steps.core.records import Trajectory

STD_FLOOR = 1e-4  # added to a standard deviation of rewards, as TRL does
ROUNDING = 1e-9  # an advantage, or a difference of rewards, that is not more than this is none
TOKENS = 4096  # of a micro-batch on a CPU, whose bytes depend on it


class Example(NamedTuple):
    """A trajectory of an update: its training rows, its advantage, and the group that it was compared with.

    The loss takes it as TRL takes a row: its sampled tokens are averaged, and have one ratio, together.
    """

    rows: Sequence[Row]
    advantage: float  # 0 where the trajectory has no signal; with `by_token` the one that is farthest from 0
    group: str = ""
    is_masked: bool = False  # it counts as a trajectory, and none of its tokens does
    by_token: Sequence[float] | None = None  # [S] of the sampled tokens, where turns have advantages of their own

    @property
    def ids(self) -> list[list[int]]:
        """Of each row. Sorted by it, trajectories with a common beginning are side by side."""
        return [row.ids for row in self.rows]

    @property
    def tokens(self) -> int:
        """Sampled tokens that the loss counts."""
        return 0 if self.is_masked else sum(sum(row.mask) for row in self.rows)

    @property
    def bears_loss(self) -> bool:
        """Whether a token is trained on: none is where all turns were chosen by a grammar."""
        return not self.is_masked and any(1 in row.mask for row in self.rows)

    @property
    def has_signal(self) -> bool:
        return abs(self.advantage) > ROUNDING and self.bears_loss

    def has_gradient(self, is_everywhere: bool) -> bool:
        """Whether the trajectory can change anything; `is_everywhere`: all tokens learn something, such as by a KL term."""
        return self.has_signal or (is_everywhere and self.bears_loss)


def advantages(
    rewards: Sequence[float | None], groups: Sequence[str], scale: str = "group"
) -> tuple[list[float | None], int]:
    """Group-normalised advantages, and how many groups had no signal.

    A group's baseline is the mean of its scored attempts, however many there are. None marks an attempt without a signal: it
    has no score, or all scores of its group are equal; TRL's advantage of it is 0. `scale` divides by the group's standard
    deviation, the batch's, or not at all (GRPO; Hu et al. 2025, REINFORCE++; Dr. GRPO), each plus 1e-4 as in TRL.
    """
    from statistics import fmean, stdev

    scored: dict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            scored[group].append(reward)
    flat = {group for group, values in scored.items() if max(values) - min(values) < ROUNDING}
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


def steps_of(with_signal: int, groups: int, settings: Update) -> int:
    """Optimiser steps of a pass over so many groups, of which so many have a signal: `update.optimizer_steps`.

    Adam's steps are as long whatever the gradient. Learning from a share of a batch warrants the root of that share of the
    way: the square-root rule for Adam's batches (Malladi et al. 2022, arXiv:2205.10287).
    """
    most = settings.steps_per_generation
    if settings.optimizer_steps == "fixed" or not with_signal:
        return most if settings.optimizer_steps == "fixed" else 0
    return max(1, round(most * (with_signal / groups) ** 0.5))


class OptimizerStep(NamedTuple):
    """One optimiser step: this process's micro-batches, and what the step of all processes counts."""

    batches: list[dict[str, Any]]  # of the trajectories that have a gradient
    others: list[dict[str, Any]]  # which are counted, and pass forward for the metrics where they have tokens
    trajectories: int
    tokens: int  # sampled ones, of trajectories that are not masked
    computed: int  # those of them that have a gradient
    groups: frozenset[str]  # with a trajectory that has a gradient

    @property
    def everything(self) -> list[dict[str, Any]]:
        return [*self.batches, *self.others]


def by_group(examples: Sequence[Example]) -> dict[str, list[Example]]:
    """The trajectories of each group, in the order given."""
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        groups[example.group].append(example)
    return groups


def split_evenly(examples: list[Example], parts: int) -> list[list[Example]]:
    """`parts` lists whose lengths differ by at most one, in order."""
    count = len(examples)
    return [examples[count * part // parts : count * (part + 1) // parts] for part in range(parts)]


def split_steps(examples: Sequence[Example], steps: int, draw: random.Random) -> list[list[Example]]:
    """The trajectories of each optimiser step of a pass: as many in each, and with as many of groups that have a signal.

    TRL shuffles single trajectories, which gives each step about the same share of both kinds. Here `draw` orders whole
    groups, so that trajectories that share a prompt stay together; only the end of a step cuts a group.
    """
    groups = by_group(examples)
    with_signal: list[Example] = []
    without: list[Example] = []
    for group in draw.sample(sorted(groups), len(groups)):
        kind = with_signal if any(example.has_signal for example in groups[group]) else without
        kind += groups[group]
    placed = [
        ((index + 0.5) / len(kind), example) for kind in (with_signal, without) for index, example in enumerate(kind)
    ]
    return split_evenly([example for _, example in sorted(placed, key=lambda pair: pair[0])], steps)


def share_of(examples: list[Example], process: tuple[int, int], budget: int) -> tuple[list[list[Example]], int]:
    """(micro-batches of the process (rank, number of processes), how many more the process has that has most of them)."""
    rank, processes = process
    parts = [list(micro_batches(part, budget)) for part in split_evenly(examples, processes)]
    return parts[rank], max(map(len, parts)) - len(parts[rank])


def micro_batches(examples: Sequence[Example], budget: int) -> Iterator[list[Example]]:
    """Sorted trajectories in order, split into batches. The tokens that rows do not share with the row before are at most
    `budget` per batch, and all tokens, which are attention's keys, at most 8 times as many. One trajectory alone may have
    more."""
    batch: list[Example] = []
    own = whole = 0
    for example in examples:
        length = sum(map(len, example.ids))
        fresh = _unshared(example, batch[-1].ids[-1] if batch else [])
        if batch and (own + fresh > budget or whole + length > 8 * budget):
            yield batch
            batch, own, whole, fresh = [], 0, 0, _unshared(example, [])
        batch.append(example)
        own, whole = own + fresh, whole + length
    if batch:
        yield batch


def _unshared(example: Example, before: list[int]) -> int:
    """Tokens of a trajectory's rows that each does not share with the row before it; `before`: that of the first."""
    return sum(
        len(ids) - packing.shared(ids, previous)
        for ids, previous in zip(example.ids, [before, *example.ids], strict=False)
    )


def of_tokens(trajectory: Trajectory, turns: Sequence[float]) -> list[float] | None:
    """The advantages of the tokens that the loss counts, [S], in the order of the training rows; None where all turns have
    the same."""
    if len(set(turns)) <= 1:
        return None
    return [
        turns[place]
        for places in trajectory.turns_of_rows()
        for place in places
        for _ in range(sum(trajectory.turns[place].mask))
    ]
