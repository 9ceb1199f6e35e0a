"""Does credit for single turns teach faster? GiGPO beside GRPO, from the same seeds: episodes until GRPO's final success.

    python -m benchmarks.credit --jobs 2                   # 3 tasks, seeds 1 to 5, both ways: about an hour and a half
    python -m benchmarks.credit --quick                    # tic_tac_toe, seed 1, three iterations: no result
    python -m benchmarks.credit --tasks game_2048 --seeds 1 2 3

Both runs of a seed are made in one clone by `flows.train` with the task's preset, as many iterations as `TASKS` says, and
differ in `update.advantages` alone: they share scenarios, first adapter and first batch. The goal is GRPO's own validation
success at the end, as the mean of its last three iterations. Episodes until then are where the success by iteration, as the
mean of each iteration and its two neighbours, first reaches the goal, between iterations by a straight line, and one
iteration at least. A run that does not reach it counts with all its episodes, and in `unreached`: its ratio is then a lower
bound.

`ratio` is GiGPO's episodes over GRPO's, the geometric mean over seeds; `ratio_low` and `ratio_high` end its 95 % interval by
Student's t on the logarithms of the paired ratios. `gain` is the difference of test success, GiGPO's minus GRPO's, with its
interval, also paired. `turns_in_groups` and `later_turns_in_groups` are the shares of turns, and of turns after the first,
that had another turn to be compared with. Writes benchmarks/credit.json, two lines for each seed as soon as it has ended,
but not with --quick; with --go-on, seeds whose lines are there already are not repeated.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks import _common, _runs

FILE = Path(__file__).with_suffix(".json")
TASKS = {"tic_tac_toe": 12, "game_2048": 8, "email_search": 6}  # iterations, until a curve is near its end
SEEDS = [1, 2, 3, 4, 5]
WAYS = ("grpo", "gigpo")
LAST = 3  # iterations whose mean is the final success
QUICK: dict[str, object] = {"train.iterations": 3}


def run_seed(task: str, seed: int, folder: Path, settings: dict[str, object]) -> list[dict[str, Any]]:
    """Both runs of a seed: {"task", "seed", "way", "curve": validation success by iteration, "test", "episodes", …}."""
    root = _runs.clone(folder / f"{task}-{seed}")
    usual = {"seed": seed, "train.iterations": TASKS[task], "train.patience": 999, "evaluate.sampled_attempts": 0}
    runs = []
    for way in WAYS:
        words = [*_runs.training(usual | {"update.advantages": way} | settings), "--name", f"{way}{seed}"]
        seconds, _ = _runs.show(root, [*words, "--task", task])
        runs.append({"task": task, "seed": seed, "way": way, "seconds": round(seconds)} | measured(root / "run"))
    shutil.rmtree(root)
    return runs


def measured(run: Path) -> dict[str, Any]:
    """What a run in this folder came to."""
    summary = json.loads((run / "summary.json").read_text())
    folders = [run / f"{iteration:03d}" for iteration in range(len(summary["iterations"]) + 1)]
    metrics = [json.loads((path / "metrics.json").read_text()) for path in folders[1:]]
    curve = [json.loads((path / "evaluation/summary.json").read_text())["success"] for path in folders]
    shares = [name for name in metrics[0] if name.startswith("gigpo/")]
    return {
        "curve": curve,
        "test": summary["trained"]["success"],
        "episodes": metrics[0]["collected"],  # of an iteration
        **{name.removeprefix("gigpo/"): fmean(metric[name] for metric in metrics) for name in shares},
    }


def goal(curve: Sequence[float]) -> float:
    """The final success of a run."""
    return fmean(curve[-LAST:])


def smoothed(curve: Sequence[float]) -> list[float]:
    """The mean of each iteration and its neighbours; the first is left as it is, because all runs begin there."""
    return [curve[0], *(fmean(curve[place - 1 : place + 2]) for place in range(1, len(curve)))]


def reached(curve: Sequence[float], target: float) -> float | None:
    """The iteration at which the smoothed curve first reaches a success, between two by a straight line; None if never."""
    values = smoothed(curve)
    if values[0] >= target:
        return 0.0
    for place in range(1, len(values)):
        before, after = values[place - 1 : place + 1]
        if after >= target:
            return place - 1 + (target - before) / (after - before)
    return None


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high), 95 % by Student's t; of a single value the ends are infinite."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return fmean(values), -math.inf, math.inf
    spread = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5
    return fmean(values), fmean(values) - spread, fmean(values) + spread


def row(task: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of a task, from both runs of each seed."""
    by_way = {way: {run["seed"]: run for run in runs if run["way"] == way} for way in WAYS}
    logs, gains, needed, unreached = [], [], dict[str, list[float]](grpo=[], gigpo=[]), 0
    for seed, base in by_way["grpo"].items():
        other, target = by_way["gigpo"][seed], goal(base["curve"])
        steps = {}
        for way, run in (("grpo", base), ("gigpo", other)):
            step = reached(run["curve"], target)
            unreached += step is None and way == "gigpo"
            steps[way] = max(1.0, len(run["curve"]) - 1 if step is None else step)
            needed[way].append(steps[way] * run["episodes"])
        logs.append(math.log(steps["gigpo"] / steps["grpo"]))
        gains.append(other["test"] - base["test"])
    ratio, gain = interval(logs), interval(gains)
    shares = {
        name: fmean(run[name] for run in by_way["gigpo"].values())
        for name in ("turns_in_groups", "later_turns_in_groups")
    }
    return {
        "name": f"credit {task}",
        "ratio": round(math.exp(ratio[0]), 3),
        "ratio_low": round(math.exp(ratio[1]), 3),
        "ratio_high": round(math.exp(ratio[2]), 3) if math.isfinite(ratio[2]) else None,
        "grpo_episodes": round(fmean(needed["grpo"])),
        "gigpo_episodes": round(fmean(needed["gigpo"])),
        "unreached": unreached,
        "gain": round(gain[0], 3),
        "gain_low": round(gain[1], 3) if math.isfinite(gain[1]) else None,
        "gain_high": round(gain[2], 3) if math.isfinite(gain[2]) else None,
        "seeds": len(logs),
        **{name: round(share, 3) for name, share in shares.items()},
    }


