"""Does self-play teach to lose less? tic_tac_toe trained against frozen earlier selves beside the same against random moves.

    python -m benchmarks.selfplay              # seeds 1, 2 and 3
    python -m benchmarks.selfplay --seeds 1    # one seed alone
    python -m benchmarks.selfplay --jobs 2     # two seeds at a time
    python -m benchmarks.selfplay --quick      # seed 1, an iteration of a quarter of the scenarios

For each seed, in a clone: two runs that differ in `rollout.opponent` alone. Both have the preset's base policy and scenarios
and the same settings (`SETTINGS`), and are evaluated alike, at `TEMPERATURE` and against the opponents of the task's data.
What is compared is the share of the test split's games against minimax that the adapter chosen on validation draws or wins.
Perfect play draws all of them, so that the most is 1 and the goal is `GOAL`. A row is a seed: `ratio` is the share after
self-play / the one after random. The point holds where `difference` is above 0 for every seed, and the goal is met where
`self_play` is at least `GOAL`.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _common, _runs
from steps.core.params import Params, load

SEEDS = [1, 2, 3]
TASK = "tic_tac_toe"
KIND = "not lost to minimax"  # of TicTacToe.decisions
GOAL = 0.95
ITERATIONS, QUICK = 12, 1
EVERY = 2  # iterations after which a newer self is the opponent
TEMPERATURE = 0.5  # of evaluations: greedy games would hide how often the policy blunders
SCENARIOS = 64  # per iteration, of as many attempts as in the preset
# Smaller steps than the preset's, and turns compared by board: an opponent that draws often teaches little by a game.
SETTINGS = {"update.learning_rate": 0.0005, "update.advantages": "gigpo"}


class Arm(NamedTuple):
    """A run, and the games of its test split against minimax."""

    base: float  # the share that the base policy draws or wins
    trained: float
    games: int
    iteration: int  # that was chosen on validation
    seconds: float


def train(root: Path, seed: int, player: str, iterations: int, share: int) -> Arm:
    """A run against this opponent, in a clone; 1 / `share` of the preset's scenarios."""
    preset = load(root / f"tasks_data/{TASK}.yaml", Params)
    settings: dict[str, Any] = SETTINGS | {
        "seed": seed,
        "scenarios.val": preset.scenarios.val // share,
        "scenarios.test": preset.scenarios.test // share,
        "rollout.scenarios": SCENARIOS // share,
        "rollout.opponent.player": player,
        "evaluate.temperature": TEMPERATURE,
        "train.iterations": iterations,
        "train.patience": iterations,
    }
    if player == "iteration":
        settings["rollout.opponent.every"] = EVERY
    _runs.show(root, [*_runs.training(settings), "--task", TASK, "--name", f"against-{player}"])
    summary = json.loads((root / "run/summary.json").read_text())
    number = int(summary["trained"]["iteration"])
    base, games = drawn_or_won(root / "run/000/test/summary.json")
    trained, _ = drawn_or_won(root / f"run/{number:03d}/test/summary.json")
    return Arm(base, trained, games, number, summary["wall_seconds"])


def drawn_or_won(path: Path) -> tuple[float, int]:
    """(the share of the games against minimax that were drawn or won, their number) in an evaluation's summary.json."""
    right, games = json.loads(path.read_text())["decisions"][KIND]
    return right / games, games


def measure(seed: int, folder: Path, iterations: int, share: int) -> dict[str, Any]:
    """The row of a seed."""
    root = _runs.clone(folder / f"seed{seed}")
    own, random = (train(root, seed, player, iterations, share) for player in ("iteration", "random"))
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
        "self_play_iteration": own.iteration,
        "random_iteration": random.iteration,
        "self_play_seconds": round(own.seconds),
        "random_seconds": round(random.seconds),
    }


def main() -> None:
    quick = f"seed 1, {QUICK} iteration of a quarter of the scenarios in place of {ITERATIONS}"
    parser = _common.parser("selfplay", __doc__, quick)
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {' '.join(map(str, SEEDS))}; quick: 1")
    parser.add_argument("--iterations", type=int, help=f"of each run (default: {ITERATIONS}; quick: {QUICK})")
    parser.add_argument("--folder", type=Path, help="keep the clones here; they are deleted by default")
    _runs.jobs(parser)
    options = parser.parse_args()
    usual = SEEDS[:1] if options.quick else SEEDS
    seeds = options.seeds or usual
    iterations = options.iterations or (QUICK if options.quick else ITERATIONS)
    rows = _common.begin("selfplay", options, len(seeds) / len(usual) if not options.iterations else None)
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with tempfile.TemporaryDirectory(prefix="selfplay-") as temporary:
        folder, share = options.folder or Path(temporary), 4 if options.quick else 1
        for row in _runs.side_by_side(options.jobs, lambda seed: measure(seed, folder, iterations, share), seeds):
            rows.add(row)


if __name__ == "__main__":
    _common.command(main)
