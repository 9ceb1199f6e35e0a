"""Does it learn? `flows.train` with several seeds, each from a fresh clone; a table and the curves of README and docs.

    python -m benchmarks.learning                # the main job, seeds 1 to 5
    python -m benchmarks.learning --quick        # seed 1, three iterations
    python -m benchmarks.learning --ruler 0.1    # the reward is RULER's, of a simulated judge with this noise
    python -m benchmarks.learning --ruler 1000 --seeds 1    # a control: the reward is noise alone
    python -m benchmarks.learning --preset smollm2 --task times_tables   # a pretrained model
    python -m benchmarks.learning --task tic_tac_toe --seeds 1 2 3 --jobs 2   # two seeds at a time

Each seed draws its own scenarios, first adapter and samples. Test success is as the preset evaluates, greedy by default,
on scenarios whose sources are in no other split. `ratio` is the trained policy's over the base policy's. Of email_search
alone, sampled success, at temperature 1, stands beside it, and `biased` is the base policy's with the one-token bias that
is best on validation (addons/models/token_bias.py): what greedy success gains without any learning. Tokens per second are
means over the iterations: sampled tokens by the seconds of the stage rollout and of the stage update. Writes
benchmarks/learning.json and learning.png (learning_<task> of another task), but not with --quick or --ruler, which leave
the bias out, too. With --ruler a server in a process of its own judges (tests/support/judge_server.py), by the task's
rule from 0 to 1 with normal noise on a score.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _common, _runs
from benchmarks.judge import served
from steps.core.records import ITERATION_STAGES, Trajectory, read_records
from steps.core.stats import counted

HERE = Path(__file__).parent
SEEDS = [1, 2, 3, 4, 5]
MAIN = "email_search"
SPEED = ("rollout_tokens_per_second", "update_tokens_per_second")
QUICK: dict[str, object] = {"train.iterations": 3}


def run_seed(seed: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """`flows.train` with this seed in a clone of the committed tree; its summary and validation curve."""
    root = _runs.clone(folder / f"seed{seed}")
    settings = (QUICK if options.quick else {}) | ({"evaluate.sampled_attempts": 1} if options.task == MAIN else {})
    words = [*_runs.training({"seed": seed} | settings), "--name", f"seed{seed}", "--task", options.task]
    words += ["--preset", options.preset] if options.preset else []
    ruler = options.ruler
    judged = ("--task", options.task, "--scenarios", os.fspath(root / "run" / "scenarios"), "--noise", str(ruler))
    with contextlib.nullcontext() if ruler is None else served(*judged) as address:
        if address is not None:
            score = {"judges": {"ruler": 1}, "ruler": {"endpoint": {"model": f"noise {ruler}", "base_url": address}}}
            words += ["--set", f"score={json.dumps(score)}"]
        _runs.show(root, words)
    summary = json.loads((root / "run" / "summary.json").read_text())
    folders = [root / "run" / f"{iteration:03d}" for iteration in range(len(summary["iterations"]) + 1)]
    curve = [json.loads((path / "evaluation" / "summary.json").read_text()) for path in folders]
    points = [[point["success"], *point["ci95"], point["sampled_success"]] for point in curve]
    more = {"biased": biased(root)} if options.task == MAIN and ruler is None and not settings else {}
    return {"seed": seed, "summary": summary, "curve": points, **speed(folders[1:]), **more}


def speed(folders: list[Path]) -> dict[str, float]:
    """Means over these iterations: sampled tokens per second of the stages rollout and update."""
    tokens = sum(
        len(turn.completion_ids)
        for path in folders
        for trajectory in read_records(Trajectory, path / "trajectories.parquet")
        for turn in trajectory.turns
    )
    seconds = {
        stage: sum(
            json.loads((path / "timings" / f"{ITERATION_STAGES[stage]}.json").read_text())["seconds"]
            for path in folders
        )
        for stage in ("rollout", "update")
    }
    return {f"{stage}_tokens_per_second": round(tokens / spent) for stage, spent in seconds.items()}


def biased(root: Path) -> dict[str, Any]:
    """The row of the base policy with the best one-token bias, on the test split of the run in this clone."""
    words = "-m addons.models.baselines --task email_search --players scripted --bias --count 240 --json".split()
    rows = [json.loads(line) for line in _runs.show(root, words)[1].splitlines() if line.startswith("{")]
    [row] = [row for row in rows if row["player"].startswith("base, ")]
    return dict(row)


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Validation success by iteration, a line for each seed with 95 % intervals, and a dashed one of sampled success."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    has_sampled = False
    for run in runs:
        steps = range(len(run["curve"]))
        success, low, high, sampled = zip(*run["curve"], strict=True)
        has_sampled = None not in sampled
        [line] = axis.plot(steps, success, marker="o", markersize=3, label=f"seed {run['seed']}")
        axis.fill_between(steps, low, high, alpha=0.12, linewidth=0, color=line.get_color())
        if has_sampled:
            axis.plot(steps, sampled, linestyle="--", marker=".", markersize=3, color=line.get_color())
    axis.plot([], [], color="grey", label="as evaluated, with 95 % interval" if has_sampled else "with 95 % interval")
    if has_sampled:
        axis.plot([], [], color="grey", linestyle="--", label="sampled at temperature 1")
    if biases := [run["biased"]["success"] for run in runs if "biased" in run]:
        label = "base policy, one token biased (greedy, test)"
        axis.axhline(sum(biases) / len(biases), color="grey", linestyle=":", label=label)
    axis.set(xlabel="iteration (0 = base policy)", ylabel="validation success", ylim=(0, 1))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend(loc="best")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def interval(result: dict[str, Any]) -> str:
    low, high = result["ci95"]
    sampled = result.get("sampled_success")
    return f"{result['success']:.3f} [{low:.3f}, {high:.3f}]" + ("" if sampled is None else f", sampled {sampled:.3f}")


def published(task: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    """The cells of a task's row in docs/results.md: test success of each seed before and after, and the mean gain with its
    95 % interval by Student's t over seeds."""
    sides = {side: [run["summary"][side]["success"] for run in runs] for side in ("base", "trained")}
    mean, low, high = _runs.mean_interval([after - before for before, after in zip(*sides.values(), strict=True)])
    seconds = [f"{run['summary']['wall_seconds']:.0f}" for run in runs]
    cells = [", ".join(f"{value:.3f}" for value in values) for values in sides.values()]
    n, groups = (runs[0]["summary"]["base"].get(name) for name in ("n", "clusters"))
    return [
        task,
        str(n) if groups in (None, n) else f"{n} in {groups} groups",
        *cells,
        f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]",
        ", ".join(seconds),
    ]


