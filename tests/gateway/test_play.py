"""Batches of agents with the real engine, gateway and clients: the environment's own tokens, and the same ones again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import environments
from environments.base import Scenario
from environments.email_search import EmailSearch
from steps.core.params import Agents, Policy, Rollout
from steps.core.records import Trajectory
from tests.conftest import ROOT
from tests.support import storm
from tests.support.agents._common import mailbox

pytestmark = pytest.mark.slow
TASK = "tests.support.agents.email_native"
SCENARIOS, ATTEMPTS, SEED = 4, 3, 11


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        return storm.fresh_adapter(tmp_path_factory.mktemp("adapter"))
    finally:
        os.chdir(before)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Journals and logs go to a folder of the test's own."""
    from steps.gateway import play

    (tmp_path / "tasks_data").symlink_to(ROOT / "tasks_data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    while play._gateways:
        play._gateways.pop().stop()


def attempts() -> list[tuple[Scenario, int]]:
    scenarios = EmailSearch.scenarios(mailbox(), "train", SCENARIOS, SEED)
    return [(scenario, attempt) for scenario in scenarios for attempt in range(ATTEMPTS)]


def played(adapter: Path, order: Any, **agents: Any) -> list[Trajectory]:
    from steps.gateway.play import play

    limits, env = Rollout(max_tokens=64, order=order), environments.load(TASK)
    return play(Policy(), limits, Agents(**agents), TASK, env, adapter, attempts(), "001", SEED)


def differences(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> int:
    """Trajectories whose tokens differ."""
    tokens = [[[turn.completion_ids for turn in trajectory.turns] for trajectory in batch] for batch in (ours, theirs)]
    return sum(one != other for one, other in zip(*tokens, strict=True))


def test_an_agent_that_appends_gives_the_environments_own_rows(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.sampling import engine

    env = EmailSearch
    limits = Rollout(max_tokens=64)
    native = engine.play(Policy(), limits, adapter, env, mailbox(), attempts(), "001", SEED)
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

    monkeypatch.setenv("JITTER", "0.05")
    from steps.gateway import play

    play._gateways[0].stop_clients()
    again = played(adapter, "lockstep", clients=2)
    assert again == ours, "not a token, not a logprob, whatever the timing and the number of clients"
    free = played(adapter, "free")
    assert differences(free, ours) == 0
    journals = list(Path(".flywheel/gateway").glob("*/journal.sqlite"))
    assert len(journals) == 1, "the record of the free batch alone is kept"
    assert played(adapter, "free") == free, "played from the record"


def test_every_token_is_there_once_in_a_storm(adapter: Path) -> None:
    """The short form of `python -m tests.support.storm`."""
    for name, kills in (("langgraph_react", 1), ("raw_events", 0)):
        row = storm.play_storm(name, adapter, 6, kills, SEED, "free", True, within=1.0)
        assert storm.is_right(row), row
        assert row["turns"] > 6
