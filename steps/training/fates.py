"""What becomes of each trajectory in an update: learnt from, or why not. Each has exactly one fate.

A trajectory without a signal pushes the policy nowhere. It still counts in the averages of the loss, and for the KL to the
base policy unless it is masked, as in TRL; with update.without_signal: drop it does not. A quarantined one counts nowhere.

The stage update decides it and writes it to fates.json as {trajectory id: fate}, in the order of the batch;
steps/analytics/waste.py sums the sampled tokens by it.
"""

from __future__ import annotations

from typing import Literal, get_args

Fate = Literal[
    "gradient",  # trained on
    "quarantined",  # the episode failed, or breaks the token contract (steps/training/contract.py)
    "unscored",  # a judge could not score it
    "zero_variance",  # all scores of its group are equal, or it is the only one that was scored
    "truncated",  # cut off, and update.truncated_completions is mask
    "at_mean",  # trained on, but its score is its group's mean: only the KL to the base policy changes anything
]
FATES: tuple[Fate, ...] = get_args(Fate)
TRAINED: tuple[Fate, ...] = ("gradient", "at_mean")
WITHOUT_SIGNAL: tuple[Fate, ...] = ("unscored", "zero_variance", "truncated")


def fate(is_quarantined: bool, score: float | None, advantage: float | None, is_masked: bool) -> Fate:
    """The first reason that holds; `score` and `advantage` as in steps/training/batches.py."""
    if is_quarantined:
        return "quarantined"
    if score is None:
        return "unscored"
    if advantage is None:
        return "zero_variance"
    if is_masked:
        return "truncated"
    return "gradient" if abs(advantage) > 1e-9 else "at_mean"
