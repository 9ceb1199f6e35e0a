"""Episodes of slow environments: their answers come from threads, and the order of everything stays."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from addons.models import players
from environments.base import Env, Scenario, tool
from environments.kit.waiting import Limited, TookTooLong, result_of
from steps.core.errors import UserError
from steps.core.params import Policy, Rollout
from steps.core.params_sections import SlowTools
from steps.core.records import Trajectory
from steps.policy.chat import Prompt
from steps.sampling import episodes
from steps.sampling.job import Job
from steps.sampling.turns import Sampled

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
    prompt=lambda messages, _: Prompt([1, len(messages)]),
    parse=lambda ids: SimpleNamespace(message={"role": "assistant", "content": f"{ids}"}, problems=()),
    call_hint="",
    suffix_ids=lambda observations, turn: [len(observations[0]["content"]) % 50 + 3],
)


def play(env: Any, sampler: FakeSampler | None = None, chat: Any = CHAT, **limits: Any) -> list[Trajectory]:
    attempts = [(scenario, 0) for scenario in SCENARIOS]
    return episodes.play(job_of(env, attempts, **limits), sampler or FakeSampler(), {"": chat})


def job_of(env: Any, attempts: Any, **limits: Any) -> Job:
    return Job(Policy(context=99), Rollout(max_tokens=4, **limits), None, env, attempts, "x", 1)


def test_each_of_several_tasks_has_a_chat_of_its_own() -> None:
    """Its prompt, its suffixes and its hint: each has the tools of one task."""
    others = [scenario.model_copy(update={"task": "other"}) for scenario in SCENARIOS[1::2]]
    attempts = [(scenario, 0) for pair in zip(SCENARIOS[::2], others, strict=True) for scenario in pair]
    other: Any = SimpleNamespace(**vars(CHAT) | {"prompt": lambda *_: Prompt([2, 2]), "suffix_ids": lambda *_: [600]})
    played = episodes.play(job_of(Inline, attempts), FakeSampler(), {"slow": CHAT, "other": other})
    for (scenario, _), trajectory in zip(attempts, played, strict=True):
        assert (trajectory.turns[0].prompt_ids == (2, 2)) is (scenario.task == "other")
        assert (600 in trajectory.turns[1].prompt_ids) is (scenario.task == "other")


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


def test_free_takes_answers_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode is held up until all others have ended: in order, they would wait for it."""
    left, others_ended = [(EPISODES - 1) * TURNS], threading.Event()

    def meet(env: Env) -> None:
        if env.scenario == SCENARIOS[0]:
            assert others_ended.wait(timeout=20)
            return
        left[0] -= 1
        if not left[0]:
            others_ended.set()

    monkeypatch.setattr(Slow, "meet", staticmethod(meet))
    played = play(Slow, order="free")
    assert [trajectory.error for trajectory in played] == [None] * EPISODES
    monkeypatch.undo()
    assert played == play(Slow) == play(Inline, order="free")


# --- Tools with a limit


class ToolTask(Env):
    """A plain and an async tool, which wait for `going_on`; the episode ends by a third."""

    max_turns = TURNS
    overlap = 4
    going_on = threading.Event()
    at_once = most_at_once = 0
    released: ClassVar[list[str]] = []
    lock = threading.Lock()

    @tool
    def plain(self) -> str:
        """Wait in a thread."""
        with ToolTask.lock:
            ToolTask.at_once += 1
            ToolTask.most_at_once = max(ToolTask.at_once, ToolTask.most_at_once)
        ToolTask.going_on.wait(timeout=20)
        with ToolTask.lock:
            ToolTask.at_once -= 1
        return "late"

    @tool
    async def waiting(self) -> str:
        """Wait on the event loop."""
        while not ToolTask.going_on.is_set():
            await asyncio.sleep(0.005)
        return threading.current_thread().name

    @tool
    def quick(self) -> str:
        """Answer at once."""
        return "there"

    def scripted(self, messages: Any, rng: Any) -> Any:
        return turn("plain")

    def release(self) -> None:
        self.released.append(self.scenario.id)


