"""The table of faults names tests that exist, each once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.tables import missing, named

TABLE = Path(__file__).parent / "README.md"
AT_LEAST = 60


def test_each_fault_has_a_test_that_exists() -> None:
    names = named(TABLE)
    assert len(names) >= AT_LEAST
    assert len(set(names)) > 0.95 * len(names), "two faults of one test are the exception"
    assert missing(names) == []


@pytest.mark.parametrize("name", ["tests/no/file.py::test_x", "tests/faults/test_table.py::test_x"])
def test_the_rule_can_fail(name: str) -> None:
    assert missing([name]) == [name]


if __name__ == "__main__":  # `make faults`: run them all
    sys.exit(pytest.main(["-n", "2", "-m", "", *dict.fromkeys(named(TABLE)), *sys.argv[1:]]))
