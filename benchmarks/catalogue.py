"""Is a policy that is known to be good paid more than one that is known to be bad? In environments of six packages.

    python -m benchmarks.catalogue                          # all of `ENTRIES`; what is lacking goes to a scratch folder
    python -m benchmarks.catalogue --quick                  # one of each package that needs no installation
    python -m benchmarks.catalogue --tasks gymnasium:Taxi-v4
    python -m benchmarks.catalogue --survey textarena       # every name of a package: played, refused or broken?

The good policy is the task's gold player: a rule that people know (CartPole, MountainCar, Blackjack), the environment's own
table (Taxi, FrozenLake) or bot (BabyAI), its answer (reasoning_gym), a solver of its state (textarena), a search, or a
look one move ahead (chess, go). The bad ones are random legal play, or one action over and over, and doing nothing.
`ratio` is by how much the good policy's mean return, or its share of successes, is above the better of the bad ones'
divided by `MARGIN`. From 1 on they are in order; it is below 0 where one of the two is lower.
verifiers' and OpenEnv's environments are those of tests/support/apart.py, on the real packages.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import environments
from benchmarks import _catalogue_survey, _common
from benchmarks._common import ROOT
from environments.base import Env, Message, Scenario, use
from environments.bridges.apart import PINS

SCENARIOS, QUICK = 6, 3
MARGIN = 0.1
SEED = 1
CARDS = ("rlcard==1.2.0", "termcolor==3.3.0")  # of pettingzoo's card games; the lock has neither


class Entry(NamedTuple):
    """An environment with its bad policy: a player, or an action that is taken over and over."""

    task: str
    bad: str = "random"
    scenarios: int = SCENARIOS

    @property
    def package(self) -> str:
        return self.task.partition(":")[0]


def entries(package: str, *names: str, bad: str = "random") -> list[Entry]:
    return [Entry(f"{package}:{name}", bad) for name in names]


ENTRIES = [
    Entry("gymnasium:CartPole-v1", "act 0"),
    Entry("gymnasium:MountainCar-v0?success=-190&turns=200"),
    Entry("gymnasium:Acrobot-v1?success=-200&turns=220"),
    Entry("gymnasium:Blackjack-v1", "act hit", 60),
    *entries("gymnasium", "Taxi-v4", "FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1"),
    *entries("gymnasium", "MiniGrid-Empty-Random-6x6-v0", "MiniGrid-GoToDoor-5x5-v0", "MiniGrid-DoorKey-6x6-v0"),
    *entries("gymnasium", "MiniGrid-LavaCrossingS9N1-v0", "MiniGrid-SimpleCrossingS9N1-v0"),
    *entries("gymnasium", "MiniGrid-Dynamic-Obstacles-Random-5x5-v0", "MiniGrid-Fetch-5x5-N2-v0"),
    *entries("gymnasium", "BabyAI-GoToRedBall-v0", "BabyAI-GoToObj-v0", "BabyAI-OpenDoor-v0", "BabyAI-PickupLoc-v0"),
    *entries("gymnasium", "BabyAI-PutNextLocal-v0", "BabyAI-UnlockLocal-v0"),
    *entries("pettingzoo", "tictactoe_v3", "connect_four_v3", "chess_v6", "go_v5?board_size=5"),
    *entries("pettingzoo", "leduc_holdem_v4", "texas_holdem_v4", "texas_holdem_no_limit_v6", bad="act fold"),
    *entries("reasoning_gym", "chain_sum", "gcd", "leg_counting", "simple_equations", "spell_backward", "modulo_grid"),
    *entries(
        "reasoning_gym", "graph_color", "prime_factorization", "propositional_logic", "mini_sudoku", "word_ladder"
    ),
    *entries("reasoning_gym", "number_sorting", "rectangle_count"),
    *entries(
        "textarena", "GuessTheNumber-v0", "Mastermind-v0", "TowerOfHanoi-v0", "TowerOfHanoi-v0-hard", "LightsOut-v0"
    ),
    *entries("textarena", "2048-v0-ultra-easy", "Blackjack-v0", "Countdown-v0", "Crosswords-v0", "FrozenLake-v0"),
    *entries(
        "textarena", "LogicPuzzle-v0", "Minesweeper-v0-small", "PegJump-v0", "Secretary-v0", "Sudoku-v0-very-easy"
    ),
    *entries("textarena", "ThreeCardMonte-v0"),
    *entries("verifiers", "texts_env", "sums_env", "tools_env", "guesses_env", bad="bad"),
    *entries("openenv", "corridor", "note", bad="bad"),
]
QUICKEST = ("gymnasium:FrozenLake-v1", "pettingzoo:tictactoe_v3", "reasoning_gym:gcd", "textarena:TowerOfHanoi-v0")


def play(env: type[Env], scenario: Scenario, policy: str) -> list[Message]:
    """An episode by a player, or by an action that is taken over and over ("act hit")."""
    if not policy.startswith("act "):
        return env(scenario, None).play(policy, SEED)
    episode, messages = env(scenario, None), list(scenario.messages)
    while not episode.done and len(messages) < 2 * env.max_turns:
        messages.append(use("act", action=policy.removeprefix("act ")))
        messages += episode.step(messages[-1])
    return messages


def returns(env: type[Env], scenarios: list[Scenario], policy: str) -> tuple[float, float]:
    """Mean return and share of successes."""
    plays = [(scenario, play(env, scenario, policy)) for scenario in scenarios]
    sums = [sum(part.value for part in env.components(scenario, messages)) for scenario, messages in plays]
    wins = [env.success(scenario, messages) for scenario, messages in plays]
    return sum(sums) / len(sums), sum(wins) / len(wins)


def measure(entry: Entry, count: int | None = None) -> dict[str, Any]:
    """The row of an environment. What a package prints is not a row: it goes to the standard error."""
    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        env = environments.load(entry.task)
        scenarios = env.scenarios(None, "train", count or entry.scenarios, SEED)
        good, wins = returns(env, scenarios, "gold")
        bad, bad_wins = returns(env, scenarios, entry.bad)
        idle, _ = returns(env, scenarios, "bad")
    gains = (good - max(bad, idle), wins - bad_wins)
    ratio = (max(gains) if min(gains) >= 0 < gains[0] else min(gains)) / MARGIN
    return {
        "name": entry.task,
        "ratio": round(ratio, 2),
        "good": round(good, 3),
        "bad": round(bad, 3),
        "idle": round(idle, 3),
        "good_wins": round(wins, 2),
        "bad_wins": round(bad_wins, 2),
        "policy": entry.bad,
        "ordered": ratio >= 1,
        "scenarios": len(scenarios),
        "seconds": round(time.perf_counter() - began, 1),
    }


def install(packages: set[str], folder: Path) -> None:
    """What the entries of these packages need: interpreters, environments and card games, in a folder, and the variables
    that name them. What a variable names already stays."""
    uv = str(Path(sys.executable).with_name("uv"))
    for package in sorted(packages & set(PINS)):
        variable, place = f"{package.upper()}_PYTHON", folder / package
        if os.environ.get(variable):
            continue
        if not (place / "bin/python").is_file():
            subprocess.run([uv, "--quiet", "venv", str(place)], check=True)
        subprocess.run(
            [uv, "--quiet", "pip", "install", "--python", str(place / "bin/python"), PINS[package]], check=True
        )
        os.environ[variable] = str(place / "bin/python")
    if packages & set(PINS):
        from tests.support.apart import write_environments

        write_environments(folder / "environments")
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(folder / "environments"), os.environ.get("PYTHONPATH")))
        )
    if "pettingzoo" in packages:
        target = ["--python", sys.executable, "--no-deps", "--target", str(folder / "cards")]
        subprocess.run([uv, "--quiet", "pip", "install", *target, *CARDS], check=True)
        sys.path.append(str(folder / "cards"))


def main() -> None:
    quick = f"{len(QUICKEST)} environments, {QUICK} scenarios each"
    parser = _common.parser("catalogue", __doc__, quick)
    parser.add_argument("--tasks", nargs="+", metavar="NAME", help="these only; others than those of the table, too")
    parser.add_argument(
        "--folder", type=Path, help="where packages are installed, and stay (default: a scratch folder)"
    )
    surveyed = ", ".join(_catalogue_survey.PACKAGES)
    parser.add_argument("--survey", nargs="+", metavar="PACKAGE", help=f"every name of these packages, of {surveyed}")
    options = parser.parse_args()
    if options.survey:
        rows = _common.begin("catalogue", options, None)
        for package in options.survey:
            for row in _catalogue_survey.rows(package):
                rows.add(row)
        return
    named = {entry.task: entry for entry in ENTRIES}
    chosen = [named.get(task, Entry(task)) for task in options.tasks or (QUICKEST if options.quick else named)]
    rows = _common.begin("catalogue", options, len(chosen) / len(QUICKEST if options.quick else ENTRIES))
    with tempfile.TemporaryDirectory(prefix="catalogue-") as scratch:
        if not options.quick:
            folder = options.folder or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            install({entry.package for entry in chosen}, folder.absolute())
        for entry in chosen:
            rows.add(measure(entry, QUICK if options.quick else None))


if __name__ == "__main__":
    os.chdir(ROOT)
    _common.command(main)
