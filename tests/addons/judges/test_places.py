"""Orders of attempts, and what a judge gives for a place: by design, by hand, and in simulation against the plain mean."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from addons.judges import places

ALL = range(3, 41)


def test_a_square_has_each_attempt_once_at_each_place_and_each_neighbour_once() -> None:
    for n in (4, 6, 8, 12):
        square = places.orders(n, n, "s")
        assert all(sorted(column) == list(range(n)) for column in zip(*square, strict=True))
        assert Counter(pair for order in square for pair in pairwise(order)).most_common(1)[0][1] == 1
    assert len(places.orders(8, 24, "s")) == len({tuple(order) for order in places.orders(8, 24, "s")}) == 24
    assert [len(places.orders(n, 24, "s")) for n in (1, 2, 3, 4)] == [1, 2, 6, 24]
    first, second = places.orders(7, 2, "s")
    assert second == first[::-1]
    assert places.orders(7, 2, "t") != places.orders(7, 2, "s") == places.orders(7, 2, "s")


@pytest.mark.parametrize("lost", [None, 0, 1, 2, 3])
def test_from_four_orders_every_place_is_told_also_without_one(lost: int | None) -> None:
    for n in ALL:
        names = [[str(name) for name in order] for order in places.orders(n, 4, f"{n}")]
        scores = [[None if number == lost else 0.5] * n for number in range(4)]
        found = places.fit(names, scores)
        assert found is not None
        assert found.effects is not None, n
        assert found.noise == pytest.approx(0), "and something is left to tell the noise by"


def test_effects_by_hand() -> None:
    # a: 0.5, b: 0.3, c: 0.1; the places give +0.2, 0, -0.2; the second order is 0.1 higher than the others.
    found = places.fit(["abc", "bca", "cab"], [[0.7, 0.3, -0.1 + 1e-12], [0.6, 0.2, 0.4], [0.3, 0.5, 0.1]])
    assert found is not None
    assert found.effects == pytest.approx([0.2, 0.0, -0.2])
    assert found.first_to_last == pytest.approx(0.4)
    assert found.values == pytest.approx({"a": 0.5 + 0.1 / 3, "b": 0.3 + 0.1 / 3, "c": 0.1 + 0.1 / 3})


def test_a_lost_cell_and_orders_that_have_nothing_in_common() -> None:
    """Without b in the first order, plain means would put b 0.1 too high, since the second order is higher."""
    orders = ["abc", "cba", "bac"]
    whole: list[list[float | None]] = [[0.5, 0.3, 0.1], [0.3, 0.5, 0.7], [0.3, 0.5, 0.1]]
    scores = [[0.5, None, 0.1], *whole[1:]]
    found, kept = places.fit(orders, whole), places.fit(orders, scores)
    assert found is not None
    assert kept is not None
    assert kept.values["a"] - kept.values["b"] == pytest.approx(found.values["a"] - found.values["b"])
    assert places.fit(["abcd", "dcba"], [[0.5, 0.4, None, None], [0.3, 0.2, None, None]]) is None
    assert places.fit(["ab", "ba"], [[None, None], [None, None]]) is None
    one = places.fit(["ab"], [[0.5, 0.4]])
    assert one is not None
    assert one.values == pytest.approx({"a": 0.5, "b": 0.4})
    assert (one.effects, one.first_to_last, one.noise) == (None, None, None)


def test_a_score_at_the_end_of_the_scale_is_a_bound() -> None:
    """Eight attempts from 0.3 to 1.0, the first place +0.2: the best ones cannot show it."""
    orders = [[str(name) for name in order] for order in places.orders(8, 4, "ends")]
    quality = {str(name): 0.3 + name / 10 for name in range(8)}
    scores = [[min(1.0, quality[name] + 0.2 * (place == 0)) for place, name in enumerate(order)] for order in orders]
    found = places.fit(orders, scores)
    assert found is not None
    level = found.values["0"] - quality["0"]
    assert found.values == pytest.approx({name: one + level for name, one in quality.items()}, abs=1e-4)
    assert found.effects == pytest.approx([0.175] + [-0.025] * 7, abs=1e-4)


@pytest.mark.parametrize(("gift", "most"), [(0.0, 1.06), (0.3, 0.85)])
def test_of_a_noisy_judge_the_estimate_costs_little_and_takes_off_more(gift: float, most: float) -> None:
    """The mean squared error over that of the plain mean, of 400 groups of eight in four orders; noise 0.1."""
    rng, error, plain = Random(1), 0.0, 0.0
    for number in range(400):
        orders = [[str(name) for name in order] for order in places.orders(8, 4, f"{number}")]
        scores = [[0.5 + gift * (place == 0) + rng.gauss(0, 0.1) for place in range(8)] for _ in orders]
        found = places.fit(orders, scores)
        assert found is not None
        by_name = [dict(zip(order, row, strict=True)) for order, row in zip(orders, scores, strict=True)]
        means = {name: sum(one[name] for one in by_name) / 4 for name in found.values}
        level = sum(means.values()) / 8
        error += sum((value - level) ** 2 for value in found.values.values())
        plain += sum((value - level) ** 2 for value in means.values())
    assert error / plain < most
