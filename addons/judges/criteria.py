"""Weighted criteria: a judge that scores a trajectory from 0 to 1 in four parts, each with its reason.

    accuracy      the final result compared with the expected one or, where there is none, the task's own measure
    efficiency    the turns compared with those that the task needs
    completeness  the share of the required actions that were done
    satisfaction  1, minus what errors and a long response cost

The parts come from no paper: they and their weights (score.criteria in params.yaml) are the customer's. An environment's
`outcome` (environments/base.py) says what the result and the required actions are. Meaning is left out: texts are compared
by their letters, so a right answer in other words, or within a sentence, is less accurate than the bare answer.

Runs in the stage score, with `score: {judges: {criteria: 1}}` in params.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from addons.judges.section import Criteria
    from environments.base import Env, Outcome, Scenario
    from steps.core.records import Reward, Trajectory

LONGEST = 300  # characters that are compared; difflib's time grows with their cube (0.2 s for 300, 4 s for 800)
EXCESS = 0.5  # cost of twice the turns needed; with three times as many the part is 0
ERROR = 0.2  # cost of an error observation; with five of them the part is 0
PATIENCE = 30.0  # seconds of response time that cost nothing
TOKENS_PER_SECOND = 50  # at which sampled tokens are counted as response time
IMPATIENCE = 1 / 60  # cost of each further second; after one more minute the part is 0
Part = tuple[float, str]  # a value from 0 to 1, and its reason


def criteria(env: type[Env], scenario: Scenario, trajectory: Trajectory, settings: Criteria) -> Reward:
    """The weighted sum of the four parts; None for a failed episode, and for an outcome with unusable numbers. `components`
    are weighted, so they sum to the score.

    Response time is computed from sampled tokens (TOKENS_PER_SECOND): a clock would give other bytes on each run.
    """
    from environments.base import count_errors, count_turns
    from environments.kit.values import UnusableNumber
    from steps.core.records import Reward
    from steps.judging.rule import is_success, unusable

    common = {"trajectory_id": trajectory.id, "scenario_id": scenario.id, "name": "criteria"}
    if trajectory.stop_reason == "error":
        return Reward(**common, score=None, success=False, explanation=f"the episode failed: {trajectory.error}")
    messages = trajectory.messages(scenario)
    try:
        outcome, success = usable(env.outcome(scenario, messages)), is_success(env, scenario, trajectory)
    except UnusableNumber as problem:
        return unusable(env, scenario, trajectory, common, problem)
    if trajectory.result is not None and trajectory.result.output:
        outcome = outcome._replace(given=trajectory.result.output)
    seconds = sum(len(turn.completion_ids) for turn in trajectory.turns) / TOKENS_PER_SECOND
    parts = {
        "accuracy": accuracy(outcome, success),
        "efficiency": efficiency(count_turns(messages), outcome.optimal_turns),
        "completeness": completeness(outcome.required, trajectory.stop_reason),
        "satisfaction": satisfaction(count_errors(messages), seconds),
    }
    weights = {name: float(getattr(settings, name)) for name in parts}
    components = {name: weights[name] * value for name, (value, _) in parts.items()}
    return Reward(
        **common,
        score=math.fsum(components.values()),
        success=success,
        components=components,
        explanation="; ".join(f"{name} {value:.3g} × {weights[name]:g}: {why}" for name, (value, why) in parts.items()),
    )


def usable(outcome: Outcome) -> Outcome:
    """The outcome with numbers that are finite, and actions that were taken or not. UnusableNumber where it has others."""
    from environments.kit.values import number, truth

    required = {name: truth(value, f"outcome: required {name}") for name, value in outcome.required.items()}
    if outcome.optimal_turns is not None:
        number(outcome.optimal_turns, "outcome: optimal_turns")
    if outcome.accuracy is not None:
        outcome = outcome._replace(accuracy=number(outcome.accuracy, "outcome: accuracy"))
    return outcome._replace(required=required)


def accuracy(outcome: Outcome, success: bool) -> Part:
    """How near the result is to the expected one; where none is expected, success or the task's own measure."""
    if outcome.expected is None:
        if success:
            return 1.0, "a success"
        if outcome.accuracy is None:
            return 0.0, "no success"
        return clamp(outcome.accuracy), "no success; how near to it, by the task's own measure"
    if outcome.given is None:
        return 0.0, "there is no result"
    return alike(outcome.given, outcome.expected), "how like the result is to what is expected"


def efficiency(turns: int, optimum: int | None) -> Part:
    """Turns compared with the least that the task needs; 1 where that number is unknown."""
    if optimum is None:
        return 1.0, f"turns: {turns}; how many are needed is not known"
    excess = (turns - optimum) / max(1, optimum)  # negative below the optimum; `clamp` keeps that from being a gain
    return clamp(1 - EXCESS * excess), f"turns: {turns}; needed: {optimum}"


def completeness(required: Mapping[str, bool], stop_reason: str) -> Part:
    """The share of the required actions that were done; where none is required, whether the episode ended by itself."""
    if not required:
        return float(stop_reason == "done"), f"no action is required; the episode ended by: {stop_reason}"
    missing = ", ".join(name for name, is_done in required.items() if not is_done)
    why = f"{sum(required.values())} of {len(required)} required actions were done"
    return sum(required.values()) / len(required), f"{why}, without: {missing}" if missing else why


def satisfaction(errors: int, seconds: float) -> Part:
    """1, minus the costs of error observations and of response time in seconds."""
    value = 1 - ERROR * errors - IMPATIENCE * max(0.0, seconds - PATIENCE)
    return clamp(value), f"errors: {errors}; response time: {seconds:.1f} s"


def alike(result: Any, expected: Any) -> float:
    """Similarity of a result to the expected one, from 0 to 1; it goes no deeper into the result than `expected` is nested.

    Texts are compared by their letters, mappings by keys and values, lists item by item, and all else for equality. A text
    may stand for a number.
    """
    if isinstance(result, str) and isinstance(expected, str):
        return alike_texts(result, expected)
    if isinstance(result, Mapping) and isinstance(expected, Mapping):
        shared = math.fsum(alike(result[key], expected[key]) for key in expected if key in result)
        return shared / len(result.keys() | expected.keys()) if result or expected else 1.0
    if isinstance(result, list | tuple) and isinstance(expected, list | tuple):
        shared = math.fsum(alike(item, other) for item, other in zip(result, expected, strict=False))
        return shared / max(len(result), len(expected)) if result or expected else 1.0
    if isinstance(result, bool) or isinstance(expected, bool):
        return float(result is expected)  # in Python True == 1, but they are different results
    if isinstance(result, str) and isinstance(expected, int | float):
        return float(number(result) == expected)
    return float(result == expected)


def alike_texts(result: str, expected: str) -> float:
    """The share of letters in matching runs (difflib's ratio), without regard to case and to how much space there is.

    Only the first `LONGEST` characters are compared; unless the texts are equal, all others count as different.
    """
    first, second = (" ".join(text.lower().split()) for text in (result, expected))
    if first == second:
        return 1.0
    runs = SequenceMatcher(None, first[:LONGEST], second[:LONGEST], autojunk=False).get_matching_blocks()
    return 2 * sum(run.size for run in runs) / (len(first) + len(second))


def number(text: str) -> float | None:
    """The number that a text stands for; None where it is no number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def clamp(value: float) -> float:
    """The value within 0 to 1."""
    return min(1.0, max(0.0, value))