def add(rows: _common.Rows, run: dict[str, Any]) -> None:
    """A seed's row."""
    summary = run["summary"]
    base, trained = summary["base"], summary["trained"]
    ratio = round(trained["success"] / base["success"], 3) if base["success"] else None
    row = {"name": f"learning seed {run['seed']}", "ratio": ratio, "base": base, "trained": trained}
    row |= {"seed": run["seed"], "seconds": round(summary["wall_seconds"])}
    texts = {"base": interval(base), "trained": interval(trained)}
    if "biased" in run:
        row |= {"biased": run["biased"]}
        texts["biased"] = f"{interval(run['biased'])} ({run['biased']['player']})"
    row |= {name: run[name] for name in SPEED if name in run}
    best = f"{trained['iteration']} of {len(summary['iterations'])}"
    rows.add(row, scenarios=counted(trained["n"], trained.get("clusters")), iterations=best, **texts)


def main() -> None:
    quick = f"seed 1 alone, {QUICK['train.iterations']} iterations, and no files written"
    parser = _common.parser("learning", __doc__, quick)
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {' '.join(map(str, SEEDS))}; quick: 1")
    parser.add_argument("--ruler", type=float, metavar="NOISE", help="learn from a simulated judge of this noise")
    parser.add_argument("--task", default=MAIN, help="default: %(default)s")
    parser.add_argument("--preset", help="a model's settings, on top of the task's: tasks_data/_models/<preset>.yaml")
    parser.add_argument("--folder", type=Path, help="keep the clones here; they are deleted by default")
    _runs.jobs(parser)
    options = parser.parse_args()
    usual = SEEDS[:1] if options.quick else SEEDS
    seeds = options.seeds or usual
    rows = _common.begin("learning", options, len(seeds) / len(usual))
    runs = []
    with tempfile.TemporaryDirectory(prefix="learning-") as temporary:
        folder = options.folder or Path(temporary)
        for run in _runs.side_by_side(options.jobs, lambda seed: run_seed(seed, folder, options), seeds):
            runs.append(run)
            add(rows, run)
    if options.ruler is None and not options.quick:
        name = "learning" if options.task == MAIN else f"learning_{options.task}"
        (HERE / f"{name}.json").write_text("".join(json.dumps(run) + "\n" for run in runs))
        draw(runs, HERE / f"{name}.png")


if __name__ == "__main__":
    _common.command(main)
