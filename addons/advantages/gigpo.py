"""Credit for single turns: GiGPO (Feng et al. 2025, arXiv:2505.10978), in place of one advantage for a whole episode.

Turns of one scenario's attempts that start from the same state (the paper's anchor state) are a group, as attempts at one
scenario are. A turn's return is the episode's score R, which is only known at the end, discounted for each turn between it
and the last: discount^(T-t) · R. Its own advantage is its return relative to the returns of its group, and 0 where no other
turn starts from that state. It is added to the advantage of the episode (steps/training/batches.py).

Environments name the state (`Env.anchor_state`). Where they do not, and for agents of one's own, it is the turn's whole
prompt, token by token. Both are derived from what is stored, so that nothing has to be sampled again.

Left out: rewards within an episode, which environments here do not give, and the paper's grouping of states that are only
similar.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from steps.core.errors import UserError
from steps.core.progress import say
from steps.training.batches import ROUNDING, STD_FLOOR

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import Update, UpdateParams
    from steps.core.records import Trajectory

DISCOUNT = 0.95  # of a score for each turn between a turn and the last one


class Credit(NamedTuple):
    """The advantages of a batch of B trajectories, each with turns of its own."""

    by_turn: list[list[float]]  # [B][turns]
    largest: list[float | None]  # [B] the turn's advantage that is farthest from 0; None where no turn has a signal
    flat: int  # groups of attempts without a signal
    metrics: dict[str, float]


def states_of(
    env: type[Env], scenarios: Mapping[str, Scenario], trajectory: Trajectory, unusable: list[str] | None = None
) -> list[Hashable]:
    """The state that each turn starts from; states of different scenarios are never the same. What a task names that cannot
    be compared with other states (NaN, a list) is noted in `unusable`, and the turn's whole prompt stands for it."""
    named: list[Hashable] = []
    scenario = scenarios[trajectory.scenario_id]
    messages = list(scenario.messages)
    for turn in trajectory.turns:
        state = None if trajectory.is_from_gateway else env.anchor_state(scenario, messages)
        if state is not None and not (isinstance(state, Hashable) and is_reflexive(state)):
            if unusable is not None:
                unusable.append(f"{state!r:.60}")
            state = None
        named.append((scenario.id, turn.prompt_ids if state is None else state))
        messages += [turn.message, *turn.observations]
    return named


def is_reflexive(state: Hashable) -> bool:
    """Whether a state is the same as itself, as NaN is not, nor an array or a tuple with a list."""
    try:
        return hash(state) == hash(state) and bool(state == state)
    except (TypeError, ValueError):
        return False


def credit(
    gains: Sequence[float | None],
    scores: Sequence[float | None],
    groups: Sequence[str],
    states: Sequence[Sequence[Hashable]],
    settings: Update,
    discount: float = DISCOUNT,
) -> Credit:
    """The advantages of turns, from those of their episodes (`gains`), the scores that are compared, the scenario that each
    was an attempt at, and the state before each turn; all of B trajectories. `scale_rewards` divides by the standard
    deviation of the returns of a state's turns, of all turns, or not at all. An unscored trajectory is compared with
    nothing.
    """
    from statistics import fmean, stdev

    returns = [
        [] if score is None else [score * discount**left for left in reversed(range(len(states_T)))]
        for score, states_T in zip(scores, states, strict=True)
    ]
    alike: dict[Hashable, list[float]] = defaultdict(list)
    for states_T, returns_T in zip(states, returns, strict=True):
        for state, value in zip(states_T, returns_T, strict=False):  # an unscored trajectory has no returns
            alike[state].append(value)
    everything = [value for values in alike.values() for value in values]
    batch_std = stdev(everything) if len(everything) > 1 else 0.0

    def own(state: Hashable, value: float) -> float:
        values = alike[state]
        if max(values) - min(values) < ROUNDING:  # one alone, too
            return 0.0
        std = {"group": stdev(values), "batch": batch_std, "none": None}[settings.scale_rewards or "group"]
        return (value - fmean(values)) / (1.0 if std is None else std + STD_FLOOR)

    by_turn, largest = [], []
    for gain, states_T, returns_T in zip(gains, states, returns, strict=True):
        steps = [own(state, value) for state, value in zip(states_T, returns_T, strict=False)]
        turns = [(gain or 0.0) + step for step in steps] or [0.0] * len(states_T)
        has_signal = gain is not None or any(abs(turn) > ROUNDING for turn in turns)
        by_turn.append(turns)
        largest.append(max(turns, key=abs, default=0.0) if has_signal else None)
    with_signal = {group for group, gain in zip(groups, largest, strict=True) if gain is not None}
    scored = [states_T for states_T, returns_T in zip(states, returns, strict=True) if returns_T]
    metrics = {
        "gigpo/turns_in_groups": share(alike, [state for states_T in scored for state in states_T]),
        "gigpo/later_turns_in_groups": share(alike, [state for states_T in scored for state in states_T[1:]]),
    }
    return Credit(by_turn, largest, len(set(groups) - with_signal), metrics)


def share(alike: Mapping[Hashable, Sequence[float]], states: Sequence[Hashable]) -> float:
    """Of turns, by the state that each starts from: the share in groups of two or more; 0 of no turns."""
    return sum(len(alike[state]) > 1 for state in states) / max(1, len(states))


def credit_turns(
    batch: list[Trajectory],
    scores: list[float | None],
    gains: list[float | None],
    scenarios: Path | None,
    params: UpdateParams,
) -> tuple[list[float | None], list[list[float]], int, dict[str, float]]:
    """GiGPO's advantages: (the largest of each trajectory, those of its turns, groups without a signal, metrics). UserError
    where the scenarios, from which states are told, are missing."""
    import environments
    from environments.base import Scenario
    from steps.core.records import read_records

    if scenarios is None:
        raise UserError(
            "update.advantages: gigpo tells states by the scenarios: name them with --scenarios run/scenarios"
        )
    env = environments.load(params.task)
    by_id = {scenario.id: scenario for scenario in read_records(Scenario, scenarios / "train.parquet")}
    if unknown := [trajectory for trajectory in batch if trajectory.scenario_id not in by_id]:
        raise UserError(
            f"{scenarios} does not have the scenario {unknown[0].scenario_id} of trajectory {unknown[0].id}: sample again "
            "(`.venv/bin/dvc repro`)"
        )
    unusable: list[str] = []
    states = [states_of(env, by_id, trajectory, unusable) for trajectory in batch]
    if unusable:
        say(
            f"WARNING: anchor_state gave {len(unusable)} states that cannot be compared with others ({unusable[0]} is the "
            "first): the whole prompt stands for each; let it return a text, or None"
        )
    groups = [trajectory.scenario_id for trajectory in batch]
    made = credit(gains, scores, groups, states, params.update)
    return made.largest, made.by_turn, made.flat, made.metrics
