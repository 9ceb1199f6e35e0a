"""The rule's score of a trajectory: the environment's own reward, part by part; of your own agents, what they returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments._agents import Result
from steps.core.records import Reward
from steps.core.stats import added

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.records import Trajectory


def by_rule(env: type[Env], scenario: Scenario, trajectory: Trajectory) -> Reward:
    """The environment's own reward of one trajectory; None where the episode failed, and where the task has no rule."""
    common = {"trajectory_id": trajectory.id, "scenario_id": scenario.id, "name": "rule"}
    if trajectory.stop_reason == "error":
        return Reward(**common, score=None, success=False, explanation=f"the episode failed: {trajectory.error}")
    if env.is_agent:
        result = trajectory.result or Result()
        why = "the agent gave no reward" if result.reward is None else "the agent gave it"
        success, components = is_success(env, scenario, trajectory), result.components
        return Reward(
            **common, score=result.reward, rule=result.reward, success=success, components=components, explanation=why
        )
    if not env.has_rule:
        return Reward(**common, score=None, success=False, explanation="this task has no rule")
    messages = trajectory.messages(scenario)
    parts = env.components(scenario, messages)
    total = added(part.value for part in parts)
    return Reward(
        **common,
        score=total,
        rule=total,
        success=is_success(env, scenario, trajectory),
        components={part.name: part.value for part in parts},
        explanation="; ".join(f"{part.name}: {part.why}" for part in parts),
    )


def is_success(env: type[Env], scenario: Scenario, trajectory: Trajectory) -> bool:
    """Whether an episode that did not fail was a success. Of your own agents: what they returned, or a reward above 0.5."""
    if not env.is_agent:
        return env.success(scenario, trajectory.messages(scenario))
    result = trajectory.result or Result()
    return (result.reward or 0.0) > 0.5 if result.success is None else result.success
