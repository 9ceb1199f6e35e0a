"""Score: a reward for each trajectory, by the environment's own rule.

Rewards are a file of their own, so that a stored batch can be judged again without sampling again. A failed episode is
unscored (None), never 0 and never dropped. Beside them stands what a curriculum goes by: successes by scenario so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.stage import Input, Output, main, say

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.params import ScoreParams
    from steps.types import Reward, Trajectory


def score(
    scenarios: Input,
    trajectories: Input,
    rewards: Output,
    params: ScoreParams,
    previous_successes: Input | None = None,
    successes: Output | None = None,
) -> None:
    """Write one reward a trajectory, in the same order; and the history that a curriculum reads, an iteration longer."""
    import json

    import environments
    from environments.base import Scenario
    from steps import curriculum
    from steps.types import Trajectory, read_records, write_records

    env = environments.load(params.task)
    known = {scenario.id: scenario for scenario in read_records(Scenario, scenarios / "train.parquet")}
    played = read_records(Trajectory, trajectories)
    scored = [by_rule(env, known[trajectory.scenario_id], trajectory) for trajectory in played]
    write_records(scored, rewards)
    if successes is not None:
        history = json.loads(previous_successes.read_text()) if previous_successes is not None else []
        successes.write_text(json.dumps(curriculum.extend(history, scored)) + "\n")
    say(f"{len(scored)} rewards, {sum(reward.score is None for reward in scored)} unscored")


def by_rule(env: type[Env], scenario: Scenario, trajectory: Trajectory) -> Reward:
    """The environment's rule reward of one trajectory."""
    from steps.types import Reward

    common = {"trajectory_id": trajectory.id, "scenario_id": scenario.id, "name": "rule"}
    if trajectory.stop_reason == "error":
        return Reward(**common, score=None, success=False, explanation=f"the episode failed: {trajectory.error}")
    messages = trajectory.messages(scenario)
    parts = env.reward(scenario, messages)
    return Reward(
        **common,
        score=sum(part.value for part in parts),
        success=env.success(scenario, messages),
        components={part.name: part.value for part in parts},
        explanation="; ".join(f"{part.name}: {part.why}" for part in parts),
    )


if __name__ == "__main__":
    main(score)
