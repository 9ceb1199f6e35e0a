"""Batches of agents with the real engine, gateway and clients: the environment's own tokens, and the same ones again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.agents.gateway import play as gateway  # before `check` leaves the folder
from addons.agents.section import Agents
from environments.base import Scenario
from environments.email_search import EmailSearch
from steps.core.params import Policy, Rollout
from steps.core.records import Trajectory
from steps.sampling.job import Job
from tests.conftest import ROOT
from tests.support import storm
from tests.support.agents._common import mailbox

pytestmark = pytest.mark.slow
TASK = "tests.support.agents.email_native"
SCENARIOS, ATTEMPTS, SEED = 3, 2, 11


def attempts() -> list[tuple[Scenario, int]]:
    scenarios = EmailSearch.scenarios(mailbox(), "train", SCENARIOS, SEED)
    return [(scenario, attempt) for scenario in scenarios for attempt in range(ATTEMPTS)]


def played(adapter: Path, order: Any, **agents: Any) -> list[Trajectory]:
    limits, env = Rollout(max_tokens=64, order=order), environments.load(TASK)
    return gateway.play(
        Job(Policy(), limits, adapter, env, attempts(), "001", SEED, task=TASK, settings=Agents(**agents))
    )


def differences(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> int:
    """Trajectories whose tokens differ."""
    tokens = [[[turn.completion_ids for turn in trajectory.turns] for trajectory in batch] for batch in (ours, theirs)]
    return sum(one != other for one, other in zip(*tokens, strict=True))


def check_rows(adapter: Path) -> None:
    """An agent that appends gives the environment's own rows; lockstep gives the same batch again, and so does a record."""
    from steps.sampling import engine

    env = EmailSearch
    limits = Rollout(max_tokens=64)
    native = engine.play(Job(Policy(), limits, adapter, env, attempts(), "001", SEED, mailbox()))
    ours = played(adapter, "lockstep")
    alike = 0
    for trajectory, other in zip(native, ours, strict=True):
        assert other.result is not None
        assert len(other.flatten()) == 1
        if other.result.components["differs"] or trajectory.stop_reason != "done":
            continue
        [row], [own] = trajectory.flatten(), other.flatten()
        assert own.ids == row.ids
        assert own.mask == row.mask
        assert (
            max(abs(a - b) for a, b in zip(own.logprobs, row.logprobs, strict=True)) < 1e-4
        )  # other batches: rounding
        alike += 1
    assert alike >= len(native) // 2

    os.environ["JITTER"] = "0.05"
    gateway._gateways[0].stop_clients()
    again = played(adapter, "lockstep", clients=2)
    assert again == ours, "not a token, not a logprob, whatever the timing and the number of clients"
    free = played(adapter, "free")
    assert differences(free, ours) == 0
    journals = list(Path(".flywheel/gateway").glob("*/journal.sqlite"))
    assert len(journals) == 1, "the record of the free batch alone is kept"
    assert played(adapter, "free") == free, "played from the record"


def check_storm(adapter: Path) -> None:
    """The short form of `python -m tests.support.storm`."""
    for name, kills in (("langgraph_react", 1), ("raw_events", 0)):
        row = storm.play_storm(name, adapter, 6, kills, SEED, "free", True, within=1.0)
        assert storm.is_right(row), row
        assert row["turns"] > 6


@pytest.mark.parametrize("check", ["rows", pytest.param("storm", marks=pytest.mark.nightly)])
@pytest.mark.usefixtures("one_thread")
def test_batches_with_the_real_engine(check: str, tmp_path: Path) -> None:
    """In a process of its own: it would keep this one's only engine."""
    from steps.training.grpo import Trainer

    Trainer(Policy(base_model=str(ROOT / Policy().base_model)), seed=SEED).save_adapter(tmp_path / "adapter")
    words = f"from tests.addons.agents.gateway import test_play as t; t.checked({check!r}, {os.fspath(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]


def checked(check: str, folder: str) -> None:
    """Journals and logs go to this folder."""
    (Path(folder) / "tasks_data").symlink_to(ROOT / "tasks_data")
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.fspath(ROOT)
    {"rows": check_rows, "storm": check_storm}[check](Path(folder) / "adapter")
