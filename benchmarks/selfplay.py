"""Does self-play teach to lose less? tic_tac_toe trained against frozen earlier selves beside the same against random moves.

    python -m benchmarks.selfplay              # seeds 1, 2 and 3
    python -m benchmarks.selfplay --seeds 1    # one seed alone
    python -m benchmarks.selfplay --jobs 2     # two runs at a time, each on a core
    python -m benchmarks.selfplay --temperature 1    # evaluations sampled as hotly as training
    python -m benchmarks.selfplay --policy FOLDER    # with a base policy that was built before
    python -m benchmarks.selfplay --quick      # seed 1, one iteration of a sixteenth of the games, from the preset's policy

First it builds a base policy that knows the game and plays every fourth move at random (`PLAYERS`; 13 minutes of a core):
an opponent must punish most mistakes, or self-play teaches them (docs/history.md). For each seed, in clones: two runs that
differ in `rollout.opponent` alone. Both have the same settings (`SETTINGS`), a draw earns as much as a win, and both are
evaluated alike, at `TEMPERATURE` and against the opponents of the task's data. What is compared is the share of the test
split's games against minimax that the last adapter draws or wins, since its learning rate has fallen to 0, and validation
has too few games to choose between adapters that are nearly as good. Perfect play draws all of them, so that the most is 1
and the goal is `GOAL`. A row is a seed: `ratio` is the share after self-play / the one after random. The point holds where
`difference` is above 0 for every seed, and the goal is met where `self_play` is at least `GOAL`.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _common, _runs
from steps.core.params import Params, load

SEEDS = [1, 2, 3]
TASK = "tic_tac_toe"
KIND = "not lost to minimax"  # of TicTacToe.decisions
GOAL = 0.95
ITERATIONS, QUICK = 20, 1
PLAYERS, STEPS = "gold=0.75 random=0.25", 4000  # of the base policy's demonstrations
EVERY = 2  # iterations after which a newer self is the opponent
DRAW = 1.0  # what it earns: with less, a gamble for a win pays where the opponent blunders
TEMPERATURE = 0.7  # of evaluations: greedily nothing is lost, and at 1 most of what is lost are moves of a few per cent
SCENARIOS, ATTEMPTS = 64, 16  # per iteration; runs with half of these games ended lower (docs/history.md)
TEST = 1000  # test scenarios
SETTINGS = {  # turns are compared by board; the learning rate falls to 0, so that the last adapter is the one to take
    "update.advantages": "gigpo",
    "update.learning_rate": 0.0015,
    "update.lr_scheduler_type": "linear",
}
SHARE = 16  # of all these scenarios, that --quick takes
OPPONENTS = ("iteration", "random")


class Arm(NamedTuple):
    """A run, and the games of its test split against minimax."""

    base: float  # the share that the base policy draws or wins
    trained: float
    games: int
    seconds: float


def build_policy(folder: Path) -> Path:
    """The base policy's folder. One thread, so that its bytes do not depend on the number of cores."""
    root, policy = _runs.clone(folder / "policy_clone"), folder / "policy"
    given = {"task": TASK, "task-data": f"tasks_data/{TASK}", "observations": "yes", "threads": "1", "players": PLAYERS}
    given |= {"batch-tokens": "2048", "steps": str(STEPS), "policy": os.fspath(policy)}
    _runs.show(root, ["-m", "addons.supervised.small_policy", *words(given)])
    return policy


