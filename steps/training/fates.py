"""What becomes of each trajectory in an update, and of each sampled token: learnt from, or why not. Each has one fate.

A trajectory without a signal has no advantage: no reward pushes the policy by it. As in TRL it still counts in the averages
of the loss, and with update.beta above 0 the KL to the base policy still has its gradient there, unless it is masked; with
update.without_signal: drop it does neither. A quarantined one counts nowhere.

The stage update decides it and writes it to fates.json as {trajectory id: fate}, in the order of the batch;
steps/analytics/waste.py sums the sampled tokens by it. A token has the fate of its trajectory, but for those of trajectories
that are trained on at which a grammar left no choice, or an unknown one chose (`Turn.mask`): they bear no loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from steps.core.records import Row, Trajectory

Fate = Literal[
    "gradient",  # trained on
    "quarantined",  # the episode failed, or breaks the token contract (steps/training/contract.py)
    "unscored",  # a judge could not score it
    "zero_variance",  # all scores of its group are equal, or it is the only one that was scored
    "truncated",  # cut off, and update.truncated_completions is mask
    "constrained",  # a grammar left no choice at any of its tokens, or an unknown one chose them: none bears loss
    "at_mean",  # trained on, but its score is its group's mean: only the KL to the base policy changes anything
]
FATES: tuple[Fate, ...] = get_args(Fate)
TRAINED: tuple[Fate, ...] = ("gradient", "at_mean")
CONSTRAINED: Fate = "constrained"
WITHOUT_SIGNAL: tuple[Fate, ...] = ("unscored", "zero_variance", "truncated", CONSTRAINED)
DROPPED = {  # why no reward pushes a sampled token, by its fate
    "quarantined": "quarantined",
    "truncated": "masked",
    "unscored": "without_signal",
    "zero_variance": "without_signal",
    CONSTRAINED: CONSTRAINED,
}


def fate(
    is_quarantined: bool, score: float | None, advantage: float | None, is_masked: bool, has_choice: bool = True
) -> Fate:
    """The first reason that holds; `score` and `advantage` as in steps/training/batches.py. `has_choice`: a token of its
    rows bears loss."""
    if is_quarantined:
        return "quarantined"
    if score is None:
        return "unscored"
    if advantage is None:
        return "zero_variance"
    if is_masked:
        return "truncated"
    if not has_choice:
        return CONSTRAINED
    return "gradient" if abs(advantage) > 1e-9 else "at_mean"


def account(
    batch: Sequence[Trajectory], rows: Mapping[str, Sequence[Row]], fates: Mapping[str, Fate]
) -> dict[str, float]:
    """Every sampled token of a batch, as metrics: trained on, as the masks of the rows say, or dropped, by the reason; and
    the rows of an episode and its forks, by their cause. AssertionError where a token is counted twice or not at all.
    """
    trained = [trajectory for trajectory in batch if fates[trajectory.id] in TRAINED]
    tokens = sum(sum(row.mask) for trajectory in trained for row in rows[trajectory.id])
    collected = 0
    dropped = dict.fromkeys(DROPPED.values(), 0)
    for trajectory in batch:
        for turn in trajectory.turns:
            collected += len(turn.completion_ids)
            for name, count in token_fates(fates[trajectory.id], turn.mask).items():
                if name in DROPPED:
                    dropped[DROPPED[name]] += count
    if collected != tokens + sum(dropped.values()):
        raise AssertionError(f"{collected} tokens were sampled, {tokens} are trained on, and dropped are {dropped}")
    forks = Counter(turn.fork for trajectory in batch for turn in trajectory.turns if turn.fork)
    return {
        "rows_per_episode": sum(len(rows[trajectory.id]) for trajectory in trained) / max(len(trained), 1),
        "tokens_collected": collected,
        "tokens_trained": tokens,
        **{f"tokens_dropped/{reason}": count for reason, count in dropped.items()},
        **{f"forks/{cause}": count for cause, count in sorted(forks.items())},
    }


def token_fates(of_trajectory: str, mask: Sequence[int]) -> dict[str, int]:
    """How many of a turn's sampled tokens have which fate; `mask`: Turn.mask."""
    if of_trajectory not in TRAINED:
        return {of_trajectory: len(mask)}
    return {of_trajectory: sum(mask), CONSTRAINED: len(mask) - sum(mask)}
