"""Does it learn? The main job with several seeds, each from a fresh clone; a table and the curves of README.

    python -m benchmarks.learning                # seeds 1 2 3
    python -m benchmarks.learning --quick        # seed 1, three iterations
    python -m benchmarks.learning --ruler 0.1    # the reward is RULER's, of a simulated judge with this noise

Each seed draws its own scenarios, first adapter and samples. Test success is greedy, on scenarios whose inboxes and
questions are in no other split. `ratio` is the trained policy's over the base policy's. Writes benchmarks/learning.json and
learning.png, but not with --quick or --ruler. With --ruler a server in a process of its own judges
(tests/support/judge_server.py), by the task's rule from 0 to 1 with normal noise on a score.
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
    return {"seed": seed, "summary": summary, "curve": [[point["success"], *point["ci95"]] for point in curve]}


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Validation success by iteration, one line for each seed, with 95 % intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for run in runs:
        steps = range(len(run["curve"]))
        success, low, high = zip(*run["curve"], strict=True)
        [line] = axis.plot(steps, success, marker="o", markersize=3, label=f"seed {run['seed']}")
        axis.fill_between(steps, low, high, alpha=0.15, linewidth=0, color=line.get_color())
    axis.set(xlabel="iteration (0 = base policy)", ylabel="validation success, 95 % interval", ylim=(0, 1))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def interval(result: dict[str, Any]) -> str:
    low, high = result["ci95"]
    return f"{result['success']:.3f} [{low:.3f}, {high:.3f}]"


def add(rows: _common.Rows, run: dict[str, Any]) -> None:
    """A seed's row."""
    summary = run["summary"]
    base, trained = summary["base"], summary["trained"]
    ratio = round(trained["success"] / base["success"], 3) if base["success"] else None
    row = {"name": f"learning seed {run['seed']}", "ratio": ratio, "base": base, "trained": trained}
    row |= {"seed": run["seed"], "seconds": round(summary["wall_seconds"])}
    best = f"{trained['iteration']} of {len(summary['iterations'])}"
    rows.add(row, base=interval(base), trained=interval(trained), scenarios=str(trained["n"]), iterations=best)


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
