"""Numbers in a random order, drawn one by one."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from environments.kit.seeds import shuffled


@pytest.mark.parametrize("count", [0, 1, 2, 7, 300, 20_000])
def test_the_order_is_that_of_sample(count: int) -> None:
    assert list(shuffled(Random(f"seed {count}"), count)) == Random(f"seed {count}").sample(range(count), count)


def test_no_more_is_drawn_than_is_asked_for() -> None:
    rng = Random(1)
    first = list(islice(shuffled(rng, 10**9), 3))
    assert len(set(first)) == 3
    again = Random(1)
    assert again.randrange(10**9) == first[0]
    again.randrange(10**9 - 1), again.randrange(10**9 - 2)
    assert rng.getstate() == again.getstate()
