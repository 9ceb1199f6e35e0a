"""Commands in the pages and in what programs print are written in one form (docs/install.md, "How commands are written"):
they begin with `.venv/bin/`, and so work as typed in a shell with no environment activated.

Docstrings may name a command without it, as may the usage of a command. Each check is a function that returns its faults.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_readme import NAMES, PAGES, blocks, inline

ROOT = Path(__file__).parent.parent.parent
PRODUCT = ("steps", "addons", "flows", "viewer", "environments")
OF_DVC = (
    """repro checkout push pull fetch add gc unfreeze freeze commit status remote exp metrics plots params""".split()
)
# A program of the environment as a person would type it, without its folder.
BARE = re.compile(rf"(?<![\w./-])(?:python -m \w[\w.]*|dvc (?:{'|'.join(OF_DVC)})\b|uv pip\b|pytest (?=-|tests/))")


def bare(text: str) -> list[str]:
    """The commands of the environment that a text names without `.venv/bin/`."""
    return [match[0] for match in BARE.finditer(" ".join(text.split()))]


def faults_of_page(text: str) -> list[str]:
    code = [re.sub(r"(?:^|\s)# .*", "", line) for body in blocks(text, "sh") for line in body.splitlines()]
    return [command for part in [*code, *inline(text)] for command in bare(part)]


def strings(tree: ast.Module) -> Iterator[str]:
    """The strings of a module that a person may see, each as a whole: no docstrings, and no usage of a command."""
    hidden = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            hidden.add(node.value)
        if isinstance(node, ast.keyword) and node.arg == "prog":
            hidden.add(node.value)
        if isinstance(node, ast.JoinedStr):
            hidden.update(node.values)
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def faults_of_module(source: str) -> list[str]:
    shown = [text for text in strings(ast.parse(source)) if not text.startswith("usage: ")]
    return [command for text in shown for command in bare(text)]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_pages_commands_work_as_typed(page: Path) -> None:
    assert faults_of_page(page.read_text()) == []


def test_printed_commands_work_as_typed() -> None:
    files = [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]
    faults = {path.relative_to(ROOT).as_posix(): faults_of_module(path.read_text()) for path in files}
    assert {name: listed for name, listed in faults.items() if listed} == {}


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("```sh\npython -m flows.train --name x\n```", ["python -m flows.train"]),
        ("Call `python -m\nflows.train`.", ["python -m flows.train"]),
        ("`dvc push` does, and `pytest tests/core`.", ["dvc push", "pytest "]),
        ("```sh\n.venv/bin/python -m flows.train   # not python -m flows.train\nmake train\n```", []),
        ("`.venv/bin/dvc push`, the file `dvc.lock`, and `steps/python -m steps.rollout`.", []),
    ],
)
def test_the_rule_of_pages_can_fail(text: str, faults: list[str]) -> None:
    assert faults_of_page(text) == faults


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        (
            "raise UserError(f'{x} is gone: `python -m addons.production.ingest` makes it')",
            ["python -m addons.production.ingest"],
        ),
        ("say('it is here: `dvc '\n    'checkout` brings it')", ["dvc checkout"]),
        ('"""`python -m flows.train` trains."""', []),
        ("parser = ArgumentParser(prog='python -m flows.train')", []),
        ("say('`.venv/bin/dvc checkout`')", []),
    ],
)
def test_the_rule_of_strings_can_fail(source: str, faults: list[str]) -> None:
    assert faults_of_module(source) == faults
