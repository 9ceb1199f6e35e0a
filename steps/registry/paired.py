"""Intervals of the gate and the watch, which allow for alike scenarios in clusters of any size.

Scenarios of one cluster (questions to one inbox, repairs of one function) may succeed or fail together. How much that
matters is the design effect: the variance of the mean where clusters are drawn, over that where single scenarios are
(Kish, Survey Sampling, 1965). The former is a jackknife, which leaves out one cluster after another, so that a large one
which the mean follows makes it large (CR3 in MacKinnon and Webb 2018, The Econometrics Journal 21, 114). The quantiles
are Student's, with one degree of freedom fewer than there are effective clusters, N² / Σ size², which is their number
where all are of one size (Carter, Schnepel and Steigerwald 2017, Review of Economics and Statistics 99, 698). With fewer
than two of them nothing can be said: of 200 questions to one inbox and 40 to others, all that counts is what happens in
the one.

The jackknife is too sure where what differs are single scenarios and the large clusters are all equal by chance: the former
have a variance, and no other scenario that could show how alike clusters are. So the effect is at least what the correlation
of pairs within clusters makes of it, 1 + correlation × (mean size - 1), the size being that of a scenario's own cluster; a
scenario counts as often as it has others in its cluster (the estimator of Karlin, Cameron and Williams 1981, PNAS 78, 2664,
that weights pairs alike). Where clusters are of one size it adds next to nothing: 0.4 % from twelve of them on.

The difference of two policies has the adjusted Wald interval of Bonett and Price (2012, Journal of Educational and
Behavioral Statistics 37, 479): one scenario that was won and one that was lost are added, so that the interval does not
shrink to nothing where the policies seldom differ. A policy's own share has Wilson's interval. Both count scenarios after
division by the effect, which is 1 at least. Where few scenarios tell it, the effect comes out too small; so scenarios
that are as alike as can be are added to it, one for a difference and four for a share. Of independent scenarios it is 1.

What was tried and is worse, in simulations as those of `python -m benchmarks.gate`, whose table is in docs/benchmarks.md:
the sums of clusters with as many degrees of freedom as clusters, which is right where sizes are equal, promotes 18 % at
the first look where 2.5 % are allowed, of 200 and 40 × 1. CR2 in place of the jackknife promotes 2.8 % of 2 × 100 and 40
× 1 (the jackknife 1.4 %) and gains 4 points of power at most, in uneven designs alone. The degrees of freedom of Bell and
McCaffrey (2002) with alike scenarios see +0.10 in 10 % of 30 clusters by Zipf's law, where these see 32 %. Nothing added
to the effect covers a share of 5 clusters in 83 % and a difference of 5 in 72 %. The wild cluster bootstrap errs as
seldom as it may and sees more where sizes are very uneven (54 % against 38 % with Zipf's 30), and as much elsewhere; but
it flips signs of clusters, so that it is never surer than 2^-clusters: 5 clusters would promote nothing at any look, and
13 nothing at the twentieth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from steps.core.errors import UserError
from steps.core.stats import wilson

if TYPE_CHECKING:
    import numpy as np

    from steps.core.alike import Groups


TAIL = 0.025  # on each side of a 95 % interval
ADDED = 4.0  # scenarios that Wilson's 95 % interval adds, half of them successes (Agresti and Coull 1998)
FEWEST = 2.0  # effective clusters: with fewer nothing can be said


class Clusters(NamedTuple):
    """How N scenarios fall into C clusters."""

    order_N: np.ndarray  # places of the scenarios, cluster after cluster
    starts_C: np.ndarray  # where each cluster starts in that order
    sizes_C: np.ndarray

    @property
    def effective(self) -> float:
        """Clusters of one size that would tell as much, N² / Σ size²."""
        return float(self.sizes_C.sum() ** 2 / (self.sizes_C**2).sum())

    @property
    def are_single(self) -> bool:
        """Whether all scenarios are independent."""
        return len(self.sizes_C) == len(self.order_N)


def clusters_of(clusters_N: np.ndarray) -> Clusters:
    """The clusters by the number of each scenario's, [N]."""
    import numpy as np

    _, places_N, sizes_C = np.unique(clusters_N, return_inverse=True, return_counts=True)
    starts_C = np.concatenate([[0], np.cumsum(sizes_C)[:-1]])
    return Clusters(np.argsort(places_N, kind="stable"), starts_C, sizes_C.astype(float))


