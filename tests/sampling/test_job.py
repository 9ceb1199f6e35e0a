"""How a batch is cut into shards, and what is counted of them."""

from __future__ import annotations

from typing import Any

import pytest

from environments.base import Scenario
from steps.core import progress
from steps.sampling.job import cut


def attempts(scenarios: int, each: int) -> list[tuple[Scenario, int]]:
    return [
        (Scenario(id=f"s{number}", task="t", split="train", messages=[], data={}), attempt)
        for number in range(scenarios)
        for attempt in range(each)
    ]


@pytest.mark.parametrize(
    ("scenarios", "count", "sizes"),
    [(16, 1, [16]), (16, 4, [4, 4, 4, 4]), (7, 3, [3, 2, 2]), (2, 5, [1, 1]), (1, 1, [1])],
)
def test_shards_are_as_even_as_they_can_be(scenarios: int, count: int, sizes: list[int]) -> None:
    shards = cut(attempts(scenarios, 3), count)
    assert [len(shard) for shard in shards] == [3 * size for size in sizes]
    assert [attempt for shard in shards for attempt in shard] == attempts(scenarios, 3)  # in their order


def test_a_scenarios_attempts_stay_together() -> None:
    for shard in cut(attempts(5, 8), 3):
        ids = [scenario.id for scenario, _ in shard]
        assert all(ids.count(name) == 8 for name in ids)


def test_nothing_is_cut_into_one_empty_shard() -> None:
    assert cut([], 3) == [[]]


def test_progress_of_a_part_counts_in_the_whole() -> None:
    heard: list[Any] = []
    progress.report_to(heard.append)
    try:
        with progress.part(8, 16):
            progress.progress(8, 8, "episodes")
    finally:
        progress.report_to(None)
    assert heard == [{"progress": [16, 16, "episodes"]}]


def test_turns_of_all_shards_are_counted_from_the_first_ones_beginning() -> None:
    progress.take_measurements()
    progress.measure_turns(100.0, {"a": [(0.0, 1.0, 2.0)]})
    progress.measure_turns(103.5, {"b": [(0.0, 1.0, 2.0)]})
    measured = progress.take_measurements()
    assert measured.began == 100.0
    assert measured.turns == {"a": [(0.0, 1.0, 2.0)], "b": [(3.5, 4.5, 5.5)]}
