"""What README says can be typed, can be typed: targets and modules exist, parameters are accepted."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import yaml

from steps.core.params import Params

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "README.md").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_make_targets_exist() -> None:
    named = set(re.findall(r"(?:^|`|  |api )make ([a-z-]+)", TEXT, re.MULTILINE))
    assert {"train", "test", "install", "mlflow", "prefect", "reproduce"} <= named
    assert named <= TARGETS


def test_modules_exist() -> None:
    named = set(re.findall(r"python -m ([a-z_.]+[a-z])", TEXT))
    assert "steps.rollout" in named
    assert [module for module in named if importlib.util.find_spec(module) is None] == []


def test_parameters_are_accepted() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    for block in blocks:
        Params.model_validate(yaml.safe_load(block))


def test_the_tree_is_the_tree() -> None:
    tree = TEXT.partition("## Tree\n\n```\n")[2].partition("```")[0]
    assert tree
    made = {"run/", ".flywheel/"}  # by a run
    for name in re.findall(r"^(\S+)", tree, re.MULTILINE):
        assert name in made or (ROOT / name).exists(), name
