"""Several tasks at once: each task's share of a batch, and an environment in which every scenario keeps its own task."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import environments
from environments.base import Env, TaskProblem
from environments.kit.shares import by_batch, interleaved, shares
from environments.multiplication import Multiplication
from environments.tic_tac_toe import TicTacToe
from tests.conftest import ROOT

BOTH = "multiplication+tic_tac_toe"
DATA = ROOT / "tasks_data"


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    env = environments.load(BOTH, {"multiplication": 2, "tic_tac_toe": 1})
    return env, env.load(DATA)


@pytest.mark.parametrize(
    ("weights", "count"),
    [
        ({"a": 2, "b": 1}, 16),
        ({"a": 1, "b": 1}, 7),
        ({"a": 5, "b": 3, "c": 3}, 16),
        ({"a": 3, "b": 1}, 32),
        ({"a": 7, "b": 2, "c": 1, "d": 1}, 23),
    ],
)
def test_a_share_is_exact_up_to_rounding_in_each_batch_and_over_all(weights: dict[str, int], count: int) -> None:
    exact = {task: Fraction(count * weight, sum(weights.values())) for task, weight in weights.items()}
    given: Counter[str] = Counter()
    for number, batch in enumerate(by_batch(weights, count, 60), 1):
        assert sum(batch.values()) == count
        assert all(abs(batch[task] - exact[task]) < 1 for task in weights), batch
        given.update(batch)
        assert all(abs(given[task] - number * exact[task]) <= 1 for task in weights), number


def test_shares_by_hand() -> None:
    assert shares({"a": 2, "b": 1}, 240) == {"a": 160, "b": 80}
    assert [tuple(batch.values()) for batch in by_batch({"a": 2, "b": 1}, 16, 3)] == [(11, 5), (10, 6), (11, 5)]
    assert by_batch({"a": 1, "b": 1}, 3, 2) == [{"a": 2, "b": 1}, {"a": 1, "b": 2}]


def test_each_part_of_a_batch_has_both() -> None:
    assert interleaved({"a": [1, 2, 3, 4], "b": [5, 6]}) == [1, 5, 2, 3, 6, 4]
    mixed = interleaved({"a": ["a"] * 40, "b": ["b"] * 24})
    assert [mixed[start : start + 8].count("b") for start in range(0, 64, 8)] == [3] * 8


def test_a_task_has_its_own_scenarios_and_as_many_as_its_share(both: tuple[Any, Any]) -> None:
    env, data = both
    drawn = env.scenarios(data, "val", 12, 5)
    assert [scenario.id for scenario in drawn] == [scenario.id for scenario in env.scenarios(data, "val", 12, 5)]
    own = {
        task: [scenario for scenario in drawn if scenario.task == task] for task in ("multiplication", "tic_tac_toe")
    }
    assert own["multiplication"] == Multiplication.scenarios(data["multiplication"], "val", 8, 5)
    assert own["tic_tac_toe"] == TicTacToe.scenarios(data["tic_tac_toe"], "val", 4, 5)


def test_an_episode_is_one_of_the_scenarios_own_task(both: tuple[Any, Any]) -> None:
    env, data = both
    kinds = set()
    for scenario in env.scenarios(data, "train", 6, 1):
        own = env.of(scenario)
        episode = env(scenario, data)
        assert type(episode) is own
        kinds.add(own)
        told = episode.play("gold")
        assert told == own(scenario, data[scenario.task]).play("gold")
        assert env.components(scenario, told) == own.components(scenario, told)
        assert env.success(scenario, told)
        assert env.outcome(scenario, told) == own.outcome(scenario, told)
        assert env.anchor_state(scenario, told[:2]) == own.anchor_state(scenario, told[:2])
        assert env.cluster(scenario, data) == f"{scenario.task}: {own.cluster(scenario, data[scenario.task])}"
    assert kinds == {Multiplication, TicTacToe}


def test_the_environment_is_the_same_whichever_name_comes_first() -> None:
    env = environments.load(BOTH)
    assert env is environments.load("tic_tac_toe+multiplication")
    assert env is not environments.load(BOTH, {"multiplication": 2, "tic_tac_toe": 1})
    assert dict(env.task_classes) == {"multiplication": Multiplication, "tic_tac_toe": TicTacToe}
    assert Multiplication.task_classes == {}
    assert (env.max_turns, env.openings_repeat, env.is_agent, env.has_rule, env.lag()) == (6, True, False, True, 0)
    with pytest.raises(TypeError, match="has no tools of its own"):
        env.tools()


def test_another_process_finds_the_class_by_its_name() -> None:
    """As an engine on a Ray cluster does (addons/fleet/engine_actor.py)."""
    from importlib import import_module

    env = environments.load(BOTH)
    assert getattr(import_module(env.__module__), env.__qualname__) is env
    with pytest.raises(AttributeError):
        import_module(env.__module__).nothing  # noqa: B018


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("email_search+tests.support.ruleless", "tasks: tests.support.ruleless has no rule, and such a task"),
        ("multiplication+tests.support.agents.email_native", "is an agent of your own, and such a task"),
        ("multiplication+environments.multiplication", "two of them have the same name"),
    ],
)
def test_what_cannot_be_mixed_is_refused(task: str, words: str) -> None:
    with pytest.raises(TaskProblem, match=words):
        environments.load(task)


def test_scenarios_of_another_task_are_refused(both: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    env, data = both
    strange = Multiplication.scenarios(data["multiplication"], "val", 8, 1)[0].model_copy(update={"task": "x"})
    with pytest.raises(TaskProblem, match="is of the task x, and these tasks are multiplication, tic_tac_toe"):
        env.of(strange)
    monkeypatch.setattr(Multiplication, "scenarios", classmethod(lambda *_: [strange]))
    with pytest.raises(TaskProblem, match="names the task of its scenarios x"):
        env.scenarios(data, "val", 12, 1)


def test_every_pair_of_tasks_with_a_rule_can_be_mixed() -> None:
    """Each task names its scenarios as its module is named; that is all that a task needs."""
    ruled = [task for task in environments.tasks(agents=False) if environments.load(task).has_rule]
    assert len(ruled) >= 10
    env: type[Env] = environments.load("+".join(ruled))
    drawn = env.scenarios(env.load(Path(DATA)), "val", 3 * len(ruled), 1)
    assert Counter(scenario.task for scenario in drawn) == dict.fromkeys(ruled, 3)
    assert json.dumps([scenario.task for scenario in drawn[: len(ruled)]]) == json.dumps(sorted(ruled)), "spread evenly"
