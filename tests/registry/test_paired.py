"""The gate's intervals: computed by hand, and their errors, enumerated exactly or simulated with clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchmarks.gate import covered
from steps.core.errors import UserError
from steps.core.stats import wilson
from steps.registry import paired
from steps.registry.paired import clusters_of, design_effect, numbered, paired_interval, quantile, share_interval


def results(won: int, lost: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Challenger, other, and clusters of one scenario each."""
    place_N = np.arange(n)
    return (place_N < won).astype(float), ((place_N >= won) & (place_N < won + lost)).astype(float), place_N


@pytest.mark.parametrize(
    ("won", "lost", "low", "high"),
    [  # (won - lost) / 102 ± 1.98422 √(won + lost + 2 - (won - lost)² / 102) / 102
        (20, 5, 0.05019, 0.24392),
        (6, 0, 0.00503, 0.11262),
        (0, 0, -0.02751, 0.02751),
        (50, 50, -0.19647, 0.19647),
    ],
)
def test_the_interval_by_hand(won: int, lost: int, low: float, high: float) -> None:
    found = paired_interval(*results(won, lost, 100))
    assert found == pytest.approx(((won - lost) / 100, low, high), abs=1e-5)
    mirrored = paired_interval(*results(lost, won, 100))
    assert mirrored == pytest.approx(((lost - won) / 100, -high, -low), abs=1e-5)


def test_the_quantile_is_scipys() -> None:
    for units, tail in ((2, 0.025), (5, 0.025 / 3), (240, 0.05 / 420)):
        assert quantile(units, tail) == pytest.approx(scipy_stats.t.ppf(1 - tail, units - 1), rel=1e-9)


@pytest.mark.parametrize(
    ("won", "lost"), [(0.02, 0.0), (0.03, 0.0), (0.05, 0.0), (0.02, 0.02), (0.05, 0.05), (0.1, 0.02)]
)
def test_it_covers_what_it_says_near_0_and_1(won: float, lost: float) -> None:
    """Exactly, over all outcomes of 40 scenarios. A bootstrap misses if nothing was won: in 0.98^40 = 45 % of the first."""
    assert covered(40, won, lost) >= 0.95


def test_the_design_effect_by_hand() -> None:
    """12 clusters of 10, of which 5 are won and one is lost, and clusters of 4, 1 and 1. Between clusters: (C - 1) / C × Σ
    (sum of its deviations / (1 - its share))²; within: Σ deviations² × n / (n - 1). One scenario that is as alike as can
    be, Σ size² / n, is added."""
    gaps = np.repeat([1, 1, 1, 1, 1, -1, 0, 0, 0, 0, 0, 0], 10).astype(float)
    clusters = np.repeat(np.arange(12), 10)
    squares = 60 - 40**2 / 120  # Σ deviations²; each cluster's sum is 10 times a deviation
    expected = (11 / 12 * 10 * squares / (11 / 12) ** 2 + 10) / (squares * 120 / 119 + 1)
    assert design_effect(gaps, clusters_of(clusters)) == pytest.approx(expected)
    n, won, lost = 120 / expected, 50 / expected, 10 / expected
    half = 2.200985 * np.sqrt(won + lost + 2 - (won - lost) ** 2 / (n + 2)) / (n + 2)
    centre = (won - lost) / (n + 2)
    assert paired_interval(gaps, np.zeros(120), clusters)[1:] == pytest.approx((centre - half, centre + half), abs=1e-6)
    uneven, gaps = clusters_of(np.array([0, 1, 0, 2, 0, 0])), np.array([1.0, 0, 1, -1, 0, 1])
    assert uneven.effective == 36 / 18
    between = 2 / 3 * ((5 / 3 / (1 / 3)) ** 2 + (-1 / 3 / (5 / 6)) ** 2 + (-4 / 3 / (5 / 6)) ** 2)
    assert design_effect(gaps, uneven) == pytest.approx((between + 3) / ((4 - 4 / 6) * 6 / 5 + 1))


def test_clusters_never_make_the_interval_narrower() -> None:
    """Where every cluster has the same mean, the clusters by themselves would leave no uncertainty at all."""
    gaps, clusters = np.tile([1.0, 0, 0, 0], 15), np.repeat(np.arange(15), 4)
    assert design_effect(gaps, clusters_of(clusters)) == 1
    assert paired_interval(gaps, np.zeros(60), clusters)[1] < paired_interval(gaps, np.zeros(60), np.arange(60))[1]


