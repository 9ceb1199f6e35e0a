"""Batches of agents with the real gateway and clients: the environment's own tokens, and the same ones again.

The engine is a stand-in at each change, and the real one by night.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
from steps.policy.loading import load_chat
from steps.sampling import engine
from steps.sampling.job import Job
from steps.sampling.turns import Sampled
from tests.conftest import ROOT
from tests.support import storm
from tests.support.agents._common import mailbox

pytestmark = pytest.mark.slow
TASK = "tests.support.agents.email_native"
SCENARIOS, ATTEMPTS, SEED = 3, 2, 11


def attempts() -> list[tuple[Scenario, int]]:
    scenarios = EmailSearch.scenarios(mailbox(), "train", SCENARIOS, SEED)
    return [(scenario, attempt) for scenario in scenarios for attempt in range(ATTEMPTS)]


def played(adapter: Path | None, order: Any, **agents: Any) -> list[Trajectory]:
    limits, env = Rollout(max_tokens=64, order=order), environments.load(TASK)
    return gateway.play(
        Job(Policy(), limits, adapter, env, attempts(), "001", SEED, task=TASK, settings=Agents(**agents))
    )


def differences(ours: Sequence[Trajectory], theirs: Sequence[Trajectory]) -> int:
    """Trajectories whose tokens differ."""
    tokens = [[[turn.completion_ids for turn in trajectory.turns] for trajectory in batch] for batch in (ours, theirs)]
    return sum(one != other for one, other in zip(*tokens, strict=True))


class StandIn:
    """A sampler whose turns follow from prompt and seed alone, and end in any order: calls of the task, and words."""

    def __init__(self, policy: Policy, *_: Any) -> None:
        self.chat, self.asked, self.draw = load_chat(policy, EmailSearch), list[Sampled](), random.Random()

    @property
    def pending(self) -> int:
        return len(self.asked)

    def submit(self, key: int, prompt_ids: list[int], seed: int, limits: Any = None) -> None:
        draw = random.Random(f"{seed} {prompt_ids}")
        word = draw.choice(["budget", "room", "Falcon"])
        name, arguments = draw.choices(
            [
                ("search_emails", {"keywords": [word]}),
                ("read_email", {"id": word}),
                ("return_final_answer", {"answer": word, "source_ids": []}),
                ("", {}),
            ],
            [4, 3, 4, 1],
        )[0]
        calls = [{"type": "function", "function": {"name": name, "arguments": arguments}}] if name else []
        ids = self.chat.completion_ids({"role": "assistant", "content": "" if calls else word, "tool_calls": calls})
        logprobs = tuple(-draw.random() for _ in ids)
        self.asked.append(Sampled(key, tuple(ids), logprobs, "stop"))

    def step(self) -> list[Sampled]:
        return [self.asked.pop(self.draw.randrange(len(self.asked)))]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in in the engine's place, in a folder of its own; its gateway and clients end with the test."""
    monkeypatch.setattr(engine, "EngineSampler", StandIn)
    monkeypatch.setattr(gateway, "_gateways", [])
    monkeypatch.setenv("PYTHONPATH", os.fspath(ROOT))
    monkeypatch.setenv("JITTER", "0")  # so that `check_rows` may change it
    (tmp_path / "tasks_data").symlink_to(ROOT / "tasks_data")
    monkeypatch.chdir(tmp_path)
    yield
    for one in gateway._gateways:
        one.stop()


@pytest.mark.usefixtures("stand_in")
def test_rows_of_a_stand_in_are_the_environments_own_and_the_same_again() -> None:
    check_rows(None)


def check_rows(adapter: Path | None) -> None:
    """An agent that appends gives the environment's own rows; lockstep gives the same batch again, and so does a record."""
    limits = Rollout(max_tokens=64)
    native = engine.play(Job(Policy(), limits, adapter, EmailSearch, attempts(), "001", SEED, mailbox()))
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

    os.environ["JITTER"] = "0.05"  # of the second client's agents
    again = played(adapter, "lockstep", clients=2, concurrency=2 * Agents().concurrency)
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


@pytest.mark.nightly
@pytest.mark.parametrize("check", ["rows", "storm"])
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
