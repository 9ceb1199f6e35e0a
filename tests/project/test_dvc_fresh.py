"""What an edit makes stale, as `dvc status` says after a real run: what the edited file feeds, and nothing else."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Project, python, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def stale(project: Project) -> set[str]:
    """The stages that DVC would run again, without their iterations, once the lists of code are made again."""
    listed = run(python("dvc", "repro", "--single-item", "code"), project.folder)
    assert listed.returncode == 0, listed.stderr
    process = run(python("dvc", "status", "--json"), project.folder)
    assert process.returncode == 0, process.stderr
    return {name.partition("@")[0] for name in json.loads(process.stdout)}


@pytest.fixture(scope="module")
def before(project: Project) -> set[str]:
    """What is stale without an edit, once what earlier tests left is made again."""
    if stale(project) & {"initialise", "update", "register"}:
        process = run(python("dvc", "repro"), project.folder)
        assert process.returncode == 0, process.stderr
    return stale(project)


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        ("steps/sampling/engine.py", {"rollout", "evaluate", "test"}),
        pytest.param("steps/training/grpo.py", {"initialise", "update"}, marks=pytest.mark.nightly),
        pytest.param("steps/registry/publish.py", {"register"}, marks=pytest.mark.nightly),
    ],
)
def test_an_edit_makes_only_what_it_feeds_stale(
    project: Project, before: set[str], edited: str, expected: set[str]
) -> None:
    path = project.folder / edited
    text = path.read_text()
    try:
        path.write_text(text + "# edited\n")
        assert stale(project) - before == expected
    finally:
        path.write_text(text)
