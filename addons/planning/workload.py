"""How many tokens an iteration handles, from params.yaml and the length of episodes.

Episodes are as long as those of the last run in this folder, where it was of the same task; else as given or assumed. Of
that run dvc.lock (the parameters of an iteration), run/NNN/timings/ and run/NNN/trajectories.parquet are read. The
arithmetic mirrors steps/training/batches.py (optimiser steps of whole groups, micro-batches by tokens) and
steps/training/packing.py (a beginning that rows share is computed once; stretches of at most 256 queries).
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from addons.planning import models
from steps.core.errors import UserError
from steps.core.params import Params
from steps.core.parquet import read_columns
from steps.core.records import ITERATION_STAGES
from steps.policy.loading import USUAL, turn_limit
from steps.project.lock import read_lock
from steps.training.batches import TOKENS

QUERIES = 256  # as in steps/training/packing.py; a test holds the two together
KEYS = 8  # of a micro-batch, in multiples of tokens_per_micro_batch: as in steps/training/batches.py


class Episodes(NamedTuple):
    """The mean episode, in tokens."""

    prompt: float  # which all attempts at a scenario share
    turns: float
    sampled: float  # of a turn
    observed: float  # that the environment adds after a turn
    source: str  # where the figures are from, for the report

    @property
    def own(self) -> float:
        """Tokens of an episode beyond its prompt."""
        return self.turns * self.sampled + (self.turns - 1) * self.observed

    @property
    def length(self) -> float:
        return self.prompt + self.own


class Run(NamedTuple):
    """What an iteration of the last run in a folder measured."""

    params: Params  # those of its stages
    episodes: Episodes
    seconds: dict[str, float]  # stage -> seconds of its own work


class Batch(NamedTuple):
    """What an update computes. Counts are of all its optimiser steps, or of its largest micro-batch."""

    episodes: int
    tokens: float  # that pass through the model in all, each shared beginning once for each optimiser step
    sampled: float  # whose logits are computed
    pairs: float  # of queries and keys in attention
    micro_batches: int
    largest: float  # tokens of the largest micro-batch
    largest_keys: float  # keys and values that its attention gathers
    largest_sampled: float


def last_run(root: Path) -> Run | None:
    """The latest iteration in run/ that is whole and that dvc.lock describes; None where there is none."""
    for folder in sorted(root.glob("run/[0-9][0-9][0-9]"), reverse=True):
        timings = {stage: folder / "timings" / f"{output}.json" for stage, output in ITERATION_STAGES.items()}
        trajectories = folder / "trajectories.parquet"
        if trajectories.exists() and all(path.exists() for path in timings.values()):
            lock = read_lock(root)
            recorded: dict[str, Any] = {}
            for name in (*(f"{stage}@{folder.name}" for stage in ITERATION_STAGES), "scenarios"):
                recorded |= lock.get(name, {}).get("params", {}).get("params.yaml", {})
            if "rollout" not in recorded:
                return None
            params = Params.model_validate(
                {key: value for key, value in recorded.items() if key in Params.model_fields}
            )
            seconds = {stage: float(json.loads(path.read_text())["seconds"]) for stage, path in timings.items()}
            return Run(params, mean_episode(trajectories), seconds)
    return None


def mean_episode(path: Path) -> Episodes:
    """The mean episode in a file of trajectories."""
    prompts, turns, sampled, observed = [], [], [], []
    for played in read_columns(path, ["turns"])["turns"].to_pylist():
        if not played:
            continue
        made = [len(turn["completion_ids"]) for turn in played]
        prompts.append(len(played[0]["prompt_ids"]))
        turns.append(len(played))
        sampled.append(sum(made))
        observed.append(len(played[-1]["prompt_ids"]) - prompts[-1] - sum(made[:-1]))
    mean = fmean(turns)
    answers = fmean(observed) / (mean - 1) if mean > 1 else 0.0
    return Episodes(fmean(prompts), mean, fmean(sampled) / mean, answers, f"as in {path}")


def assumed(params: Params, turns: int) -> Episodes:
    """Episodes where nothing was measured: a prompt of 400 tokens, half of the task's `turns`, each of a quarter of
    rollout.max_tokens, and answers of tools four times as long; shorter where policy.context ends them."""
    turns = max(1, min(turns, params.rollout.max_turns or turns) // 2)
    limit = params.rollout.max_tokens
    if limit is None and models.is_reachable(params.policy):
        with suppress(UserError):  # a plan needs no tokenizer, by which a model that reasons first is known
            limit = turn_limit(params.policy, None)
    sampled = (limit or min(USUAL, params.policy.context // 4)) / 4
    prompt = min(400.0, params.policy.context / 2)
    whole = turns * sampled + (turns - 1) * 4 * sampled
    sampled *= min(1.0, (params.policy.context - prompt) / whole)
    return Episodes(prompt, turns, sampled, 4 * sampled if turns > 1 else 0.0, "assumed: --episode gives others")


def keys(start: float, own: float) -> float:
    """Keys that the stretches of a row's own tokens gather: each stretch of QUERIES its path from the beginning."""
    parts = max(1, math.ceil(own / QUERIES))
    return sum(start + own * part / parts for part in range(1, parts + 1))


def batch(params: Params, episodes: Episodes) -> Batch:
    """The work of one update of `rollout.scenarios` × `rollout.attempts` episodes of the mean length: all are laid out as
    the trainer does it, in optimiser steps as large as each other, each cut into micro-batches."""
    attempts, count = params.rollout.attempts, params.rollout.scenarios * params.rollout.attempts
    steps = min(params.update.steps_per_generation, count)
    budget = params.update.tokens_per_micro_batch or TOKENS
    first, later = keys(0, episodes.length), keys(episodes.prompt, episodes.own)
    cuts: list[tuple[float, float, int]] = []  # (tokens, keys, episodes) of each micro-batch
    for step in range(steps):
        tokens = gathered = whole = 0.0
        members, group = 0, -1
        for number in range(count * step // steps, count * (step + 1) // steps):
            fresh = episodes.own + (episodes.prompt if number // attempts != group else 0)
            if members and (tokens + fresh > budget or whole + episodes.length > KEYS * budget):
                cuts.append((tokens, gathered, members))
                tokens, gathered, whole, members, fresh, group = 0.0, 0.0, 0.0, 0, episodes.length, -1
            gathered += later if number // attempts == group else first
            tokens, whole, members, group = tokens + fresh, whole + episodes.length, members + 1, number // attempts
        cuts.append((tokens, gathered, members))
    sampled = episodes.turns * episodes.sampled
    prompts = sum(tokens - members * episodes.own for tokens, _, members in cuts)
    return Batch(
        episodes=count,
        tokens=sum(tokens for tokens, _, _ in cuts),
        sampled=count * sampled,
        pairs=count * episodes.own * (episodes.prompt + episodes.own / 2) + prompts * episodes.prompt / 2,
        micro_batches=len(cuts),
        largest=max(tokens for tokens, _, _ in cuts),
        largest_keys=max(gathered for _, gathered, _ in cuts),
        largest_sampled=max(members for _, _, members in cuts) * sampled,
    )
