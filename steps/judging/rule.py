"""The rule's score of a trajectory: the environment's own reward, part by part; of your own agents, what they returned.

What cannot be a reward (NaN, an infinite or huge number, a text) costs its attempt the score: None, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from environments.kit.values import REASON, Result, UnusableNumber, number, truth
from steps.core.errors import UserError
from steps.core.records import Reward
from steps.core.stats import added

if TYPE_CHECKING:
    from environments.base import Env, Message, Scenario
    from steps.core.params import Score
    from steps.core.records import Trajectory

REASONS = 3  # that are shown
NEEDED = "set score.judges.rule: 0, score.judges.ruler: 1 and score.ruler.endpoint.model"


def by_rule(env: type[Env], scenario: Scenario, trajectory: Trajectory) -> Reward:
    """The environment's own reward of one trajectory; None where the episode failed, where the task has no rule, and where
    its numbers are unusable."""
    common = {"trajectory_id": trajectory.id, "scenario_id": scenario.id, "name": "rule"}
    if trajectory.stop_reason == "error":
        return Reward(**common, score=None, success=False, explanation=f"the episode failed: {trajectory.error}")
    if not env.is_agent and not env.has_rule:
        return Reward(**common, score=None, success=False, explanation="this task has no rule")
    try:
        score, components, why = returned(trajectory) if env.is_agent else computed(env, scenario, trajectory)
        success = is_success(env, scenario, trajectory)
    except UnusableNumber as problem:
        return unusable(env, scenario, trajectory, common, problem)
    return Reward(**common, score=score, rule=score, success=success, components=components, explanation=why)


def returned(trajectory: Trajectory) -> tuple[float | None, dict[str, float], str]:
    """(reward, its components, why) that an agent of your own returned."""
    result = trajectory.result or Result()
    components = {name: number(value, "reward", f"component {name}") for name, value in result.components.items()}
    if result.reward is None:
        return None, components, "the agent gave no reward"
    return number(result.reward, "reward"), components, "the agent gave it"


def computed(env: type[Env], scenario: Scenario, trajectory: Trajectory) -> tuple[float, dict[str, float], str]:
    """(reward, its components, why) by the task's rule."""
    parts = env.components(scenario, trajectory.messages(scenario))
    total = number(added(part.value for part in parts), "reward", "the sum of its components")
    why = "; ".join(f"{part.name}: {part.why}" for part in parts)
    components = dict[str, float]()
    for part in parts:  # of one name, such as a penalty for each of two faults: their sum
        components[part.name] = components[part.name] + part.value if part.name in components else part.value
    return total, components, why


def unusable(
    env: type[Env], scenario: Scenario, trajectory: Trajectory, common: dict[str, str], problem: UnusableNumber
) -> Reward:
    """The reward of an attempt that has no score because of a number; its success, where that can be told."""
    try:
        success = is_success(env, scenario, trajectory)
    except UnusableNumber:
        success = False
    return Reward(**common, score=None, success=success, explanation=f"{REASON}{problem}")  # pyrefly: ignore[bad-argument-type]


def is_success(env: type[Env], scenario: Scenario, trajectory: Trajectory) -> bool:
    """Whether an episode that did not fail was a success. Of your own agents: what they returned, or a reward above 0.5.
    UnusableNumber where the task says neither True nor False."""
    if not env.is_agent:
        return truth(env.success(scenario, trajectory.messages(scenario)), "success")
    result = trajectory.result or Result()
    return (result.reward or 0.0) > 0.5 if result.success is None else result.success


def succeeds(env: type[Env], scenario: Scenario, messages: Sequence[Message]) -> bool:
    """`Env.success` of a transcript, and False where that gives neither True nor False."""
    try:
        return truth(env.success(scenario, messages), "success")
    except UnusableNumber:
        return False


def unusable_line(rewards: Sequence[tuple[float | None, str]]) -> str:
    """How many of these attempts, by (score, explanation), have no score because of a number, and why; empty where none."""
    texts = [text for score, text in rewards if score is None and REASON in text]
    if not texts:
        return ""
    seen = Counter(text.partition(REASON)[2].partition(" | ")[0] for text in texts)
    reasons = ", ".join(f"{count} × {reason}" for reason, count in seen.most_common(REASONS))
    more = f", and {len(seen) - REASONS} other reasons" if len(seen) > REASONS else ""
    count = (
        f"none of {len(rewards)}" if len(texts) == len(rewards) else f"{len(rewards) - len(texts)} of {len(rewards)}"
    )
    return f"{count} attempts could be scored: {reasons}{more}. `make check-task NAME=…` tests a reward without a model"


def has_rule(env: type[Env], rewards: Sequence[Reward], played: Sequence[Trajectory], score: Score) -> bool:
    """Whether these attempts have rewards, so that success is known; `rewards` are by the rule, in the attempts' order.

    One that is unusable, such as NaN, counts as a reward. UserError where only some have one. Where all attempts failed,
    nothing shows it: then the weights of the judges decide.
    """
    if not env.has_rule:
        return False
    ended = [reward for reward, trajectory in zip(rewards, played, strict=True) if trajectory.error is None]
    lacking = [
        reward.trajectory_id for reward in ended if reward.score is None and not reward.explanation.startswith(REASON)
    ]
    if not lacking:
        return bool(ended) or not env.is_agent or score.judges.rule > 0
    if len(lacking) < len(ended):
        raise UserError(
            f"{len(ended) - len(lacking)} attempts have a reward, and {len(lacking)} have none ({lacking[0]} is the first): "
            f"the two kinds cannot be compared; let the agent return a reward always, or never"
        )
    return False
