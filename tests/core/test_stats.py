"""The mean, and Wilson's interval, which is held to scipy's."""

from __future__ import annotations

import pytest
from scipy import stats as scipy_stats

from steps.core.stats import added, mean, wilson


def test_the_mean_of_nothing_is_zero() -> None:
    assert (mean([]), mean([1, 2, 6])) == (0, 3)


def test_sums_are_from_left_to_right_on_every_python() -> None:
    """A sum with compensation, which sum() has been since Python 3.12, is 1 and 0.1."""
    assert (added([0.1] * 10), mean([0.1] * 10)) == (0.9999999999999999, 0.09999999999999999)


@pytest.mark.parametrize("n", [1, 2, 20, 240, 5000])
def test_wilson_is_scipys(n: int) -> None:
    for successes in {0, 1, n // 3, n // 2, n - 1, n}:
        expected = scipy_stats.binomtest(successes, n).proportion_ci(confidence_level=0.95, method="wilson")
        assert wilson(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-8)