def interval(
    gap_XN: np.ndarray, clusters_N: np.ndarray, tail: float = TAIL, unit: float | np.ndarray = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, low, high) of the differences of two policies at the same N scenarios; X is whatever dimensions the differences
    have before that of scenarios. `unit`: the largest difference at one scenario, which is added once as won and once as
    lost; [X], or one for all. -inf to inf where nothing can be said."""
    import numpy as np

    n, clusters = gap_XN.shape[-1], clusters_of(clusters_N)
    mean_X = gap_XN.mean(-1)
    if clusters.effective < FEWEST:
        return mean_X, np.full_like(mean_X, -np.inf), np.full_like(mean_X, np.inf)
    effect_X = design_effect(gap_XN, clusters, unit)
    sum_X, squares_X, counted_X = gap_XN.sum(-1) / effect_X, (gap_XN**2).sum(-1) / effect_X, n / effect_X + 2
    centre_X = sum_X / counted_X
    variance_X = np.maximum(0.0, squares_X + 2 * np.square(unit) - sum_X * centre_X)
    spread_X = quantile(clusters.effective, tail) * np.sqrt(variance_X) / counted_X
    return mean_X, centre_X - spread_X, centre_X + spread_X


def paired_interval(
    challenger_N: np.ndarray, other_N: np.ndarray, clusters_N: np.ndarray, tail: float = TAIL
) -> tuple[float, float, float]:
    """(difference of success, low, high); on each side of the interval lies a probability of `tail`.

    Success is 0 or 1, [N], of both policies at the same scenarios; `clusters_N` has the number of each scenario's cluster.
    Where nothing can be said the interval is -1 to 1. UserError where the two cannot be paired.
    """
    if challenger_N.shape != other_N.shape or challenger_N.ndim != 1 or not len(challenger_N):
        raise UserError(
            f"success by scenario of shapes {challenger_N.shape} and {other_N.shape} cannot be paired: evaluate both on the "
            "same scenarios"
        )
    difference, low, high = map(float, interval(challenger_N.astype(float) - other_N, clusters_N, tail))
    return difference, max(-1.0, low), min(1.0, high)


def judged_interval(score_N: np.ndarray, clusters_N: np.ndarray, tail: float = TAIL) -> tuple[float, float, float]:
    """(share, low, high) of the scenarios at which a judge finds one policy better: the mean of 1, 0.5 (a tie) and 0, [N].

    Wins and losses are what they are for `paired_interval`. Its interval is that of wins minus losses, and the share is half
    of that above 0.5, so it covers what it should as often.
    """
    difference, low, high = paired_interval(score_N, 1 - score_N, clusters_N, tail)
    return 0.5 + difference / 2, 0.5 + low / 2, 0.5 + high / 2


def mean_interval(gap_N: np.ndarray, clusters_N: np.ndarray, tail: float = TAIL) -> tuple[float, float, float]:
    """(mean, low, high) of differences of any size at the same N scenarios, of which the largest seen is the unit. -inf to
    inf where nothing can be said."""
    if len(gap_N) < FEWEST:
        return float(gap_N.sum()), -float("inf"), float("inf")
    mean, low, high = map(float, interval(gap_N, clusters_N, tail, abs(gap_N).max()))
    return mean, low, high


def share_interval(success_N: np.ndarray, clusters_N: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a policy's success, 0 or 1 by scenario, [N]: Wilson's with Student's quantile, because his own
    covers 0.92 of 16 or 20 independent scenarios, and this one 0.94; 0 to 1 where nothing can be said."""
    n, clusters, successes = len(success_N), clusters_of(clusters_N), float(success_N.sum())
    if clusters.effective < FEWEST:
        return 0.0, 1.0
    effect = float(design_effect(success_N.astype(float), clusters, alike=ADDED))
    return wilson(successes / effect, n / effect, quantile(clusters.effective, TAIL))


def attempts_interval(values: Iterable[tuple[str, float]], groups: Groups) -> tuple[float, float]:
    """`share_interval` for all that shows a success, so that each number has the same interval wherever it stands: of values
    that are 0 or 1, at least one, each with the id of its scenario; several attempts at a scenario are all of its group."""
    import numpy as np

    ids, successes = zip(*values, strict=True)
    return share_interval(np.array(successes, dtype=float), numbered(groups.of(ids)))


def design_effect(
    values_XN: np.ndarray, clusters: Clusters, unit: float | np.ndarray = 1.0, alike: float = 1.0
) -> np.ndarray:
    """The variance of the mean between clusters over that between scenarios, [X]: 1 where clusters tell nothing, and their
    size where all scenarios of a cluster are alike, also where all values are equal. `unit` as in `interval`; `alike`: so
    many scenarios are added that are as alike as can be."""
    import numpy as np

    if clusters.are_single:
        return np.ones(values_XN.shape[:-1])
    n, number, sizes_C = values_XN.shape[-1], len(clusters.sizes_C), clusters.sizes_C
    mean_size = n / clusters.effective  # of the cluster that a scenario is in
    rest_XN = (values_XN - values_XN.mean(-1, keepdims=True))[..., clusters.order_N]
    sums_XC = np.add.reduceat(rest_XN, clusters.starts_C, axis=-1)
    squares_XC = np.add.reduceat(np.square(rest_XN), clusters.starts_C, axis=-1)
    between_X = (np.square(sums_XC / (1 - sizes_C / n))).sum(-1) * (number - 1) / number
    within_X = squares_XC.sum(-1) * n / (n - 1)
    # Where every difference is 0, as alike as can be.
    added_X = alike * np.where(np.square(unit) > 0, np.square(unit), 1.0)
    drawn_X = (between_X + added_X * mean_size) / (within_X + added_X)
    return np.maximum(drawn_X, 1 + correlation(sums_XC, squares_XC, sizes_C, added_X) * (mean_size - 1))


def correlation(sums_XC: np.ndarray, squares_XC: np.ndarray, sizes_C: np.ndarray, added_X: np.ndarray) -> np.ndarray:
    """The correlation of two scenarios of one cluster, 0 to 1, [X], by the sums and squares of the deviations in each; so
    much is added as if it were alike."""
    import numpy as np

    covariance_X, variance_X = (np.square(sums_XC) - squares_XC).sum(-1), (squares_XC * (sizes_C - 1)).sum(-1)
    return np.maximum(0.0, (covariance_X + added_X) / (variance_X + added_X))


def quantile(units: float, tail: float) -> float:
    """Student's t for a mean of so many independent units, 2 at least; they need not be a whole number."""
    from scipy.special import stdtrit

    return float(stdtrit(units - 1, 1 - tail))


def numbered(clusters: Sequence[str]) -> np.ndarray:
    """The clusters of N scenarios as numbers, [N]."""
    import numpy as np

    return np.unique(np.array(clusters, dtype=object), return_inverse=True)[1]
