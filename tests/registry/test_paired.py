"""The gate's intervals: computed by hand, and their errors, enumerated exactly or simulated with clusters."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchmarks.gate import covered
from steps.core.errors import UserError
from steps.core.stats import wilson
from steps.registry.paired import design_effect, numbered, paired_interval, quantile, share_interval


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


def test_where_all_scenarios_of_a_cluster_are_alike_it_is_the_interval_of_clusters() -> None:
    """12 clusters of 10, of which 5 are won and one is lost: the design effect is 10 × (12 / 11) × (119 / 120)."""
    gaps = np.repeat([1, 1, 1, 1, 1, -1, 0, 0, 0, 0, 0, 0], 10).astype(float)
    clusters = np.repeat(np.arange(12), 10)
    effect = 10 * 12 / 11 * 119 / 120
    assert design_effect(gaps, clusters) == pytest.approx(effect)
    n, won, lost = 120 / effect, 50 / effect, 10 / effect
    half = 2.200985 * np.sqrt(won + lost + 2 - (won - lost) ** 2 / (n + 2)) / (n + 2)
    centre = (won - lost) / (n + 2)
    assert paired_interval(gaps, np.zeros(120), clusters)[1:] == pytest.approx((centre - half, centre + half), abs=1e-6)
    assert (
        paired_interval(gaps, np.zeros(120), clusters)[1] < 0 < paired_interval(gaps, np.zeros(120), np.arange(120))[1]
    )


def test_clusters_never_make_the_interval_narrower() -> None:
    """Where every cluster has the same mean, the clusters by themselves would leave no uncertainty at all."""
    gaps, clusters = np.tile([1.0, 0, 0, 0], 15), np.repeat(np.arange(15), 4)
    assert design_effect(gaps, clusters) < 0.001
    assert paired_interval(gaps, np.zeros(60), clusters) == paired_interval(gaps, np.zeros(60), np.arange(60))


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


def test_a_share_of_independent_scenarios_is_wilsons() -> None:
    success, _, alone = results(38, 0, 40)
    assert share_interval(success, alone) == wilson(38, 40)


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
