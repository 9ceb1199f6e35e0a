"""Tables in markdown whose last column names tests: tests/faults/README.md, tests/security/README.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.conftest import ROOT


def named(table: Path) -> list[str]:
    """The tests of a table's rows, as pytest takes them."""
    return [f"tests/{name}" for name in re.findall(r"^\|.*\| `([^`]+)` \|$", table.read_text(), re.MULTILINE)]


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
