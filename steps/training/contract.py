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

from steps.core import pictures
from steps.core.errors import UserError

if TYPE_CHECKING:
    from steps.core.records import Row, Trajectory

TRUNCATED = ("length", "context")  # stop reasons of an episode that ended because max_tokens or the context cut it off
ROUNDING = 1e-6  # nats by which a logprob may lie above zero


def is_truncated(trajectory: Trajectory) -> bool:
    """Whether the episode was cut off by max_tokens or the context. An agent of one's own goes on after a turn that was
    cut off and ends by itself, so its turns are looked at, too."""
    return trajectory.stop_reason in TRUNCATED or any(turn.finish_reason == "length" for turn in trajectory.turns)


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
        if turn.pictures and (reason := pictures.breach(turn.pictures, turn.prompt_ids, trajectory.pictures)):
            return reason
        is_stopped = turn.completion_ids[-1] == end or (trajectory.is_from_gateway and turn.finish_reason == "stop")
        if (turn.finish_reason == "stop") != is_stopped:
            return "a turn whose finish_reason does not fit its last token"
    cut = [turn.finish_reason == "length" for turn in trajectory.turns]
    if trajectory.is_from_gateway:  # its agent goes on after a turn that was cut off, and says itself when it is done
        if trajectory.stop_reason not in ("done", "context"):
            return "a stop_reason that an agent of one's own does not have"
    elif any(cut[:-1]) or cut[-1] != (trajectory.stop_reason == "length"):
        return "a stop_reason that does not fit the last turn"
    return rows_breach(trajectory, rows)


def rows_breach(trajectory: Trajectory, rows: Sequence[Row]) -> str | None:
    """Why the rows do not train on each sampled token once, at its place, with its logprob, and on nothing else; or None.

    The turns of a row follow one another, and those of other rows may stand between them. Tokens that bear no loss
    (`Turn.mask`) are at their place, too.
    """
    left = list(trajectory.turns)  # in no row so far
    least = 0 if trajectory.is_from_gateway else 1  # tokens that a turn's prompt adds: an agent may continue a turn
    for ids, mask, logprobs, _, shown in rows:
        if not len(ids) == len(mask) == len(logprobs):
            return "a training row whose ids, mask and logprobs differ in length"
        if not ids:
            return "a training row without tokens"
        if any(any(mask[each.start : each.start + each.length]) for each in shown):
            return "a picture that bears loss"
        place, others = 0, []
        for turn in left:
            start, stop = len(turn.prompt_ids), turn.length
            is_here = tuple(ids[start:stop]) == turn.completion_ids and tuple(ids[:start]) == turn.prompt_ids
            if not is_here or start < max(place + least, 1):
                if not place:
                    return "a training row that does not extend turn by turn"
                others.append(turn)
                continue
            if any(mask[place:start]) or mask[start:stop] != turn.mask:
                return "a mask that does not alternate as the turns do"
            if logprobs[start:stop] != turn.trained_logprobs:
                return "a training row with logprobs of other tokens"
            place = stop
        left = others
        if place != len(ids):
            return f"a training row that {'does not extend turn by turn' if left else 'goes on after its last turn'}"
    return "a turn that is in no training row" if left else None


def check_adapter(batch: Sequence[Trajectory], expected: str, checkpoint: object) -> None:
    """UserError where a trajectory was sampled by another adapter than the expected one, which `checkpoint` (or a folder
    with an adapter) holds."""
    others = Counter(trajectory.adapter_hash for trajectory in batch if trajectory.adapter_hash != expected)
    if others:
        [(other, count)] = others.most_common(1)
        raise UserError(
            f"{count} of {len(batch)} trajectories were sampled by adapter {other}, but {checkpoint} holds {expected}: a "
            "stale adapter went on sampling, or the files are of different iterations; run rollout again"
        )
