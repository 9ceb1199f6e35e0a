"""The table of faults names tests that exist, each once."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

TABLE = Path(__file__).parent / "README.md"
AT_LEAST = 60


def named(text: str) -> list[str]:
    """The tests of the table's rows, as pytest takes them."""
    return [f"tests/{name}" for name in re.findall(r"^\|.*\| `([^`]+)` \|$", text, re.MULTILINE)]


def missing(names: list[str]) -> list[str]:
    """Those that are no test of their file, or are no case of it."""
    absent = []
    for name in names:
        file, _, test = name.partition("::")
        function, _, case = test.partition("[")
        text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
        functions = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
        if function not in functions or (case and f'"{case.rstrip("]")}"' not in text):
            absent.append(name)
    return absent


def test_each_fault_has_a_test_that_exists() -> None:
    names = named(TABLE.read_text())
    assert len(names) >= AT_LEAST
    assert len(set(names)) > 0.95 * len(names), "two faults of one test are the exception"
    assert missing(names) == []


@pytest.mark.parametrize("name", ["tests/no/file.py::test_x", "tests/faults/test_table.py::test_x"])
def test_the_rule_can_fail(name: str) -> None:
    assert missing([name]) == [name]


if __name__ == "__main__":  # `make faults`: run them all
    sys.exit(pytest.main(["-n", "2", *dict.fromkeys(named(TABLE.read_text())), *sys.argv[1:]]))
