"""dvc.lock and chain.yaml that are cut off, damaged or hostile: one sentence with what to do, and no traceback."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from steps.core.errors import UserError
from steps.project.chain import misshapen, read_chain
from steps.project.lock import read_lock
from tests.project.test_dvc import ROOT, STAGES

CHAIN = {
    "iterations": {"001": {"prev": "000"}, "002": {"prev": "001"}},
    "evaluated": {"000": {"name": "000", "against": "base.json"}, "001": {"name": "001", "against": "evaluation"}},
    "tested": {"base": "000", "best": "002"},
    "tests": {"base": {"name": "000", "against": "base.json"}, "best": {"name": "002", "against": "test"}},
}


def test_a_dvc_lock_that_is_cut_off_anywhere_is_read_or_explained(tmp_path: Path) -> None:
    """DVC writes YAML line by line: some cuts leave valid YAML with a part of the stages."""
    whole = (ROOT / "dvc.lock").read_text()
    refused = []
    for end in range(0, len(whole), 7):
        (tmp_path / "dvc.lock").write_text(whole[:end])
        try:
            assert all(isinstance(entry, dict) for entry in read_lock(tmp_path).values())
        except UserError as problem:
            refused.append(str(problem))
    assert len(refused) > 10
    for sentence in refused:
        assert sentence.startswith(f"{tmp_path / 'dvc.lock'}")
        assert "; `git checkout dvc.lock` brings the committed one back" in sentence
    assert "embedded_policy" in read_lock(ROOT)


@pytest.mark.parametrize(
    "text",
    ["stages: 3", "stages: [a]", "stages: {a: b}", "stages: {a: {outs: [{md5: x}]}}", "stages: {a: {deps: {x: 1}}}"],
)
def test_a_dvc_lock_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dvc.lock").write_text(text)
    with pytest.raises(UserError, match=r"dvc\.lock: .*; `git checkout dvc\.lock`"):
        read_lock(tmp_path)


def test_a_chain_as_it_is_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump(CHAIN))
    assert read_chain(tmp_path) == CHAIN
    assert misshapen(CHAIN | {"evaluated": ["000", "001"]}) == "", "as chains were written before"
    assert misshapen({}) == misshapen({"iterations": None}) == misshapen(read_chain(ROOT)) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": {"001; echo": {"prev": "000"}}},
        {"iterations": {"001": {"prev": "000' && echo '"}}},
        {"iterations": {1: {"prev": "000"}}},
        {"iterations": ["001"]},
        {"evaluated": ["$(id)"]},
        {"evaluated": "001"},
        {"tested": {"base": "000", "best": "../../etc"}},
        {"evaluated": {"000": {"name": "000", "against": "$(id)"}}},
        {"evaluated": {"000": {"name": "../x", "against": "base.json"}}},
        {"evaluated": {"000": "base.json"}},
        {"tests": {"best": {"name": "001"}}},
    ],
)
def test_names_that_a_shell_would_read_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump(CHAIN | change))
    with pytest.raises(UserError, match=r"chain\.yaml: .*; `git checkout chain\.yaml`"):
        read_chain(tmp_path)


# --- The commands of dvc.yaml


def unquoted(command: str) -> list[str]:
    """The words of a command with a parameter that does not stand in single quotes."""
    return [word for word in re.findall(r"\S*\$\{\S*", command) if not re.fullmatch(r"'[^']*'", word)]


@pytest.mark.parametrize("name", STAGES)
def test_parameters_in_commands_are_quoted(name: str) -> None:
    assert unquoted(STAGES[name]["cmd"]) == []
    filled = re.sub(r"\$\{[^}]*\}", "x; echo", STAGES[name]["cmd"])
    assert len(shlex.split(filled)) == len(shlex.split(STAGES[name]["cmd"])), "a value cannot end its word"


def test_the_rule_of_quotes_can_fail() -> None:
    bad = copy.deepcopy(STAGES["rollout"])["cmd"].replace("'", "")
    assert "run/${key}/drawn.json" in unquoted(bad)
