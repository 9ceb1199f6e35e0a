"""Does it learn? The main job with several seeds, each from a fresh clone; a table and the curves of README.

    python -m benchmarks.learning                # seeds 1 2 3
    python -m benchmarks.learning --quick        # seed 1, three iterations
    python -m benchmarks.learning --ruler 0.1    # the reward is RULER's, of a simulated judge with this noise

Each seed draws its own scenarios, first adapter and samples. Test success is greedy, on scenarios whose inboxes and
questions are in no other split; sampled success, at temperature 1, stands beside it. `ratio` is the trained policy's over
the base policy's. `biased` is the base policy's with the one-token bias that is best on validation
(steps/analytics/token_bias.py): what greedy success gains without any learning. Writes benchmarks/learning.json and
learning.png, but not with --quick or --ruler, which leave the bias out, too. With --ruler a server in a process of its own
judges (tests/support/judge_server.py), by the task's rule from 0 to 1 with normal noise on a score.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _common
from benchmarks.judge import served

HERE = Path(__file__).parent
SEEDS = [1, 2, 3]
QUICK: dict[str, object] = {"train.iterations": 3}


def run_seed(seed: int, folder: Path, ruler: float | None, settings: dict[str, object]) -> dict[str, Any]:
    """`flows.train` with this seed in a clone of the committed tree; its summary and validation curve."""
    root = _common.clone(folder / f"seed{seed}")
    words = _common.training({"seed": seed} | settings)
    judged = ("--task", "email_search", "--scenarios", os.fspath(root / "run" / "scenarios"), "--noise", str(ruler))
    with contextlib.nullcontext() if ruler is None else served(*judged) as address:
        if address is not None:
            score = {"judges": {"ruler": 1}, "ruler": {"endpoint": {"model": f"noise {ruler}", "base_url": address}}}
            words += ["--set", f"score={json.dumps(score)}"]
        _common.show(root, words)
    summary = json.loads((root / "run" / "summary.json").read_text())
    curve = [
        json.loads((root / "run" / f"{iteration:03d}" / "evaluation" / "summary.json").read_text())
        for iteration in range(len(summary["iterations"]) + 1)
    ]
    points = [[point["success"], *point["ci95"], point["sampled_success"]] for point in curve]
    more = {} if settings or ruler is not None else {"biased": biased(root)}
    return {"seed": seed, "summary": summary, "curve": points} | more


def biased(root: Path) -> dict[str, Any]:
    """The row of the base policy with the best one-token bias, on the test split of the run in this clone."""
    words = "-m steps.analytics.baselines --task email_search --players scripted --bias --count 240 --json".split()
    rows = [json.loads(line) for line in _common.show(root, words)[1].splitlines() if line.startswith("{")]
    [row] = [row for row in rows if row["player"].startswith("base, ")]
    return dict(row)


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Validation success by iteration, a line for each seed with 95 % intervals, and a dashed one of sampled success."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for run in runs:
        steps = range(len(run["curve"]))
        success, low, high, sampled = zip(*run["curve"], strict=True)
        [line] = axis.plot(steps, success, marker="o", markersize=3, label=f"seed {run['seed']}")
        axis.fill_between(steps, low, high, alpha=0.12, linewidth=0, color=line.get_color())
        axis.plot(steps, sampled, linestyle="--", marker=".", markersize=3, color=line.get_color())
    axis.plot([], [], color="grey", label="greedy, with 95 % interval")
    axis.plot([], [], color="grey", linestyle="--", label="sampled at temperature 1")
    if biases := [run["biased"]["success"] for run in runs if "biased" in run]:
        label = "base policy, one token biased (greedy, test)"
        axis.axhline(sum(biases) / len(biases), color="grey", linestyle=":", label=label)
    axis.set(xlabel="iteration (0 = base policy)", ylabel="validation success", ylim=(0, 1))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def interval(result: dict[str, Any]) -> str:
    low, high = result["ci95"]
    sampled = result.get("sampled_success")
    return f"{result['success']:.3f} [{low:.3f}, {high:.3f}]" + ("" if sampled is None else f", sampled {sampled:.3f}")


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
    best = f"{trained['iteration']} of {len(summary['iterations'])}"
    rows.add(row, scenarios=str(trained["n"]), iterations=best, **texts)


def main() -> None:
    quick = f"seed 1 alone, {QUICK['train.iterations']} iterations in place of 10, and no files written"
    parser = _common.parser("learning", __doc__, quick)
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {' '.join(map(str, SEEDS))}; quick: 1")
    parser.add_argument("--ruler", type=float, metavar="NOISE", help="learn from a simulated judge of this noise")
    options = parser.parse_args()
    usual = SEEDS[:1] if options.quick else SEEDS
    seeds = options.seeds or usual
    rows = _common.begin("learning", options, len(seeds) / len(usual))
    runs = []
    with tempfile.TemporaryDirectory(prefix="learning-") as folder:
        for seed in seeds:
            runs.append(run_seed(seed, Path(folder), options.ruler, QUICK if options.quick else {}))
            add(rows, runs[-1])
    if options.ruler is None and not options.quick:
        (HERE / "learning.json").write_text("".join(json.dumps(run) + "\n" for run in runs))
        draw(runs, HERE / "learning.png")


if __name__ == "__main__":
    _common.command(main)
