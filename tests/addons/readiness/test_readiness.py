"""What a policy can do before training: each reason why it cannot begin is named, and a policy that can begin is let go."""

from __future__ import annotations

from typing import Any

import pytest

import environments
from addons.readiness.readiness import Readiness, readiness
from environments.base import use
from steps.core.records import Reward, Trajectory, Turn

ENV = environments.load("_template")


def attempt(
    scenario: int, number: int, *, call: str = "", answer: str = "", stop: Any = "done", **more: Any
) -> Trajectory:
    message = use(call, country="Peru") if call else {"role": "assistant", "content": "well"}
    observations = ({"role": "tool", "name": call, "content": answer},) if answer else ()
    turn = Turn(
        prompt_ids=(1,),
        completion_ids=(2,),
        logprobs=(-1.0,),
        message=message,
        observations=observations,
        finish_reason="stop",
    )
    return Trajectory(
        id=f"{scenario}-{number}",
        scenario_id=str(scenario),
        attempt=number,
        adapter_hash="a",
        turns=(turn,),
        stop_reason=stop,
        **more,
    )


def measured(*attempts: tuple[Trajectory, float | None, bool]) -> Readiness:
    rewards = [
        Reward(
            trajectory_id=each.id,
            scenario_id=each.scenario_id,
            name="rule",
            score=score,
            rule=score,
            success=success,
            explanation="",
        )
        for each, score, success in attempts
    ]
    return readiness(ENV, [each for each, _, _ in attempts], rewards)


GOOD = {"call": "look_up", "answer": "The capital of Peru is Lima."}
BAD = {"call": "look_up", "answer": "Error: there is no country of this name"}


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        ([(GOOD, 1.0, True), (GOOD, -1.0, False)], ""),
        ([(GOOD, -0.5, False), (GOOD, -1.0, False)], "no success: 0 of 4 attempts"),
        ([(GOOD, 1.0, True), (GOOD, 1.0, True)], "no variance: all 4 attempts succeed"),
        ([(BAD, -0.6, False), ({}, -0.5, False)], "no valid call: 0 of 4 attempts"),
        ([(BAD | {"stop": "length"}, -0.6, False), ({"stop": "context"}, -0.5, False)], "cut off: 4 of 4 attempts"),
        ([(GOOD, None, False), (GOOD, None, False)], "judge silent: none of 4 attempts"),
        ([({"stop": "error", "error": "no key"}, None, False)] * 2, "all 4 attempts failed: no key"),
    ],
)
def test_the_obstacle(attempts: list[tuple[dict[str, Any], float | None, bool]], said: str) -> None:
    both = [
        (attempt(scenario, number, **fields), score, success)
        for scenario in range(2)
        for number, (fields, score, success) in enumerate(attempts)
    ]
    found = measured(*both).obstacle()
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_equal_rewards_at_each_scenario_are_no_variance_though_scenarios_differ() -> None:
    found = measured(
        *[
            (attempt(scenario, number, **GOOD), float(scenario), bool(scenario))
            for scenario in (0, 1)
            for number in (0, 1)
        ]
    )
    assert found.obstacle() == "no variance: at each of 2 scenarios all attempts earned the same"
    assert found.can_be_taught


def test_the_table_counts() -> None:
    found = measured((attempt(0, 0, **GOOD), 1.0, True), (attempt(0, 1, **BAD), -0.5, False))
    assert found == Readiness(2, 0, 1, 0, 2, 1, 1, 1)
    assert found.table() == [
        "     1 of 2     attempts made a valid call",
        "     0 of 2     attempts were cut off",
        "     1 of 2     attempts succeeded",
        "     1 of 1     scenarios had attempts of different reward",
    ]


def test_a_call_that_ends_the_task_is_a_valid_one() -> None:
    assert measured((attempt(0, 0, call="answer"), 1.0, True)).called == 1
