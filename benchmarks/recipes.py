"""Which settings of the update learn best? Each recipe beside the defaults, from the same seeds, on three multi-turn tasks.

    python -m benchmarks.recipes --jobs 2          # all tasks, seeds 1 to 5, all recipes: a night
    python -m benchmarks.recipes --quick           # email_search, seed 1, one recipe, three iterations: no result
    python -m benchmarks.recipes --recipes gspo sapo --seeds 1 2 3 --tasks email_search

Every run is `flows.train` with the preset of the task, the defaults of steps/core/params_update.py for what `USUAL` names,
as many iterations as `TASKS` says, and the settings of `RECIPES`. Runs of one seed share scenarios, first adapter and batch.
Nothing was tuned: a recipe has the values of its paper, of TRL, or of its examples, and the bonus for entropy a thousandth,
for which there is none. Only "Dr. GRPO, two passes" was put together after the two had been measured alone.

`ratio` is the trained policies' mean test success over that with the defaults. `gain` is the mean difference of test success
by seed, and `faster` that of the mean validation success over all iterations, which is higher where a run learns sooner;
both have 95 % intervals by Student's t over the seeds. An interval that holds 0 is no evidence of a difference. With many
recipes a few would leave 0 out by chance, so `gain_corrected_low` and `gain_corrected_high` end the interval at a level that
is divided by their number (Bonferroni). Writes benchmarks/recipes.json, a line for each run as soon as it has ended, but not
with --quick; with --go-on, runs whose lines are there already are not repeated.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import _common, _runs

FILE = Path(__file__).with_suffix(".json")
TASKS = {"email_search": 6, "email_search_plus": 6, "tic_tac_toe": 10}  # iterations, while there is something to learn
SEEDS = [1, 2, 3, 4, 5]
DEFAULTS = "defaults"
USUAL: dict[str, object] = {  # the defaults, of which a task's preset may differ
    "update.loss_type": "dapo",
    "update.scale_rewards": "group",
    "update.num_iterations": 1,
}
OWN: dict[str, object] = {
    "update.epsilon": "null",
    "update.epsilon_high": "null",
}  # a preset's own bounds would stand in for the loss's
RECIPES: dict[str, dict[str, object]] = {
    DEFAULTS: {},
    "Dr. GRPO": {"update.loss_type": "dr_grpo", "update.scale_rewards": "none"},
    "cispo": {"update.loss_type": "cispo"} | OWN,
    "gspo": {"update.loss_type": "gspo"} | OWN,
    "luspo": {"update.loss_type": "luspo"} | OWN,
    "sapo": {"update.loss_type": "sapo"} | OWN,
    "vespo": {"update.loss_type": "vespo"} | OWN,
    "top entropy": {"update.top_entropy_quantile": 0.2},
    "entropy bonus": {"update.entropy_coef": 0.001},
    "two passes": {"update.num_iterations": 2},
    "Dr. GRPO, two passes": {
        "update.loss_type": "dr_grpo",
        "update.scale_rewards": "none",
        "update.num_iterations": 2,
    },
    "two passes, masked": {"update.num_iterations": 2, "update.off_policy_mask_threshold": 0.5},
    "GDPO": {"update.multi_objective_aggregation": "normalize_then_sum", "update.scale_rewards": "null"},
    "gigpo": {"update.advantages": "gigpo"},
    "resampling": {"rollout.resample": 2},
    "no KL": {"update.beta": 0},
    "Adam of TRL": {"update.adam_beta2": 0.999},
}
QUICK: dict[str, object] = {"train.iterations": 3}
Case = tuple[str, str, int]  # task, recipe, seed


def run(case: Case, folder: Path, settings: dict[str, object]) -> dict[str, Any]:
    """A run: {"task", "recipe", "seed", "seconds", "curve": validation success by iteration, "test": success of the policy
    that the run ends with}."""
    task, recipe, seed = case
    root = _runs.clone(folder / f"{task}-{recipe}-{seed}".replace(" ", "_"))
    usual = {"seed": seed, "train.iterations": TASKS[task], "train.patience": 999}
    chosen = usual | USUAL | RECIPES[recipe] | settings
    seconds, _ = _runs.show(root, [*_runs.training(chosen), "--task", task])
    summary = json.loads((root / "run/summary.json").read_text())
    folders = [root / "run" / f"{iteration:03d}" for iteration in range(len(summary["iterations"]) + 1)]
    curve = [json.loads((path / "evaluation/summary.json").read_text())["success"] for path in folders]
    shutil.rmtree(root)
    test = summary["trained"]["success"]
    return {"task": task, "recipe": recipe, "seed": seed, "seconds": round(seconds), "curve": curve, "test": test}


def row(task: str, recipe: str, runs: Sequence[dict[str, Any]], compared: int) -> dict[str, Any]:
    """The row of a recipe at a task; `compared`: how many recipes are compared with the defaults."""
    by_recipe = {
        name: {made["seed"]: made for made in runs if made["task"] == task and made["recipe"] == name}
        for name in (DEFAULTS, recipe)
    }
    pairs = [(by_recipe[DEFAULTS][seed], other) for seed, other in sorted(by_recipe[recipe].items())]
    gains = [other["test"] - usual["test"] for usual, other in pairs]
    sooner = [fmean(other["curve"][1:]) - fmean(usual["curve"][1:]) for usual, other in pairs]
    measured = {
        "gain": _runs.mean_interval(gains),
        "faster": _runs.mean_interval(sooner),
        "gain_corrected": _runs.mean_interval(gains, 0.05 / compared),
    }
    ends = {
        f"{name}{end}": round(value, 3) if math.isfinite(value) else None
        for name, values in measured.items()
        for end, value in zip(("", "_low", "_high"), values, strict=True)
    }
    usual_test = fmean(usual["test"] for usual, _ in pairs)
    test = fmean(other["test"] for _, other in pairs)
    return {
        "name": f"{recipe}, {task}",
        "ratio": round(test / usual_test, 3) if usual_test else None,
        "test": round(test, 3),
        **ends,
        "seconds": round(fmean(other["seconds"] / usual["seconds"] for usual, other in pairs), 2),
        "seeds": len(pairs),
    }


def main() -> None:
    first, *_ = TASKS
    others = [name for name in RECIPES if name != DEFAULTS]
    parser = _common.parser("recipes", __doc__, f"{first}, seed 1, {others[0]}, {QUICK['train.iterations']} iterations")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help=f"default: {' '.join(TASKS)}; quick: {first}")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {' '.join(map(str, SEEDS))}; quick: 1")
    parser.add_argument("--recipes", nargs="+", choices=others, help=f"default: all; quick: {others[0]}")
    parser.add_argument("--go-on", action="store_true", help=f"keep {FILE.name}'s runs, and make only those it lacks")
    _runs.jobs(parser)
    options = parser.parse_args()
    quick = options.quick
    tasks = options.tasks or ([first] if quick else list(TASKS))
    seeds = options.seeds or (SEEDS[:1] if quick else SEEDS)
    recipes = options.recipes or (others[:1] if quick else others)
    kept: list[dict[str, Any]] = []
    if options.go_on and not quick and FILE.exists():
        kept = [json.loads(line) for line in FILE.read_text().splitlines()]
    made = {(line["task"], line["recipe"], line["seed"]) for line in kept}
    cases = [(task, name, seed) for task in tasks for name in (DEFAULTS, *recipes) for seed in seeds]
    missing = [case for case in cases if case not in made]
    whole = len(TASKS) * len(SEEDS) * len(RECIPES)
    rows = _common.begin("recipes", options, 1.0 if quick else len(missing) / whole)
    with tempfile.TemporaryDirectory(prefix="recipes-") as temporary:
        settings = QUICK if quick else {}
        results = _runs.side_by_side(options.jobs, lambda case: run(case, Path(temporary), settings), missing)
        for result in results:
            kept.append(result)
            if not quick:
                FILE.write_text("".join(json.dumps(line) + "\n" for line in kept))
    for task in tasks:
        for name in recipes:
            chosen = [line for line in kept if line["seed"] in seeds]
            rows.add(row(task, name, chosen, len(others)))


if __name__ == "__main__":
    _common.command(main)
