"""The table of probes names tests that exist, each once."""

from __future__ import annotations

from pathlib import Path

from tests.support.tables import missing, named

TABLE = Path(__file__).parent / "README.md"
AT_LEAST = 60


def test_each_probe_has_a_test_that_exists() -> None:
    names = named(TABLE)
    assert len(names) == len(set(names)) >= AT_LEAST
    assert missing(names) == []
