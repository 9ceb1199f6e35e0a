"""Dynamic sampling: groups whose attempts all earned the same are replaced by groups at other scenarios (DAPO: Yu et al.
2025, arXiv:2503.14476), within a limit of `rollout.resample` rounds.

Equal attempts say nothing of which is better. DAPO samples until a batch is full of groups that do; here each round costs at
most one more batch, and what stays flat after the last one stays in the batch. The rule's reward decides: other judges
score later, also where they could tell attempts apart that earned the same. What was replaced is listed with its success
and tokens, so that nothing is dropped in silence. It works through `play`, and so wherever a batch is played.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError

if TYPE_CHECKING:
    from environments.base import Scenario
    from steps.core.records import Reward, Trajectory

EQUAL = 1e-9  # a difference of rewards that is none
Rule = Callable[["Scenario", "Trajectory"], "Reward"]
Groups = dict[str, list["Trajectory"]]  # the attempts at each scenario, by its id


def resample(
    rule: Rule,
    pool: Sequence[Scenario],
    groups: Groups,
    rounds: int,
    seed: str,
    play: Callable[[list[Scenario]], list[Trajectory]],
) -> tuple[Groups, list[dict[str, Any]]]:
    """(the groups of the batch in its order, what was sampled and is not in it). Other scenarios are drawn of the same task,
    among those of `pool` that were not sampled yet; `play` makes the attempts at them. UserError where attempts ended and
    none of them has a reward by the rule."""
    by_id = {scenario.id: scenario for scenario in pool}
    left = random.Random(f"resample {seed}").sample(list(pool), len(pool))
    left = [scenario for scenario in left if scenario.id not in groups]
    batch, replaced = dict(groups), list[dict[str, Any]]()
    ended = [(by_id[name], attempt) for name in groups for attempt in groups[name] if attempt.stop_reason != "error"]
    if ended and all(rule(scenario, attempt).score is None for scenario, attempt in ended):
        raise UserError(
            "rollout.resample reads the rule's reward, and these attempts have none: take it out, or let the task or the "
            "agent give a reward"
        )
    for _ in range(rounds):
        pairs: list[tuple[str, Scenario]] = []
        for name in [name for name, attempts in batch.items() if is_flat(rule, by_id[name], attempts)]:
            other = next((scenario for scenario in left if scenario.task == by_id[name].task), None)
            if other is not None:
                left.remove(other)
                pairs.append((name, other))
        if not pairs:
            break
        fresh = grouped(play([other for _, other in pairs]))
        for name, other in pairs:
            attempts = fresh[other.id]
            if is_flat(rule, other, attempts):
                replaced.append(counted(rule, other, attempts))
            else:
                replaced.append(counted(rule, by_id[name], batch[name]))
                batch = dict((other.id, attempts) if key == name else (key, batch[key]) for key in batch)
    return batch, replaced


def grouped(trajectories: Sequence[Trajectory]) -> Groups:
    """The attempts at each scenario, in their order."""
    groups: Groups = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.scenario_id, []).append(trajectory)
    return groups


def is_flat(rule: Rule, scenario: Scenario, attempts: Sequence[Trajectory]) -> bool:
    """Whether no attempt is better than another by the rule's reward."""
    scores = [rule(scenario, attempt).score for attempt in attempts]
    scored = [score for score in scores if score is not None]
    return not scored or max(scored) - min(scored) <= EQUAL


def counted(rule: Rule, scenario: Scenario, attempts: Sequence[Trajectory]) -> dict[str, Any]:
    """What is recorded of a group that is not in the batch."""
    wins = sum(bool(rule(scenario, attempt).success) for attempt in attempts)
    tokens = sum(len(turn.completion_ids) for attempt in attempts for turn in attempt.turns)
    return {"id": scenario.id, "attempts": len(attempts), "successes": wins, "tokens": tokens}