def main() -> None:
    first, *_ = TASKS
    parser = _common.parser("credit", __doc__, f"{first}, seed 1, {QUICK['train.iterations']} iterations, no file")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help=f"default: {' '.join(TASKS)}; quick: {first}")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {' '.join(map(str, SEEDS))}; quick: 1")
    parser.add_argument("--go-on", action="store_true", help=f"keep {FILE.name}'s runs, and make only those it lacks")
    _runs.jobs(parser)
    options = parser.parse_args()
    usual = [first] if options.quick else list(TASKS)
    seeds, tasks = options.seeds or (SEEDS[:1] if options.quick else SEEDS), options.tasks or usual
    rows = _common.begin("credit", options, len(seeds) * len(tasks) / len(usual) / (1 if options.quick else len(SEEDS)))
    kept: list[dict[str, Any]] = []
    if options.go_on and not options.quick and FILE.exists():
        kept = [json.loads(line) for line in FILE.read_text().splitlines()]
    made = {(run["task"], run["seed"]) for run in kept}
    cases = [(task, seed) for task in tasks for seed in seeds if (task, seed) not in made]
    with tempfile.TemporaryDirectory(prefix="credit-") as temporary:
        settings = QUICK if options.quick else {}
        pairs = _runs.side_by_side(options.jobs, lambda case: run_seed(*case, Path(temporary), settings), cases)
        for task in tasks:
            for _ in [case for case in cases if case[0] == task]:
                kept += next(pairs)
                if not options.quick:
                    FILE.write_text("".join(json.dumps(run) + "\n" for run in kept))
            rows.add(row(task, [run for run in kept if run["task"] == task and run["seed"] in seeds]))


if __name__ == "__main__":
    _common.command(main)
