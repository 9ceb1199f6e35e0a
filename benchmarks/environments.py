"""How fast are the environments alone, without a model? One row for each task, on one core.

    python -m benchmarks.environments                      # every task, about 3 × 2 s each
    python -m benchmarks.environments --quick              # 3 × 0.3 s each

A step is `Env.step` of one turn of the random player. The turns are made beforehand and replayed on fresh environments, so
that the player's own time does not count; making an environment does. The scripted player's time is given beside it
where an episode of it takes longer than 10 ms. Rendering, parsing and sampling are no part of this: see benchmarks.rollout.

`ratio` is the task's steps per second over those of multiplication, the plainest task, which is measured first: it says what
an environment costs independently of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import environments
from benchmarks import _common
from benchmarks._common import ROOT
from environments import tasks
from environments.base import Env, Message, Scenario

EPISODES = 32  # that are replayed, over and over
SCENARIOS = 32  # made in one go
DEAR = 0.010  # seconds an episode, from which on the scripted player has a number of its own
PLAINEST = "multiplication"
SECONDS, QUICK = 2.0, 0.3  # spent on each number

Play = tuple[Scenario, list[Message]]  # a scenario and an episode's turns


def rate(work: Callable[[], int], seconds: float) -> float:
    """How much of it a second: `work` says how much it did, and is done until the time is over."""
    done, began = 0, time.perf_counter()
    while True:
        done += work()
        spent = time.perf_counter() - began
        if spent >= seconds:
            return done / spent


def random_plays(env: type[Env], data: Any, made: list[Scenario]) -> list[Play]:
    """What the random player does, an episode a scenario."""
    plays = []
    for scenario in made:
        messages = env(scenario, data).play("random")[len(scenario.messages) :]
        plays.append((scenario, [message for message in messages if message["role"] == "assistant"]))
    return plays


def replay(env: type[Env], data: Any, plays: list[Play]) -> int:
    """Play the same turns on fresh environments: the number of steps."""
    for scenario, turns in plays:
        episode = env(scenario, data)
        for turn in turns:
            episode.step(turn)
    return sum(len(turns) for _, turns in plays)


def measure(name: str, seconds: float) -> dict[str, Any]:
    """One task's row, without its ratio."""
    env = environments.load(name)
    data = env.load(ROOT / "tasks_data" / name.rpartition(".")[2])
    made = env.scenarios(data, "train", EPISODES, 1)
    plays = random_plays(env, data, made)
    replay(env, data, plays[:1])  # compiles the tools' schemas, opens what is opened once
    each = [[play] for play in plays]  # an episode at a time, so that the clock is read often enough
    at = iter(range(10**9))
    steps = rate(lambda: replay(env, data, each[next(at) % len(each)]), seconds)
    a_episode = sum(len(turns) for _, turns in plays) / len(plays)
    scenarios = rate(lambda: len(env.scenarios(data, "train", SCENARIOS, next(at))), seconds)
    row = {"name": name, "steps_per_second": round(steps), "episodes_per_second": round(steps / a_episode, 1)}
    row["scenarios_per_second"] = round(scenarios)
    if not env.has_player("scripted"):
        return row
    scripted = 1 / rate(lambda: bool(env(made[next(at) % len(made)], data).play("scripted")), seconds)
    return row | ({"scripted_seconds_per_episode": round(scripted, 4)} if scripted > DEAR else {})


def main() -> None:
    parser = _common.parser("environments", __doc__, f"{QUICK} s for each number in place of {SECONDS:g} s")
    parser.add_argument(
        "--tasks", nargs="+", metavar="NAME", help="these only (default: all); a dotted module works too"
    )
    parser.add_argument("--seconds", type=float, help=f"spent on each number (default: {SECONDS:g}; quick: {QUICK})")
    options = parser.parse_args()
    usual = QUICK if options.quick else SECONDS
    seconds = options.seconds or usual
    names = options.tasks or tasks(agents=False)
    rows = _common.begin("environments", options, len(names) / len(tasks(agents=False)) * seconds / usual)
    plainest = measure(PLAINEST, seconds)
    for name in names:
        row = plainest if name == PLAINEST else measure(name, seconds)
        ratio = row["steps_per_second"] / plainest["steps_per_second"]
        rows.add({"name": name, "ratio": float(f"{ratio:.3g}")} | row)


if __name__ == "__main__":
    _common.command(main)