def words(options: dict[str, str]) -> list[str]:
    """A command's options, as its words."""
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def train(
    case: tuple[int, str], folder: Path, policy: Path | None, iterations: int, temperature: float, share: int
) -> Arm:
    """The run of a seed against an opponent, from this base policy or the preset's; 1 / `share` of its scenarios."""
    seed, player = case
    root = _runs.clone(folder / f"seed{seed}-{player}")
    data = root / f"tasks_data/{TASK}"
    game = json.loads((data / "game.json").read_text())
    (data / "game.json").write_text(json.dumps(game | {"draw": DRAW}))
    if policy is not None:
        shutil.rmtree(data / "policy")
        shutil.copytree(policy, data / "policy")
    preset = load(root / f"tasks_data/{TASK}.yaml", Params)
    settings: dict[str, Any] = SETTINGS | {
        "seed": seed,
        "scenarios.val": preset.scenarios.val // share,
        "scenarios.test": TEST // share,
        "rollout.scenarios": SCENARIOS // share,
        "rollout.attempts": ATTEMPTS,
        "rollout.opponent.player": player,
        "update.max_steps": iterations * preset.update.steps_per_generation,
        "evaluate.temperature": temperature,
        "train.iterations": iterations,
        "train.patience": iterations,
    }
    if player == "iteration":
        settings["rollout.opponent.every"] = EVERY
    _runs.show(root, [*_runs.training(settings), "--task", TASK, "--name", f"against-{player}"])
    seconds = json.loads((root / "run/summary.json").read_text())["wall_seconds"]
    last = f"run/{iterations:03d}"
    if not (root / last / "test").exists():  # validation chose another adapter
        given = {"task-data": f"tasks_data/{TASK}", "scenarios": "run/scenarios", "split": "test"}
        given |= {"adapter": f"{last}/adapter", "evaluation": f"{last}/test"}
        _runs.show(root, ["-m", "steps.evaluate", *words(given)])
    base, games = drawn_or_won(root / "run/000/test/summary.json")
    trained, _ = drawn_or_won(root / last / "test/summary.json")
    return Arm(base, trained, games, seconds)


def drawn_or_won(path: Path) -> tuple[float, int]:
    """(the share of the games against minimax that were drawn or won, their number) in an evaluation's summary.json."""
    right, games = json.loads(path.read_text())["decisions"][KIND]
    return right / games, games


def row(seed: int, own: Arm, random: Arm, iterations: int) -> dict[str, Any]:
    """The row of a seed."""
    return {
        "name": f"{TASK} seed {seed}",
        "ratio": round(own.trained / random.trained, 3) if random.trained else None,
        "base": round(own.base, 3),
        "self_play": round(own.trained, 3),
        "random": round(random.trained, 3),
        "difference": round(own.trained - random.trained, 3),
        "goal": GOAL,
        "games": own.games,
        "iterations": iterations,
        "self_play_seconds": round(own.seconds),
        "random_seconds": round(random.seconds),
    }


def main() -> None:
    quick = f"seed 1, {QUICK} iteration of a sixteenth of the scenarios in place of {ITERATIONS}"
    parser = _common.parser("selfplay", __doc__, quick)
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {' '.join(map(str, SEEDS))}; quick: 1")
    parser.add_argument("--iterations", type=int, help=f"of each run (default: {ITERATIONS}; quick: {QUICK})")
    parser.add_argument(
        "--temperature", type=float, default=TEMPERATURE, help=f"of evaluations (default: {TEMPERATURE})"
    )
    parser.add_argument("--policy", type=Path, metavar="FOLDER", help="the base policy (default: it is built first)")
    parser.add_argument("--folder", type=Path, help="keep the clones here; they are deleted by default")
    _runs.jobs(parser)
    options = parser.parse_args()
    usual = SEEDS[:1] if options.quick else SEEDS
    seeds = options.seeds or usual
    iterations = options.iterations or (QUICK if options.quick else ITERATIONS)
    rows = _common.begin("selfplay", options, len(seeds) / len(usual) if not options.iterations else None)
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with tempfile.TemporaryDirectory(prefix="selfplay-") as temporary:
        folder, share = (options.folder or Path(temporary)).resolve(), SHARE if options.quick else 1
        policy = options.policy or (None if options.quick else build_policy(folder))
        run = functools.partial(
            train, folder=folder, policy=policy, iterations=iterations, temperature=options.temperature, share=share
        )
        arms = _runs.side_by_side(options.jobs, run, itertools.product(seeds, OPPONENTS))
        for seed in seeds:
            rows.add(row(seed, next(arms), next(arms), iterations))


if __name__ == "__main__":
    _common.command(main)
