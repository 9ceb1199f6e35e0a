"""What a server's answers to the probe's text say about the adapter that it serves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from addons.fleet import probe
from addons.fleet.probe import Probe
from steps.core.errors import UserError


def table(shift: float = 0.0) -> list[dict[int, float]]:
    """Two tokens of probability 0.75 and 0.25 at each place; `shift` nats are taken from the first."""
    return [{4: math.log(0.75) - shift, 5: math.log(0.25)} for _ in range(probe.PLACES)]


def made(shift: float = 0.0, limit: float = 1e-3) -> Probe:
    return probe.of_server(range(16), table(shift), "float32")._replace(limit=limit)


def test_the_distance_is_the_kl_divergences_estimate_by_hand() -> None:
    assert probe.distance(table(), made()) == 0.0
    assert probe.distance(table(0.1), made()) == pytest.approx(0.75 * (math.exp(-0.1) - 1 + 0.1))
    assert probe.distance([{4: -0.3}] * probe.PLACES, made()) == math.inf
    assert probe.distance([{4: math.nan, 5: -1.0}] * probe.PLACES, made()) == math.inf


@pytest.mark.parametrize(
    ("shift", "known", "words"),
    [
        (0.0, {"a": made()}, ""),
        (0.04, {"a": made()}, ""),  # 0.75 · 0.04² / 2 = 6e-4 nats
        (0.06, {"a": made()}, r"0.0013\d nats a token from the trainer's, and at most 0.001"),
        (0.04, {"a": made(), "b": made(0.04)}, "that of the adapter b, and not that of a"),  # rounding could hide it
        (0.04, {"a": made(), "b": made(0.06)}, "that of the adapter b"),
        (0.04, {"a": made(), "b": made(0.075)}, ""),  # between the two
        (1e-6, {"a": made(), "b": made(1e-6)}, ""),  # two versions that are the same within rounding
    ],
)
def test_a_server_is_told_from_one_with_another_adapter(shift: float, known: dict[str, Probe], words: str) -> None:
    found = probe.problem(table(shift), "a", known)
    assert (found == "") == (words == "")
    if words:
        import re

        assert re.search(words, found)


def test_a_probe_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert probe.read(tmp_path) is None
    probe.write(tmp_path, made())
    assert probe.read(tmp_path) == made()
    (tmp_path / probe.FILE).write_text('{"ids": [1]}')
    with pytest.raises(UserError, match=r"probe\.json is damaged"):
        probe.read(tmp_path)
