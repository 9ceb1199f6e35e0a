"""An add-on is a folder that can be deleted: in a copy of the tree without it the core's tests pass, and what names it is
refused by a sentence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import copy_project

COMMANDS = "flows.train, flows.evaluate, steps.rollout, steps.evaluate, steps.update, steps.sampling.play, viewer.app"
TESTS = "tests/sampling tests/stages/test_evaluate.py tests/stages/test_code.py".split()
TESTS += "tests/core/test_ports.py tests/viewer/test_overview.py".split()
ASKED = {  # add-on -> what needs it, and the sentence
    "agents": (
        "play(Job(Policy(), Rollout(), None, load('tests.support.agents.onlooker'), [], '001', 1, task='mine'))",
        "task: mine is an agent of your own: gateway is brought by an add-on that addons/ does not have (there: none)",
    ),
    "fleet": (
        "play(Job(Policy(kind='ray'), Rollout(), None, load('multiplication'), [], '001', 1))",
        "policy.kind: ray is brought by an add-on that addons/ does not have (there: none)",
    ),
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ASKED)
def test_without_an_addon_the_core_is_whole(name: str, tmp_path: Path) -> None:
    copy_project(tmp_path)
    for folder in ("addons", "tests/addons"):
        shutil.rmtree(tmp_path / folder / name)
    imported = run(tmp_path, "-c", f"import {COMMANDS}")
    assert imported.returncode == 0, imported.stderr[-3000:]
    asked, sentence = ASKED[name]
    needed = "from environments import load\nfrom steps.core.params import Policy, Rollout\n"
    needed += "from steps.sampling.job import Job\nfrom steps.sampling.play import play\n"
    assert f"UserError: {sentence}" in run(tmp_path, "-c", needed + asked).stderr
    tested = run(
        tmp_path, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not slow and not long", *TESTS
    )
    assert tested.returncode == 0, tested.stdout[-4000:]