def test_one_large_cluster_is_no_evidence() -> None:
    """It was won and 40 other scenarios were even: whatever its size, that is one event, and two such are two."""
    for sizes in ((200,), (100, 100), (40, 40)):
        clusters = np.repeat(np.arange(len(sizes) + 40), [*sizes, *[1] * 40])
        won = np.where(clusters < len(sizes), 1.0, clusters % 2)
        lost = np.where(clusters < len(sizes), 0.0, (clusters + 1) % 2)
        assert paired_interval(won, lost, clusters)[1] < 0, sizes
        assert paired_interval(lost, won, clusters)[2] > 0, sizes
    assert paired_interval(won, lost, np.arange(len(won)))[1] > 0.3
    giant = np.repeat(np.arange(41), [200, *[1] * 40])
    assert share_interval(np.ones(240), giant) == (0, 1)
    assert paired.mean_interval(np.ones(240), giant)[1:] == (-np.inf, np.inf)


def test_many_splits_at_once_have_the_intervals_of_each(generator: np.random.Generator) -> None:
    clusters = generator.integers(0, 9, 50)
    gaps = generator.integers(-1, 2, (4, 50)).astype(float)
    alone = [paired_interval((row > 0) * 1.0, (row < 0) * 1.0, clusters, 0.01) for row in gaps]
    np.testing.assert_allclose(np.array(paired.interval(gaps, clusters, 0.01)).T, alone)


def test_a_difference_of_any_size_has_an_interval_of_its_unit(generator: np.random.Generator) -> None:
    """Wins of 0.3 in place of 1 have the same interval times 0.3; equal differences still have one."""
    gaps, clusters = generator.integers(-1, 2, 60).astype(float), np.arange(60) // 3
    whole = np.array(paired_interval((gaps > 0) * 1.0, (gaps < 0) * 1.0, clusters))
    assert paired.mean_interval(0.3 * gaps, clusters) == pytest.approx(0.3 * whole)
    mean, low, high = paired.mean_interval(np.full(60, 0.2), clusters)
    assert low < mean < high
    assert paired.mean_interval(gaps[:1], clusters[:1]) == (gaps[0], -np.inf, np.inf)


def test_clusters_are_counted_where_all_scenarios_end_alike() -> None:
    """60 of 60 won tell as much as three inboxes do, of which all are won."""
    ones, clusters = np.ones(60), np.repeat(np.arange(3), 20)
    assert paired_interval(ones, ones * 0, np.arange(60))[1] > 0.9
    assert paired_interval(ones, ones * 0, clusters)[1] < 0
    assert share_interval(ones, np.arange(60))[0] > 0.9
    assert share_interval(ones, clusters)[0] < 0.2


def test_a_single_cluster_tells_nothing() -> None:
    assert paired_interval(np.ones(60), np.zeros(60), np.zeros(60)) == (1, -1, 1)
    assert share_interval(np.ones(60), np.zeros(60)) == (0, 1)


@pytest.mark.parametrize("n", [16, 20, 60])
def test_a_share_of_few_independent_scenarios_is_covered(n: int) -> None:
    """Exactly, over all numbers of successes. Wilson's own interval covers 0.92 of 16 and of 20 at some of these shares."""
    ends = [share_interval(results(k, 0, n)[0], np.arange(n)) for k in range(n + 1)]
    for share in (0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98):
        chances = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
        assert sum(p for p, (low, high) in zip(chances, ends, strict=True) if low <= share <= high) > 0.935
    wide, usual = ends[n // 2], wilson(n // 2, n)
    assert wide[0] < usual[0] < usual[1] < wide[1]


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize(("size", "following"), [(5, 1.0), (10, 1.0), (20, 0.5)])
def test_errors_with_clusters_are_within_the_level(size: int, following: float) -> None:
    """600 pairs of equal policies at 240 scenarios: 15 false wins expected, and above 28 in 1 of 1,000 cases. Clusters that
    are not given multiply them."""
    generator, clusters = np.random.default_rng(5), np.repeat(np.arange(240 // size), size)
    false, ignored = 0, 0
    for _ in range(600):
        chance = generator.beta(2, 2, 240 // size)[clusters]
        first, other = (
            np.where(
                generator.random(240) < following,
                generator.random(240 // size)[clusters] < chance,
                generator.random(240) < chance,
            ).astype(float)
            for _ in range(2)
        )
        false += paired_interval(first, other, clusters)[1] > 0
        ignored += paired_interval(first, other, np.arange(240))[1] > 0
    assert false <= 28
    assert ignored > 60


def test_names_of_clusters_become_numbers() -> None:
    assert numbered(["b", "a", "b"]).tolist() == [1, 0, 1]


@pytest.mark.parametrize("lengths", [(3, 4), (0, 0)])
def test_what_cannot_be_paired_is_refused(lengths: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="cannot be paired: evaluate both on the same scenarios"):
        paired_interval(np.zeros(lengths[0]), np.zeros(lengths[1]), np.arange(lengths[0]))
