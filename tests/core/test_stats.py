"""Wilson intervals and the paired bootstrap: computed by hand, and held to scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from steps.core.errors import UserError
from steps.core.stats import mean, paired_bootstrap, wilson


def test_the_mean_of_nothing_is_zero() -> None:
    assert (mean([]), mean([1, 2, 6])) == (0, 3)


@pytest.mark.parametrize("n", [1, 2, 20, 240, 5000])
def test_wilson_is_scipys(n: int) -> None:
    for successes in {0, 1, n // 3, n // 2, n - 1, n}:
        expected = scipy_stats.binomtest(successes, n).proportion_ci(confidence_level=0.95, method="wilson")
        assert wilson(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-8)


@pytest.mark.parametrize(
    ("wins", "losses", "n"),
    [(20, 5, 60), (3, 3, 40), (90, 30, 240)],
)
def test_the_paired_bootstrap_is_scipys_within_what_drawing_varies(wins: int, losses: int, n: int) -> None:
    """Success of 0 or 1: `wins` scenarios that the challenger alone succeeds at, `losses` that the other alone does.

    An end of the interval varies between draws by the standard deviation of a quantile from R resamples,
    sqrt(q (1 - q) / R) / density: 4 of these are allowed for each side, and one step of 1/n, as means lie 1/n apart.
    """
    challenger, other = np.zeros(n), np.zeros(n)
    challenger[:wins] = 1
    other[wins : wins + losses] = 1
    resamples = 20_000
    expected = scipy_stats.bootstrap(
        (challenger - other,), np.mean, n_resamples=resamples, method="percentile", batch=1000, rng=0
    )
    spread = float(expected.standard_error)
    density = scipy_stats.norm.pdf(scipy_stats.norm.ppf(0.025)) / spread
    allowed = 2 * 4 * math.sqrt(0.025 * 0.975 / resamples) / density + 1 / n
    difference, low, high = paired_bootstrap(challenger, other, seed=1, resamples=resamples)
    assert difference == pytest.approx((wins - losses) / n)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval), abs=allowed)
    assert allowed < 0.2 * (high - low)  # a wrong level or a missing pairing would not pass


def test_the_interval_of_one_kind_of_difference_is_the_binomials() -> None:
    """40 of 100 differ, all by +1: a resample's mean is Binomial(100, 0.4) / 100, with 2.5 % at 0.31 and 97.5 % at 0.50."""
    shares = [math.comb(100, k) * 0.4**k * 0.6 ** (100 - k) for k in range(101)]
    below = np.cumsum(shares)
    expected = [int(np.searchsorted(below, level)) / 100 for level in (0.025, 0.975)]
    assert expected == [0.31, 0.5]
    found = paired_bootstrap(np.repeat([1, 0], [70, 30]), np.repeat([1, 0], [30, 70]), seed=0)
    assert found[0] == pytest.approx(0.4)
    assert found[1:] == pytest.approx((0.31, 0.5), abs=0.011)


def test_pairs_and_not_shares_decide() -> None:
    """Success 0.6 and 0.5 both times. Where the second's wins are among the first's, there is nothing but gain."""
    first = np.repeat([1, 0], [60, 40])
    nested = paired_bootstrap(first, np.repeat([1, 0], [50, 50]), seed=0)
    apart = paired_bootstrap(first, np.repeat([0, 1], [50, 50]), seed=0)
    assert nested[0] == apart[0] == pytest.approx(0.1)
    assert nested[1:] == pytest.approx((0.05, 0.16), abs=0.011)  # Binomial(100, 0.1)
    assert apart[1] < -0.05


def test_scores_that_are_no_counts_too() -> None:
    """Differences with standard deviation s: the interval is the mean ± 1.96 s / √n, near enough at n = 400."""
    rng = np.random.default_rng(5)
    other, gain = rng.random(400), rng.normal(0.05, 0.2, 400)
    difference, low, high = paired_bootstrap(other + gain, other, seed=1)
    half = 1.96 * gain.std() / 20
    assert difference == pytest.approx(gain.mean())
    assert (low, high) == pytest.approx((gain.mean() - half, gain.mean() + half), abs=0.002)


def test_the_seed_is_all_that_is_random() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.random(50), rng.random(50)
    assert paired_bootstrap(one, other, seed=7) == paired_bootstrap(one, other, seed=7)
    assert paired_bootstrap(one, other, seed=7) != paired_bootstrap(one, other, seed=8)
    assert paired_bootstrap(one, one, seed=7) == (0, 0, 0)


@pytest.mark.parametrize("lengths", [(3, 4), (0, 0)])
def test_what_cannot_be_paired_is_refused(lengths: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="cannot be paired: evaluate both on the same scenarios"):
        paired_bootstrap(np.zeros(lengths[0]), np.zeros(lengths[1]), seed=0)
