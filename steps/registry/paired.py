"""Intervals for the gate: how much more often one policy succeeds than another, and how often a policy succeeds.

The difference has the adjusted Wald interval of Bonett and Price (2012, Journal of Educational and Behavioral Statistics
37, 479): one scenario that was won and one that was lost are added, so that the interval does not shrink to nothing where
both policies nearly always succeed or nearly always fail. A policy's own share has Wilson's interval.

Scenarios of one cluster (questions to one inbox, repairs of one function) may succeed or fail together. The design effect
says how much that matters: the variance of the mean if whole clusters are drawn, over that if single scenarios are drawn
(Kish, Survey Sampling, 1965). All counts are divided by it, and quantiles are those of Student's t with one degree of
freedom fewer than there are clusters. With few clusters the design effect may come out too small by chance, so what is
returned is the wider of this interval and that of independent scenarios.

Exact enumeration at 60 scenarios of which few differ: a percentile bootstrap covers 0.70 to 0.98 in place of 0.95, this
interval 0.95 and more. Tango's score interval covers 0.94 and more and was not taken, because at the levels of the gate it
errs up to 1.07 times as often as it may; this one errs less often than it may. `python -m benchmarks.gate` repeats that for
this interval, and simulates clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.stats import wilson

if TYPE_CHECKING:
    import numpy as np

TAIL = 0.025  # on each side of a 95 % interval
SMALLEST = 1e-9  # design effect; 0 where all clusters have the same mean


def paired_interval(
    challenger_N: np.ndarray, other_N: np.ndarray, clusters_N: np.ndarray, tail: float = TAIL
) -> tuple[float, float, float]:
    """(difference of success, low, high); on each side of the interval lies a probability of `tail`.

    Success is 0 or 1, [N], of both policies at the same scenarios; `clusters_N` has the number of each scenario's cluster.
    With a single cluster nothing can be said, and the interval is -1 to 1. UserError where they cannot be paired.
    """
    import numpy as np

    if challenger_N.shape != other_N.shape or challenger_N.ndim != 1 or not len(challenger_N):
        raise UserError(
            f"success by scenario of shapes {challenger_N.shape} and {other_N.shape} cannot be paired: evaluate both on the "
            "same scenarios"
        )
    gap_N = challenger_N.astype(float) - other_N.astype(float)
    n, clusters = len(gap_N), len(np.unique(clusters_N))
    difference = float(gap_N.mean())
    if clusters < 2:
        return difference, -1.0, 1.0
    won, lost = int((gap_N > 0).sum()), int((gap_N < 0).sum())
    ends = [adjusted_wald(won, lost, n, quantile(n, tail))]
    if clusters < n:
        effect = design_effect(gap_N, clusters_N)
        ends.append(adjusted_wald(won / effect, lost / effect, n / effect, quantile(clusters, tail)))
    return difference, max(-1.0, min(low for low, _ in ends)), min(1.0, max(high for _, high in ends))


def judged_interval(score_N: np.ndarray, clusters_N: np.ndarray, tail: float = TAIL) -> tuple[float, float, float]:
    """(share, low, high) of the scenarios at which a judge finds one policy better: the mean of 1, 0.5 (a tie) and 0, [N].

    Wins and losses are what they are for `paired_interval`. Its interval is that of wins minus losses, and the share is half
    of that above 0.5, so it covers what it should as often.
    """
    difference, low, high = paired_interval(score_N, 1 - score_N, clusters_N, tail)
    return 0.5 + difference / 2, 0.5 + low / 2, 0.5 + high / 2


def mean_interval(gap_N: np.ndarray, clusters_N: np.ndarray, tail: float = TAIL) -> tuple[float, float, float]:
    """(mean, low, high) of differences of any size at the same N scenarios, by Student's t; the variance is multiplied by
    the design effect where that is above 1. Of fewer than two scenarios nothing can be said: -inf to inf."""
    n = len(gap_N)
    mean = float(gap_N.mean()) if n else 0.0
    if n < 2:
        return mean, -float("inf"), float("inf")
    spread = quantile(n, tail) * float(gap_N.std(ddof=1)) * (effect_of(gap_N, clusters_N) / n) ** 0.5
    return mean, mean - spread, mean + spread


def effect_of(values_N: np.ndarray, clusters_N: np.ndarray) -> float:
    """The design effect, and 1 at least; 1 too where all values are equal, or there is a single cluster."""
    import numpy as np

    clusters = len(np.unique(clusters_N))
    if clusters in (1, len(values_N)) or not values_N.std():
        return 1.0
    return max(1.0, design_effect(values_N, clusters_N))


def share_interval(success_N: np.ndarray, clusters_N: np.ndarray) -> tuple[float, float]:
    """Wilson's 95 % interval of a policy's success, 0 or 1 by scenario, [N]; 0 to 1 where all are of a single cluster."""
    import numpy as np

    n, clusters, successes = len(success_N), len(np.unique(clusters_N)), float(success_N.sum())
    if clusters < 2:
        return 0.0, 1.0
    ends = [wilson(successes, n)]
    if clusters < n:
        effect = design_effect(success_N, clusters_N)
        ends.append(wilson(successes / effect, n / effect, quantile(clusters, TAIL)))
    return min(low for low, _ in ends), max(high for _, high in ends)


def adjusted_wald(won: float, lost: float, n: float, quantile: float) -> tuple[float, float]:
    """The interval of (won - lost) / n by Bonett and Price."""
    centre = (won - lost) / (n + 2)
    spread = quantile * (won + lost + 2 - (won - lost) ** 2 / (n + 2)) ** 0.5 / (n + 2)
    return centre - spread, centre + spread


def design_effect(values_N: np.ndarray, clusters_N: np.ndarray) -> float:
    """The variance of the mean between clusters over that between scenarios: 1 where clusters tell nothing, and near their
    size where all scenarios of a cluster are alike. Values that are all equal could hide that: then the mean size."""
    import numpy as np

    n = len(values_N)
    rest_N = values_N - values_N.mean()
    _, places_N = np.unique(clusters_N, return_inverse=True)
    sums = np.bincount(places_N, weights=rest_N)
    within = float(rest_N @ rest_N) * n / (n - 1)
    if not within:
        return n / len(sums)
    return max(SMALLEST, float(sums @ sums) * len(sums) / (len(sums) - 1) / within)


def quantile(units: int, tail: float) -> float:
    """Student's t for a mean of so many independent units."""
    from scipy.special import stdtrit

    return float(stdtrit(units - 1, 1 - tail))


def numbered(clusters: Sequence[str]) -> np.ndarray:
    """The clusters of N scenarios as numbers, [N]."""
    import numpy as np

    return np.unique(np.array(clusters, dtype=object), return_inverse=True)[1]
