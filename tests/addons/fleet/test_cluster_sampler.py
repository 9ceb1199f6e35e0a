"""Single turns on an engine that may be lost: each is answered once, and a round is sampled again as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addons.fleet import cluster_sampler
from addons.fleet.cluster_sampler import ClusterSampler
from addons.fleet.shards import TRIES, Ready
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.sampling.turns import Limits, Sampled


class Gone(Exception):
    """In place of Ray's error that an actor has died."""


class FakeEngine:
    """An actor's handle: a turn's tokens are its seed and how many requests came with it; it dies at the given steps."""

    def __init__(self, log: list[list[int]], deaths: set[int]) -> None:
        self.log, self.deaths, self.steps = log, deaths, 0
        self.waiting: list[list[Any]] = []
        self.batch = 0
        self.handle = SimpleNamespace(sample=self.method(self.sample), step=self.method(self.step))

    @staticmethod
    def method(call: Callable[..., dict[str, Any]]) -> Any:
        return SimpleNamespace(remote=lambda *words: lambda: call(*words))

    def sample(self, settings: str, parcels: dict[str, Any]) -> dict[str, Any]:
        assert json.loads(settings) == {"temperature": 1.0, "max_tokens": 8, "stop": 2}
        return {}

    def step(self, requests: str, steps: int) -> dict[str, Any]:
        self.steps += 1
        if self.steps in self.deaths:
            raise Gone("Worker exit type: SYSTEM_ERROR")
        new = json.loads(requests)
        refused = [[key, "no such grammar"] for key, _, _, limits in new if limits and limits["schema"] == "bad"]
        new = [request for request in new if request[0] not in dict(refused)]
        self.waiting += new
        if new:
            self.log.append([request[0] for request in new])
            self.batch = len(self.waiting)
        done, self.waiting = (self.waiting[:2], self.waiting[2:]) if steps else ([], self.waiting)
        finished = [[key, [seed, self.batch], [-0.5, -0.25], "stop", []] for key, _, seed, _ in done]
        return {"finished": finished, "refused": refused}


class FakeFleet:
    """Engines one after another, each with steps at which it dies."""

    def __init__(self, deaths: list[set[int]]) -> None:
        self.ray = SimpleNamespace(get=lambda work: work(), exceptions=SimpleNamespace(RayError=Gone))
        self.log: list[list[int]] = []
        self.engines = [FakeEngine(self.log, steps) for steps in deaths]
        self.members = {0: self.engines[0]}

    def idle(self) -> list[Ready]:
        return [Ready(name) for name in self.members]

    def parcel(self, path: Path) -> list[str]:
        return [str(path), "hash", "content"]

    def keep(self, parcels: Any) -> None:
        pass

    def drop(self, name: int) -> None:
        del self.members[name]
        self.members[name + 1] = self.engines[name + 1]


def sampler(monkeypatch: pytest.MonkeyPatch, *deaths: set[int]) -> tuple[ClusterSampler, FakeFleet]:
    fleet = FakeFleet(list(deaths))
    monkeypatch.setattr(cluster_sampler, "fleet_of", lambda policy: fleet)
    return ClusterSampler(Policy(kind="ray"), Path("adapter"), 1.0, 8, 2), fleet


def sampled(made: ClusterSampler) -> list[Sampled]:
    """All turns of a round."""
    turns = []
    while made.pending:
        turns += made.step()
    return turns


@pytest.mark.parametrize("deaths", [(set(),), ({1}, set()), ({2}, set()), ({3}, {1}, {2}, set())])
def test_a_round_is_the_same_whichever_engines_are_lost(
    monkeypatch: pytest.MonkeyPatch, deaths: tuple[set[int], ...]
) -> None:
    made, fleet = sampler(monkeypatch, *deaths)
    for number in range(2):  # rounds
        for key in range(5):
            made.submit(10 * number + key, [1, 2, 3], seed=100 + key)
        turns = sampled(made)
        assert [turn.key for turn in turns] == [10 * number + key for key in range(5)]
        assert [turn.completion_ids for turn in turns] == [(100 + key, 5) for key in range(5)]  # all five beside each
    assert all(len(keys) == 5 for keys in fleet.log)


def test_a_request_that_vllm_refuses_is_not_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = sampler(monkeypatch, set())
    made.submit(1, [1], seed=1)
    with pytest.raises(ValueError, match="no such grammar"):
        made.submit(2, [1], seed=2, limits=Limits(4, schema="bad"))
    made.submit(3, [1], seed=3, limits=Limits(4, schema="{}", stop=("x",)))
    assert [turn.key for turn in sampled(made)] == [1, 3]


def test_engines_that_always_die_end_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = sampler(monkeypatch, *[{1} for _ in range(TRIES + 1)])
    made.submit(1, [1], seed=1)
    with pytest.raises(
        UserError, match=f"{TRIES} engines were lost in a row, the last one because its process has died"
    ):
        made.step()
