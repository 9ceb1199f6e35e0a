"""tests/NIGHTLY.md names every file with a test that runs by night only, and no other."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PAGE = ROOT / "tests/NIGHTLY.md"


def marked(text: str) -> bool:
    return "pytest.mark.nightly" in text


def rows(text: str) -> set[str]:
    """The files in the first column."""
    return set(re.findall(r"^\| `([\w/]+\.py)", text, re.MULTILINE))


def test_the_page_names_the_files_with_a_test_by_night() -> None:
    paths = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("addons/**/test_*.py")]
    by_night = [path for path in paths if marked(path.read_text()) and path.name != "test_nightly.py"]
    names = {path.relative_to(ROOT).as_posix().removeprefix("tests/") for path in by_night}
    assert rows(PAGE.read_text()) == names


@pytest.mark.parametrize(("line", "named"), [("| `flows/test_x.py::test_y` | a |", {"flows/test_x.py"}), ("", set())])
def test_the_rule_can_fail(line: str, named: set[str]) -> None:
    assert rows(line) == named
    assert marked("@pytest.mark.nightly") != marked("@pytest.mark.slow")
