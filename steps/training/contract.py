"""The token contract: what a trajectory must fulfil before anything is learnt from it.

A loss does not show a breach: with a shifted mask, or logprobs of other tokens, training runs on and learns nothing. Each
trajectory is checked here by itself, and one that fails is quarantined with the reason. That the batch came from the policy
that is trained is checked by the adapter's hash (`check_adapter`) and by the logprobs (steps/training/loss.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from steps.core.errors import UserError

if TYPE_CHECKING:
    from steps.core.records import Row, Trajectory

TRUNCATED = ("length", "context")  # stop reasons of an episode that was cut off by max_tokens or the context
ROUNDING = 1e-6  # nats by which a logprob may lie above zero


def end_of_turn(batch: Sequence[Trajectory]) -> int | None:
    """The token that most often ends the turns with `finish_reason` stop; None where there are none."""
    last = Counter(
        turn.completion_ids[-1]
        for trajectory in batch
        for turn in trajectory.turns
        if turn.finish_reason == "stop" and turn.completion_ids
    )
    return min(last, key=lambda token: (-last[token], token), default=None)


def breach(trajectory: Trajectory, rows: Sequence[Row], end: int | None, vocabulary: int) -> str | None:
    """Why a trajectory must not be trained on, with the training rows made from it; None where it may."""
    if trajectory.stop_reason == "error":
        return "the episode failed"
    if not trajectory.turns:
        return "no turn was sampled"
    for turn in trajectory.turns:
        if not turn.prompt_ids:
            return "a turn without a prompt"
        if not turn.completion_ids:
            return "a turn without sampled tokens"
        if len(turn.completion_ids) != len(turn.logprobs):
            return "not as many logprobs as sampled tokens"
        if not all(math.isfinite(logprob) and logprob <= ROUNDING for logprob in turn.logprobs):
            return "a logprob that is not finite or above zero"
        if not all(0 <= token < vocabulary for token in (*turn.prompt_ids, *turn.completion_ids)):
            return "a token that the model does not know"
        if (turn.finish_reason == "stop") != (turn.completion_ids[-1] == end):
            return "a turn whose finish_reason does not fit its last token"
    cut = [turn.finish_reason == "length" for turn in trajectory.turns]
    if any(cut[:-1]) or cut[-1] != (trajectory.stop_reason == "length"):
        return "a stop_reason that does not fit the last turn"
    return rows_breach(trajectory, rows)


def rows_breach(trajectory: Trajectory, rows: Sequence[Row]) -> str | None:
    """Why the rows do not train on each sampled token once, at its place, with its logprob, and on nothing else; or None."""
    turns = list(trajectory.turns)
    for ids, mask, logprobs in rows:
        if not len(ids) == len(mask) == len(logprobs):
            return "a training row whose ids, mask and logprobs differ in length"
        if not ids:
            return "a training row without tokens"
        place = 0
        while place < len(ids) and turns:
            prompt, sampled = turns[0].prompt_ids, turns[0].completion_ids
            start, stop = len(prompt), len(prompt) + len(sampled)
            if start <= place or tuple(ids[:start]) != prompt or tuple(ids[start:stop]) != sampled:
                return "a training row that does not extend turn by turn"
            if any(mask[place:start]) or not all(mask[start:stop]):
                return "a mask that does not alternate as the turns do"
            if tuple(logprobs[start:stop]) != turns[0].logprobs:
                return "a training row with logprobs of other tokens"
            place = stop
            turns.pop(0)
        if place != len(ids):
            return "a training row that goes on after its last turn"
    return "a turn that is in no training row" if turns else None


def check_adapter(batch: Sequence[Trajectory], expected: str, checkpoint: object) -> None:
    """UserError where a trajectory was sampled by another adapter than the checkpoint's."""
    others = Counter(trajectory.adapter_hash for trajectory in batch if trajectory.adapter_hash != expected)
    if others:
        [(other, count)] = others.most_common(1)
        raise UserError(
            f"{count} of {len(batch)} trajectories were sampled by adapter {other}, but {checkpoint} holds {expected}: a "
            "stale adapter went on sampling, or the files are of different iterations; run rollout again"
        )
