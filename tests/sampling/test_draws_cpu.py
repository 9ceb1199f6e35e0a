"""The numbers from which vLLM draws on the CPU. tests/policy/test_families.py samples with them."""

from __future__ import annotations

import numpy as np

from steps.sampling.draws_cpu import mix
from steps.sampling.episodes import turn_seed

WORD = 2**64


def split_mix(state: int, steps: int) -> int:
    """The output of SplitMix64 after so many steps, in Python's own integers."""
    state = (state + steps * 0x9E3779B97F4A7C15) % WORD
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % WORD
    return state ^ (state >> 31)


def test_numbers_are_those_of_split_mix() -> None:
    assert split_mix(1234567, 1) == 6457827717110365317  # of the reference implementation
    seeds, positions = [0, 1234567, 2**63 - 1], [0, 7, 40000]
    expected = [split_mix(split_mix(seed, place), 1) >> 1 for seed, place in zip(seeds, positions, strict=True)]
    assert mix(seeds, positions).tolist() == expected


def test_neighbours_have_nothing_in_common() -> None:
    """Seeds and positions in a row: all numbers differ, and each bit is set, or flips at a step, in half of them."""
    seeds, positions = np.meshgrid(np.arange(200), np.arange(200))
    numbers = mix(seeds.ravel(), positions.ravel())
    assert len(set(numbers.tolist())) == 200 * 200
    bits = (numbers[:, None] >> np.arange(63)) & 1
    assert abs(bits.mean(axis=0) - 0.5).max() < 0.015  # six standard deviations
    assert abs((bits[1:] ^ bits[:-1]).mean(axis=0) - 0.5).max() < 0.015
    assert abs((bits[200:] ^ bits[:-200]).mean(axis=0) - 0.5).max() < 0.015


def test_each_turn_has_a_seed_of_its_own() -> None:
    places = [
        (seed, name, attempt, turn)
        for seed in (0, 1, 11)
        for name in "ab"
        for attempt in (0, 1, 11)
        for turn in (0, 1, 11)
    ]
    seeds = [turn_seed(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert turn_seed(1001, "a3f0", 2, 0) == 6262057579332360902  # the same in every process, on every machine
