"""Weighted criteria: a judge that scores a trajectory from 0 to 1, in four parts, each of which says why.

    accuracy      the final result against what is expected; where nothing is, the task's own measure
    efficiency    turns against those that the task needs
    completeness  the share of the required actions that were done
    satisfaction  1, less what errors and a long response cost

Source: no paper. Parts and weights are the customer's, who says in params.yaml (score.criteria) what an episode is worth;
what a task's result and required actions are, its `outcome` says (environments/base.py). Left out is meaning: texts are
compared by their letters, so that a right answer in other words, or in a whole sentence, is less accurate than a bare one.

Runs in the stage score, with `score: {judges: {criteria: 1}}` in params.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from environments.base import Env, Outcome, Scenario
    from steps.core.params import Criteria
    from steps.core.records import Reward, Trajectory

LONGEST = 300  # characters that are compared: difflib's time grows with the cube of that (0.2 s here, 4 s at 800)
EXCESS = 0.5  # what as many turns again as are needed cost: three times as many turns are worth nothing
ERROR = 0.2  # what an error observation costs: five of them spoil an episode for whoever watches it
PATIENCE = 30.0  # seconds that whoever waits does not mind
IMPATIENCE = 1 / 60  # what each second beyond costs: a minute more spoils an episode
Part = tuple[float, str]  # a value from 0 to 1, and why


def criteria(env: type[Env], scenario: Scenario, trajectory: Trajectory, settings: Criteria) -> Reward:
    """The weighted sum of the four parts; a failed episode is unscored. `components` are weighted: they sum to the score.

    Response time is told from sampled tokens (settings.tokens_per_second): a clock would give other bytes on every run.
    """
    from environments.base import count_errors, count_turns
    from steps.core.records import Reward

    common = {"trajectory_id": trajectory.id, "scenario_id": scenario.id, "name": "criteria"}
    if trajectory.stop_reason == "error":
        return Reward(**common, score=None, success=False, explanation=f"the episode failed: {trajectory.error}")
    messages = trajectory.messages(scenario)
    outcome, success = env.outcome(scenario, messages), env.success(scenario, messages)
    seconds = sum(len(turn.completion_ids) for turn in trajectory.turns) / settings.tokens_per_second
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


def accuracy(outcome: Outcome, success: bool) -> Part:
    """The result against what is expected; where nothing is, a success or the task's own measure."""
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
    if optimum is None:
        return 1.0, f"turns: {turns}; how many are needed is not known"
    excess = (turns - optimum) / max(1, optimum)  # below 0 within the optimum, which `clamp` makes no gain
    return clamp(1 - EXCESS * excess), f"turns: {turns}; needed: {optimum}"


def completeness(required: Mapping[str, bool], stop_reason: str) -> Part:
    """Where nothing is required: whether the episode ended by itself."""
    if not required:
        return float(stop_reason == "done"), f"no action is required; the episode ended by: {stop_reason}"
    left = ", ".join(name for name, done in required.items() if not done)
    why = f"{sum(required.values())} of {len(required)} required actions were done"
    return sum(required.values()) / len(required), f"{why}, without: {left}" if left else why


def satisfaction(errors: int, seconds: float) -> Part:
    value = 1 - ERROR * errors - IMPATIENCE * max(0.0, seconds - PATIENCE)
    return clamp(value), f"errors: {errors}; response time: {seconds:.1f} s"


def alike(given: Any, expected: Any) -> float:
    """How like a result is to what is expected, from 0 to 1: no deeper than what is expected, whatever the policy nests.

    Texts by their letters, mappings by keys and values, lists item by item, all else by equality; a text may be a number.
    """
    if isinstance(given, str) and isinstance(expected, str):
        return alike_texts(given, expected)
    if isinstance(given, Mapping) and isinstance(expected, Mapping):
        shared = math.fsum(alike(given[key], expected[key]) for key in expected if key in given)
        return shared / len(given.keys() | expected.keys()) if given or expected else 1.0
    if isinstance(given, list | tuple) and isinstance(expected, list | tuple):
        shared = math.fsum(alike(one, other) for one, other in zip(given, expected, strict=False))
        return shared / max(len(given), len(expected)) if given or expected else 1.0
    if isinstance(given, bool) or isinstance(expected, bool):
        return float(given is expected)  # True == 1 in Python, and no result is both
    if isinstance(given, str) and isinstance(expected, int | float):
        return float(number(given) == expected)
    return float(given == expected)


def alike_texts(given: str, expected: str) -> float:
    """The share of letters in matching runs (difflib's ratio), small and capital alike, and any space as one.

    Of longer texts the first `LONGEST` characters are compared, and all beyond counts as different, unless they are equal.
    """
    ours, theirs = (" ".join(text.lower().split()) for text in (given, expected))
    if ours == theirs:
        return 1.0
    runs = SequenceMatcher(None, ours[:LONGEST], theirs[:LONGEST], autojunk=False).get_matching_blocks()
    return 2 * sum(run.size for run in runs) / (len(ours) + len(theirs))


def number(text: str) -> float | None:
    """The number that a text is, if it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def clamp(value: float) -> float:
    """Into 0 to 1; what is no number is 0."""
    return min(1.0, max(0.0, value))
