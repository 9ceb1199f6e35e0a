"""What README says can be typed, can be typed: targets and modules exist, parameters are accepted."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from steps.params import Params
from tests.conftest import copy_project, run

ROOT = Path(__file__).parent.parent
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_task_of_ones_own_by_the_letter(tmp_path: Path) -> None:
    """Every line of the walk, in a copy of the project with this environment in place of a new one (`make -o install`)."""
    [block] = re.findall(r"\*\*A task of your own\*\*.*?```sh\n(.*?)```", TEXT, re.DOTALL)
    folder = copy_project(tmp_path)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    lines = [line.partition(" #")[0].strip() for line in block.splitlines()]
    assert [line.split()[0] for line in lines] == ["make", ".venv/bin/python", "make"]
    for line in lines:
        done = run(["bash", "-c", re.sub(r"^make ", "make -o install ", line)], folder, seconds=420)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    found = json.loads((folder / "run/summary.json").read_text())
    assert found["task"] == "my_task"
    assert found["base"]["n"] == found["trained"]["n"] == 20
