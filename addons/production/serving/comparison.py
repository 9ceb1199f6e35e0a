"""Compares two served versions by what people say of their answers: the mean scores of conversations, from 0 to 1.

The conversations of two versions are different ones, so the interval is that of a difference of two shares: Newcombe's
hybrid of Wilson's intervals (1998, Statistics in Medicine 17, 873, method 10). A score between 0 and 1 has at most the
variance of a Bernoulli variable with the same mean, so that for graded scores the interval is too wide rather than too
narrow.

Whoever looks again and again finds a difference by chance in the end. So there is a look only at `first` conversations of
each version, at twice as many, and so on, and the k-th look has the share 2^-k of the probability of error: all looks
together err with the probability `errors` at most: tests/addons/production/test_comparison.py simulates that.

Left out: that conversations of one person or one program may be alike. A record does not say reliably who asked, so each
counts as independent. In simulation six looks then err in 3 % of the cases (5 % are allowed), in 40 % where everybody has
three conversations with the same score, and in 72 % where everybody has ten of which half are alike. So feedback must come
from many people, few times each: with fewer, leave serve.canary and serve.rollback off and judge by the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steps.core.stats import wilson


class Comparison(NamedTuple):
    """The difference of two versions' mean scores."""

    own: float
    other: float
    own_n: int  # conversations
    other_n: int
    low: float
    high: float
    level: float  # of the interval, as 0.95

    def __str__(self) -> str:
        gap = self.own - self.other
        return (
            f"mean score {self.own:.3f} of {self.own_n} conversations against {self.other:.3f} of {self.other_n}: "
            f"{gap:+.3f} [{self.low:+.3f}, {self.high:+.3f}] ({100 * self.level:.4g} %)"
        )


def is_due(looks: int, own_n: int, other_n: int, first: int) -> bool:
    """Whether there are conversations enough for one more look, after so many."""
    return min(own_n, other_n) >= first * 2**looks


def compare(own: Sequence[float], other: Sequence[float], look: int, errors: float) -> Comparison:
    """The comparison at this look, counted from 1."""
    from statistics import NormalDist

    error = errors * 2.0**-look
    z = NormalDist().inv_cdf(1 - error / 2)
    (share, low, high), (other_share, other_low, other_high) = (interval(scores, z) for scores in (own, other))
    gap = share - other_share
    below = ((share - low) ** 2 + (other_high - other_share) ** 2) ** 0.5
    above = ((high - share) ** 2 + (other_share - other_low) ** 2) ** 0.5
    return Comparison(share, other_share, len(own), len(other), gap - below, gap + above, 1 - error)


def interval(scores: Sequence[float], z: float) -> tuple[float, float, float]:
    """(mean, low, high)."""
    return sum(scores) / len(scores), *wilson(sum(scores), len(scores), z)
