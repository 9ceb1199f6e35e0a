"""Names and sentences that a reader would have to decode are refused: words that name nothing, and clipped phrases.

Each rule is a function that returns what breaks it, so that further tests can feed it something bad.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import parsed

ROOT = Path(__file__).resolve().parent.parent.parent
PRODUCT = ("steps", "addons", "flows", "viewer", "environments", "benchmarks")
NAMELESS = {"one", "ones", "found", "said", "told", "known"}  # as names of variables, arguments or functions
CLIPPED = re.compile(
    r"\b[Aa]n? (row|line|run|step|score|page|file|key|value|table|folder|object|process|hash) an? [a-z]\w+"
)


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of everything that a module gives a name to: variables, arguments, functions, classes, imports."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, lineno=line):
                yield line, name
            case ast.Name(id=name, ctx=ast.Store(), lineno=line):
                yield line, name
            case ast.FunctionDef(name=name, lineno=line) | ast.ClassDef(name=name, lineno=line):
                yield line, name
            case ast.AsyncFunctionDef(name=name, lineno=line) | ast.ExceptHandler(name=str(name), lineno=line):
                yield line, name
            case ast.MatchAs(name=str(name), lineno=line) | ast.MatchStar(name=str(name), lineno=line):
                yield line, name
            case ast.Import(names=aliases, lineno=line) | ast.ImportFrom(names=aliases, lineno=line):
                yield from ((line, alias.asname or alias.name) for alias in aliases)


def language_faults(root: Path) -> list[str]:
    """Bindings without a noun, and clipped phrases such as "a row an iteration", in the product's modules."""
    faults = []
    for path in sorted(path for folder in PRODUCT for path in (root / folder).rglob("*.py")):
        text, place = path.read_text(), path.relative_to(root).as_posix()
        faults += [f"{place}:{line}: {name}" for line, name in bindings(parsed(path)) if name.strip("_") in NAMELESS]
        faults += [
            f"{place}:{number}: {phrase[0]}"
            for number, line in enumerate(text.splitlines(), 1)
            if (phrase := CLIPPED.search(line))
        ]
    return faults


def test_names_are_nouns_and_phrases_are_whole() -> None:
    assert language_faults(ROOT) == []


def test_the_rule_of_language_can_fail(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/a.py").write_text(
        '"""Writes a row an iteration."""\n\n\ndef told(one: int, rows: list[int]) -> list[int]:\n'
        "    return [found for found in rows if (known := found)]\n"
    )
    assert language_faults(tmp_path) == [
        "steps/a.py:4: told",
        "steps/a.py:4: one",
        "steps/a.py:5: found",
        "steps/a.py:5: known",
        "steps/a.py:1: a row an iteration",
    ]