ToolTask.__abstractmethods__ = frozenset()
Tools: Any = ToolTask


def turn(*names: str) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in names]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def chat_that_calls(*names: str) -> Any:
    parsed = SimpleNamespace(message=turn(*names), problems=())
    return SimpleNamespace(**{**vars(CHAT), "parse": lambda ids: parsed})


@pytest.fixture(autouse=True)
def fresh() -> Any:
    ToolTask.going_on.clear()
    ToolTask.at_once = ToolTask.most_at_once = 0
    ToolTask.released.clear()
    yield
    ToolTask.going_on.set()


@pytest.mark.parametrize("name", ["plain", "waiting"])
def test_a_call_that_takes_too_long_is_an_error_and_the_turn_goes_on(name: str) -> None:
    played = play(Tools, chat=chat_that_calls("quick", name, "quick"), tool_timeout=1.5, max_turns=1)
    took = f'Error: the tool "{name}" took longer than 1.5 seconds, and its answer was not waited for.'
    after = "there"
    if name == "plain":  # it still runs in its thread, and calls of one episode never run at the same time
        after = 'Error: the tool "quick" took longer than 1.5 seconds, and its answer was not waited for.'
    for trajectory in played:
        assert [seen["content"] for seen in trajectory.turns[0].observations] == ["there", took, after]
        assert trajectory.stop_reason == "max_turns"
    assert set(ToolTask.released) == {scenario.id for scenario in SCENARIOS}


def test_an_answer_within_the_limit_is_read_and_async_tools_share_one_loop() -> None:
    threading.Timer(0.1, ToolTask.going_on.set).start()
    for trajectory in play(Tools, chat=chat_that_calls("waiting", "plain"), max_turns=1):
        assert [seen["content"] for seen in trajectory.turns[0].observations] == ["async tools", "late"]


def go_on_when(count: int) -> None:
    """Let the tools answer once so many wait at the same time, and a moment later, in which more could come."""

    def watch() -> None:
        until = time.monotonic() + 20
        while ToolTask.at_once < count and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(0.1)
        ToolTask.going_on.set()

    threading.Thread(target=watch, daemon=True).start()


def test_no_more_episodes_than_workers_answer_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "TOOL_WORKERS", 2)
    go_on_when(2)
    play(Tools, chat=chat_that_calls("plain"))
    assert ToolTask.most_at_once == 2


def test_players_that_are_asked_in_messages_honour_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(players, "TOOL_WORKERS", 3)
    policy, attempts = Policy(kind="scripted"), [(scenario, 0) for scenario in SCENARIOS]
    slow = SlowTools(tool_timeout=0.05)
    played = players.play(policy, Tools, None, attempts, prefix="x", max_turns=1, slow=slow)
    for game in played:
        [observation] = game.trajectory.turns[0].observations
        assert observation["content"].startswith('Error: the tool "plain" took longer than 0.05 seconds')
    assert set(ToolTask.released) == {scenario.id for scenario in SCENARIOS}
    ToolTask.going_on.set()
    until = time.monotonic() + 20
    while ToolTask.at_once and time.monotonic() < until:  # those that were left behind end
        time.sleep(0.005)
    ToolTask.going_on.clear()
    ToolTask.most_at_once = 0
    go_on_when(3)
    players.play(policy, Tools, None, attempts, prefix="x", max_turns=1)
    assert ToolTask.most_at_once == 3


def test_a_limit_waits_for_the_call_before_and_passes_errors_on() -> None:
    limit = Limited(0.2)
    ends = time.monotonic() + 0.25
    with pytest.raises(TookTooLong):
        limit(lambda: time.sleep(max(0.0, ends - time.monotonic())))
    assert limit(lambda: time.monotonic() >= ends)  # only then did it begin

    def fail() -> None:
        raise TimeoutError("the service's own")

    with pytest.raises(TimeoutError, match="the service's own"):
        limit(fail)
    with pytest.raises(TookTooLong):
        result_of(Future(), 0.01)
