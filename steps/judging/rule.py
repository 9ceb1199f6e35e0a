"""The rule's score of a trajectory: the environment's own reward, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.records import Reward

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.records import Trajectory


def by_rule(env: type[Env], scenario: Scenario, trajectory: Trajectory) -> Reward:
    """The environment's own reward of one trajectory; None where the episode failed, and where the task has no rule."""
    common = {"trajectory_id": trajectory.id, "scenario_id": scenario.id, "name": "rule"}
    if trajectory.stop_reason == "error":
        return Reward(**common, score=None, success=False, explanation=f"the episode failed: {trajectory.error}")
    if not env.has_rule:
        return Reward(**common, score=None, success=False, explanation="this task has no rule")
    messages = trajectory.messages(scenario)
    parts = env.components(scenario, messages)
    total = sum(part.value for part in parts)
    return Reward(
        **common,
        score=total,
        rule=total,
        success=env.success(scenario, messages),
        components={part.name: part.value for part in parts},
        explanation="; ".join(f"{part.name}: {part.why}" for part in parts),
    )
