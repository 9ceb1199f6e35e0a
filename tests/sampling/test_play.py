"""Who plays a job: the engine of this process, or what an add-on brings; what none brings is refused by a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from environments.multiplication import Multiplication
from steps.core import manifests, masking
from steps.core.errors import UserError
from steps.core.params import Policy, Rollout
from steps.sampling import engine
from steps.sampling.job import Job
from steps.sampling.play import play, sampler


@pytest.fixture(autouse=True)
def _without_addons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(manifests, "FOLDER", tmp_path)
    manifests.addons.cache_clear()
    masking.finer.cache_clear()
    yield
    manifests.addons.cache_clear()
    masking.finer.cache_clear()


def job(env: Any = Multiplication, **policy: Any) -> Job:
    return Job(Policy(**policy), Rollout(), Path("adapter"), env, [], "001", 1, task="mine")


def test_the_engine_of_this_process_needs_no_addon() -> None:
    assert sampler(job()) is engine


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (job(kind="ray"), r"policy\.kind: ray is brought by an add-on that addons/ does not have \(there: none\)"),
        (
            job(type("Agent", (Multiplication,), {"is_agent": True})),
            "task: mine is an agent of your own: gateway is brought",
        ),
    ],
)
def test_what_no_addon_brings_is_refused(asked: Job, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        play(asked)
