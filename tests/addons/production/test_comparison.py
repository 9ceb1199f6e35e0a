"""Served versions compared by what people say."""

from __future__ import annotations

from random import Random

import pytest

from addons.production.serving import comparison


def test_the_interval_is_newcombes() -> None:
    """His example: 56 of 70 against 48 of 80, 0.2 [0.0524, 0.3339] (1998, table II, method 10)."""
    compared = comparison.compare([1.0] * 56 + [0.0] * 14, [1.0] * 48 + [0.0] * 32, 1, 0.1)
    assert (compared.own - compared.other, compared.level) == pytest.approx((0.2, 0.95))
    assert (compared.low, compared.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert str(compared) == "mean score 0.800 of 70 conversations against 0.600 of 80: +0.200 [+0.052, +0.334] (95 %)"


def test_each_look_needs_twice_as_many_and_may_err_half_as_often() -> None:
    assert [comparison.is_due(looks, 99, 40, 20) for looks in range(3)] == [True, True, False]
    levels = [comparison.compare([1.0], [0.0], look, 0.05).level for look in (1, 2, 3)]
    assert levels == pytest.approx([0.975, 0.9875, 0.99375])


@pytest.mark.parametrize("share", [0.3, 0.8, 0.97])
def test_looking_again_and_again_finds_a_difference_that_is_none_rarely(share: float) -> None:
    """300 simulated canaries that are as good as the champion, each looked at up to six times; half of the scores graded."""
    rng, errors, wrong = Random(1), 0.05, 0
    for trial in range(300):
        own: list[float] = []
        other: list[float] = []
        for look in range(1, 7):
            while not comparison.is_due(look - 1, len(own), len(other), 10):
                for scores in (own, other):
                    right = float(rng.random() < share)
                    scores.append(0.5 * right + 0.5 * share if trial % 2 else right)
            compared = comparison.compare(own, other, look, errors)
            if compared.high < 0 or compared.low > 0:
                wrong += 1
                break
    assert wrong / 300 <= errors
