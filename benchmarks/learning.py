"""Does it learn? The main job with several seeds, each from a fresh clone; a table and the curves of README.

    python -m benchmarks.learning                # seeds 1 2 3, 15 to 25 minutes on 2 cores
    python -m benchmarks.learning --json
    python -m benchmarks.learning --ruler 0.1    # the reward is RULER's, of a simulated judge with this noise

Each seed draws its own scenarios, first adapter and samples. Test success is greedy, on scenarios whose inboxes and
questions are in no other split. Writes benchmarks/learning.json and learning.png, but not with --ruler: there a
server in a process of its own judges (tests/support/judge_server.py), by the task's rule from 0 to 1 with normal noise on
a score.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.judge import served

HERE = Path(__file__).parent


def run_seed(seed: int, folder: Path, ruler: float | None = None) -> dict[str, Any]:
    """`flows.train` with this seed in a clone of the committed tree; its summary and validation curve."""
    root = folder / f"seed{seed}"
    subprocess.run(["git", "clone", "--quiet", os.fspath(HERE.parent), os.fspath(root)], check=True)
    command = [sys.executable, "-m", "flows.train", "--set", f"seed={seed}"]
    judged = ("--task", "email_search", "--scenarios", os.fspath(root / "run" / "scenarios"), "--noise", str(ruler))
    with contextlib.nullcontext() if ruler is None else served(*judged) as address:
        if address is not None:
            score = {"judges": {"ruler": 1}, "ruler": {"endpoint": {"model": f"noise {ruler}", "base_url": address}}}
            command += ["--set", f"score={json.dumps(score)}"]
        print(f"seed {seed}: {' '.join(command[1:])}", file=sys.stderr, flush=True)
        subprocess.run(command, cwd=root, check=True, stdout=sys.stderr)
    summary = json.loads((root / "run" / "summary.json").read_text())
    curve = [
        json.loads((root / "run" / f"{iteration:03d}" / "evaluation" / "summary.json").read_text())
        for iteration in range(len(summary["iterations"]) + 1)
    ]
    return {"seed": seed, "summary": summary, "curve": [[point["success"], *point["ci95"]] for point in curve]}


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Validation success by iteration, a line a seed, with 95 % intervals."""
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


def interval(found: dict[str, Any]) -> str:
    low, high = found["ci95"]
    return f"{found['success']:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", action="store_true", help="one JSON object a seed instead of the table")
    parser.add_argument("--ruler", type=float, metavar="NOISE", help="learn from a simulated judge of this noise")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learning-") as folder:
        runs = [run_seed(seed, Path(folder), options.ruler) for seed in options.seeds]
    if options.ruler is None:
        (HERE / "learning.json").write_text("".join(json.dumps(run) + "\n" for run in runs))
        draw(runs, HERE / "learning.png")
    if not options.json:
        print("| seed | base, test success | trained, test success | scenarios | best of iterations | seconds |")
        print("|---|---|---|---|---|---|")
    for run in runs:
        found = run["summary"]
        base, trained = found["base"], found["trained"]
        if options.json:
            ratio = trained["success"] / base["success"] if base["success"] else None
            print(
                json.dumps({"name": f"learning seed {run['seed']}", "ratio": ratio, "base": base, "trained": trained})
            )
            continue
        print(
            f"| {run['seed']} | {interval(base)} | {interval(trained)} | {trained['n']} | "
            f"{trained['iteration']} of {len(found['iterations'])} | {found['wall_seconds']:.0f} |"
        )


if __name__ == "__main__":
    main()
