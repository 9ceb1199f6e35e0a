"""What a run came to: run/summary.json, a table, and the learning curve. Reads the stages' outputs; decides nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.records import OUTPUTS
from steps.project.chain import BASE, iteration_name

RUN = Path("run")


class Point(NamedTuple):
    """A policy on the validation split."""

    iteration: int
    success: float
    ci95: tuple[float, float]
    reward: float  # mean on validation


def point(iteration: int) -> Point:
    found = read(RUN / iteration_name(iteration) / "evaluation" / "summary.json")
    return Point(iteration, found["success"], tuple(found["ci95"]), found["reward"])


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def seconds(iteration: int) -> dict[str, float]:
    """Seconds in each stage's own work, when it last ran."""
    folder = RUN / iteration_name(iteration) / "timings"
    kept = {stage: folder / f"{output}.json" for stage, output in OUTPUTS.items()}
    return {stage: read(path)["seconds"] for stage, path in kept.items() if path.exists()}


def keep_overhead(iteration: int, overhead: float) -> None:
    """Remember what an iteration that ran cost beyond its stages' own work: DVC, Prefect, MLflow, the hand-over."""
    (RUN / iteration_name(iteration) / "timings" / "overhead.json").write_text(
        json.dumps({"seconds": round(overhead, 4)}) + "\n"
    )


def iteration_row(iteration: int) -> dict[str, Any]:
    """One iteration as in summary.json."""
    metrics = read(RUN / iteration_name(iteration) / "metrics.json")
    spent = seconds(iteration)
    kept = RUN / iteration_name(iteration) / "timings" / "overhead.json"
    tokens = metrics["tokens"] * metrics["collected"]
    return {
        "iteration": iteration,
        "reward": metrics["reward_mean"],
        "success": point(iteration).success,
        "tokens_per_second": round(tokens / spent["rollout"], 1) if spent.get("rollout") else None,
        "seconds": spent,
        "overhead_seconds": read(kept)["seconds"] if kept.exists() else None,
    }


def summary(task: str, best: int, iterations: int, version: str | None, wall: float) -> dict[str, Any]:
    """run/summary.json: a report, no output of a DVC stage."""
    base, trained = (read(RUN / folder / "test" / "summary.json") for folder in (BASE, iteration_name(best)))
    receipt = read(RUN / "receipt.json")
    keys = ("success", "ci95", "n")
    return {
        "task": task,
        "base": {key: base[key] for key in keys},
        "trained": {key: trained[key] for key in keys} | {"iteration": best},
        "iterations": [iteration_row(iteration) for iteration in range(1, iterations + 1)],
        "registered": {"name": receipt["name"], "version": version} if version else None,
        "wall_seconds": round(wall, 2),
    }


def draw(points: list[Point], best: int, path: Path) -> None:
    """The learning curve: validation success with its 95 % interval, and the mean reward of validation below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (upper, lower) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=(2, 1), layout="constrained")
    steps = [found.iteration for found in points]
    upper.fill_between(
        steps, [found.ci95[0] for found in points], [found.ci95[1] for found in points], alpha=0.2, linewidth=0
    )
    upper.plot(steps, [found.success for found in points], marker="o")
    upper.axvline(best, linestyle=":", color="grey")
    upper.annotate(f"best: {best}", (best, 0.03), xytext=(4, 0), textcoords="offset points", color="grey")
    upper.set(ylabel="validation success (95 %)", ylim=(0, 1))
    lower.plot(steps, [found.reward for found in points], marker=".", color="tab:green")
    lower.set(xlabel="iteration (0 = base policy)", ylabel="reward")
    lower.xaxis.get_major_locator().set_params(integer=True)
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=120, format="png", metadata={"Software": None})
    plt.close(figure)
    temporary.replace(path)
