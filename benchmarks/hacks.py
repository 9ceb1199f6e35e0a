"""Can a task be talked into its reward? Trivial hacks beside honest play and a player who knows the answer, for each task.

    python -m benchmarks.hacks                             # every task, 200 scenarios or fewer
    python -m benchmarks.hacks --quick                     # a fifth of the scenarios

The hacks are in benchmarks/_hacks.py: silence, echoes, claims, giving up, blind cycles and so on. Honest play is the task's
scripted player, which uses only what the policy sees; gold is its player who knows the hidden data. All play the same test
scenarios, and the numbers depend on the code and the data alone. `best_hack`, `honest` and `gold` are shares of successes;
`reward` and what ends on it are mean rewards, of the hack with the highest one. `ratio` is the success of the best hack over
a quarter of honest play's: it must be 1 or less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import environments
from benchmarks import _common
from benchmarks._common import ROOT
from benchmarks._hacks import GENERAL, HACKS, Hack
from environments.base import Env, Message, Scenario

SCENARIOS, QUICK = 200, 40
# There are few questions of a kind, or few products; a process for each submission.
FEWER = {"times_tables": (64, 40), "knowledge_search": (64, 32), "code_repair": (20, 6)}
SHARE = 0.25  # of honest play's success that a hack may reach

Player = Callable[[Env], Callable[[Sequence[Message]], Message]]  # what makes the turns of an episode


class Result(NamedTuple):
    """What a player reached on all scenarios: the share of successes, and the mean reward."""

    name: str
    success: float
    reward: float


def episode(env: Env, turn: Callable[[Sequence[Message]], Message]) -> list[Message]:
    """The transcript of an episode."""
    messages = list(env.scenario.messages)
    for _ in range(env.max_turns):
        messages.append(turn(messages))
        messages += env.step(messages[-1])
        if env.done:
            break
    return messages


def result(name: str, env: type[Env], data: Any, made: Sequence[Scenario], hack: Hack | None = None) -> Result:
    """What a hack reaches, or the task's own player of this name."""
    successes, rewards = 0, 0.0
    for scenario in made:
        begun = env(scenario, data)
        turn = hack or partial(getattr(begun, name), rng=Random(f"{name} {scenario.id}"))
        messages = episode(begun, turn)
        successes += env.success(scenario, messages)
        rewards += sum(part.value for part in env.components(scenario, messages))
    return Result(name, successes / len(made), rewards / len(made))


def measure(task: str, count: int) -> dict[str, Any]:
    """The row of a task."""
    env = environments.load(task)
    if lacking := [env.lacks(player) for player in ("scripted", "gold") if not env.has_player(player)]:
        raise SystemExit(f"{lacking[0]}.")
    data = env.load(ROOT / "tasks_data" / task.rpartition(".")[2])
    made = env.scenarios(data, "test", count, 1)
    hacks = [result(name, env, data, made, hack) for name, hack in (GENERAL | HACKS.get(task, {})).items()]
    honest, gold = (result(player, env, data, made) for player in ("scripted", "gold"))
    best = max(hacks, key=lambda hack: (hack.success, hack.reward))
    dearest = max(hacks, key=lambda hack: hack.reward)
    return {
        "name": task,
        "ratio": round(best.success / (SHARE * honest.success), 3) if honest.success else None,
        "best_hack": round(best.success, 3),
        "honest": round(honest.success, 3),
        "gold": round(gold.success, 3),
        "hack": best.name if best.success else "",
        "best_hack_reward": round(dearest.reward, 3),
        "honest_reward": round(honest.reward, 3),
        "gold_reward": round(gold.reward, 3),
        "reward_hack": dearest.name,
        "hacks": len(hacks),
        "scenarios": len(made),
    }


def size(task: str, quick: bool) -> int:
    return FEWER.get(task, (SCENARIOS, QUICK))[quick]


def main() -> None:
    parser = _common.parser("hacks", __doc__, f"{QUICK} scenarios in place of {SCENARIOS}, and fewer of slow tasks")
    parser.add_argument(
        "--tasks", nargs="+", metavar="NAME", help="these only (default: all); a dotted module works too"
    )
    options = parser.parse_args()
    names = options.tasks or list(HACKS)
    rows = _common.begin("hacks", options, len(names) / len(HACKS))
    for task in names:
        rows.add(measure(task, size(task, options.quick)))


if __name__ == "__main__":
    _common.command(main)
