"""The learning curve of a run, run/learning_curve.png."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from flows.terminal.report import RUN, Point, point, read
from steps.project.chain import BASE, origins


def references() -> dict[str, float]:
    """Success of others on validation, by name: of the policies before iteration 001, and where the base policy's evaluation
    has measured them, of the script and of a biased token."""
    begun = {name: point(name).success for name in origins(Path())}
    return begun | dict(read(RUN / BASE / "evaluation" / "summary.json").get("references", {}))


def draw(points: list[Point], best: int, path: Path, lines: Mapping[str, float] | None = None) -> None:
    """Draw the learning curve: validation success with its 95 % interval, beside it that of sampled attempts and `lines` for
    the success of others, below the mean reward on validation, and last what each line is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (upper, lower) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=(2, 1), layout="constrained")
    steps, successes, intervals, rewards, sampled, measures, by_task, _, counts, _, _ = zip(*points, strict=True)
    is_judged = measures[-1] != "success"
    upper.fill_between(steps, *zip(*intervals, strict=True), alpha=0.2, linewidth=0)
    upper.plot(steps, successes, marker="o", label="as evaluated: greedy by default")
    if any(share is not None for share in sampled):
        upper.plot(
            steps,
            [math.nan if share is None else share for share in sampled],
            linestyle="--",
            marker=".",
            label="sampled",
        )
    for task in by_task[-1]:
        upper.plot(steps, [own[task] for own in by_task], linewidth=1, marker=".", label=task)
    for place, (name, success) in enumerate((lines or {}).items()):
        upper.axhline(success, linestyle=(0, (1, 1 + place)), color="grey", label=f"{name}: {success:.2f}")
    mark = upper.axvline(best, linestyle=":", color="grey", label=f"best: iteration {best}")
    named = [line for line in upper.lines if line is not mark]
    # below both panels, where it hides no curve
    handles = [*(named if len(named) > 1 else []), mark]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize="small")
    label = f"share of validation scenarios\n{measures[-1]} (95 %)" if is_judged else "validation success (95 %)"
    label += f"\nof {counts[-1]}" if counts[-1] else ""
    upper.set(ylabel=label, ylim=(0, 1))
    if is_judged:
        upper.axhline(0.5, color="grey", linewidth=0.8)
    lower.plot(steps, [math.nan if reward is None else reward for reward in rewards], marker=".", color="tab:green")
    lower.set(xlabel="iteration (0 = base policy)", ylabel="validation reward")
    lower.xaxis.get_major_locator().set_params(integer=True)
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    temporary = path.with_name(f".{path.name}")
    try:
        figure.savefig(temporary, dpi=120, format="png", metadata={"Software": None})
        temporary.replace(path)
    finally:
        plt.close(figure)
        temporary.unlink(missing_ok=True)
