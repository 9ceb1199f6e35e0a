"""The mean, and Wilson's interval, which is held to scipy's."""

from __future__ import annotations

import pytest
from scipy import stats as scipy_stats

from steps.core.stats import mean, wilson


def test_the_mean_of_nothing_is_zero() -> None:
    assert (mean([]), mean([1, 2, 6])) == (0, 3)


@pytest.mark.parametrize("n", [1, 2, 20, 240, 5000])
def test_wilson_is_scipys(n: int) -> None:
    for successes in {0, 1, n // 3, n // 2, n - 1, n}:
        expected = scipy_stats.binomtest(successes, n).proportion_ci(confidence_level=0.95, method="wilson")
        assert wilson(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-8)
