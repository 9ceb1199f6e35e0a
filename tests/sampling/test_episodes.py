"""Episodes of slow environments: their answers come from threads, and the order of everything stays."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from environments.base import Env, Scenario
from steps.core.errors import UserError
from steps.core.records import Trajectory
from steps.sampling import episodes
from steps.sampling.engine import Sampled

EPISODES, TURNS = 6, 3


class FakeSampler:
    """Stands for vLLM: a turn takes two steps, or three where the key is odd; its tokens are the seed's digits.
    Keeps which keys were in each batch."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.seeds: dict[int, int] = {}
        self.batches: list[list[int]] = []
        self.went_on = threading.Event()  # set by a step that is made while episode 0 is answered
        self.answering_first = False

    @property
    def pending(self) -> int:
        return len(self.left)

    def submit(self, key: int, prompt_ids: list[int], seed: int) -> None:
        self.left[key], self.seeds[key] = 2 + key % 2, seed

    def step(self) -> list[Sampled]:
        if self.answering_first:
            self.went_on.set()
        self.batches.append(sorted(self.left))
        self.left = {key: steps - 1 for key, steps in self.left.items()}
        done = sorted(key for key, steps in self.left.items() if steps == 0)
        for key in done:
            del self.left[key]
        return [Sampled(key, (self.seeds[key] % 97 + 3, 2), (-0.5, -0.25), "stop") for key in done]


class SlowTask(Env):
    """Answers a turn once `meet` has happened."""

    max_turns = TURNS
    overlap = 4
    meet: Any = staticmethod(lambda env: None)

    def step(self, message: Any, problems: Any = ()) -> list[Any]:
        type(self).meet(self)
        return [{"role": "tool", "name": "look", "content": f"seen {message['content']}"}]


SlowTask.__abstractmethods__ = frozenset()  # no scenario or reward is needed here
Slow: Any = SlowTask
Inline: Any = type("Inline", (SlowTask,), {"overlap": 0})
SCENARIOS = [
    Scenario.make("slow", "train", [{"role": "user", "content": f"question {number}"}], {})
    for number in range(EPISODES)
]
CHAT: Any = SimpleNamespace(
    prompt_ids=lambda messages: [1, len(messages)],
    parse=lambda ids: SimpleNamespace(message={"role": "assistant", "content": f"{ids}"}, problems=()),
    call_hint="",
    suffix_ids=lambda observations, turn: [len(observations[0]["content"]) % 50 + 3],
)


def play(env: Any, sampler: FakeSampler | None = None) -> list[Trajectory]:
    attempts = [(scenario, 0) for scenario in SCENARIOS]
    return episodes.play(
        sampler or FakeSampler(),
        CHAT,
        env,
        None,
        attempts,
        prefix="x",
        seed=1,
        adapter_hash="a",
        context=99,
        max_tokens=4,
    )


def test_slow_environments_answer_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All episodes of a kind finish a turn in the same engine step: each answer waits for the others."""
    barriers = [threading.Barrier(EPISODES // 2) for _ in range(2)]

    def meet(env: Env) -> None:
        barriers[SCENARIOS.index(env.scenario) % 2].wait(timeout=20)

    monkeypatch.setattr(Slow, "meet", staticmethod(meet))
    played = play(Slow)
    assert [trajectory.error for trajectory in played] == [None] * EPISODES
    assert [len(trajectory.turns) for trajectory in played] == [TURNS] * EPISODES


def test_the_engine_goes_on_while_an_environment_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = FakeSampler()

    def meet(env: Env) -> None:
        if env.scenario == SCENARIOS[0] and not sampler.went_on.is_set():
            sampler.answering_first = True
            assert sampler.went_on.wait(timeout=20)

    monkeypatch.setattr(Slow, "meet", staticmethod(meet))
    assert [trajectory.error for trajectory in play(Slow, sampler)] == [None] * EPISODES
    assert sampler.went_on.is_set()


def test_batches_do_not_depend_on_how_long_an_answer_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do trajectories on whether answers come from threads at all."""
    samplers = [FakeSampler() for _ in range(3)]
    quick = play(Slow, samplers[0])
    waits = iter([0.02, 0, 0.001] * EPISODES * TURNS)
    monkeypatch.setattr(Slow, "meet", staticmethod(lambda env: threading.Event().wait(next(waits))))
    assert play(Slow, samplers[1]) == quick
    assert samplers[1].batches == samplers[0].batches
    monkeypatch.undo()
    assert play(Inline, samplers[2]) == quick
    assert samplers[2].batches != samplers[0].batches  # no engine step passes before the next request


def test_an_environment_that_fails_in_a_thread_ends_its_episode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def meet(env: Env) -> None:
        if env.scenario == SCENARIOS[1]:
            raise RuntimeError("the service is away")

    monkeypatch.setattr(Slow, "meet", staticmethod(meet))
    played = play(Slow)
    assert played[1].error == "RuntimeError: the service is away"
    assert [trajectory.stop_reason for trajectory in played] == ["max_turns", "error", *["max_turns"] * 4]
    assert len(played[1].turns) == 1

    def refuse(env: Env) -> None:
        raise UserError("no key for the service")

    monkeypatch.setattr(Slow, "meet", staticmethod(refuse))
    with pytest.raises(UserError, match="no key"):
        play(Slow)


def test_the_turns_of_an_episode_have_seeds_of_their_own() -> None:
    turns = [turn for trajectory in play(Inline) for turn in trajectory.turns]
    assert len({turn.completion_ids for turn in turns}) > EPISODES  # made from the seeds
