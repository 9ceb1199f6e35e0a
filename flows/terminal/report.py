"""The report on a run: its points on validation and run/summary.json. It reads the stages' outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from steps.analytics import gaps
from steps.core import alike
from steps.core.alike import Groups
from steps.core.evaluations import Evaluation
from steps.core.files import write_json
from steps.core.records import ITERATION_STAGES
from steps.project.chain import BASE, SFT, iteration_name, origins

RUN = Path("run")


class Point(NamedTuple):
    """A policy's result on the validation split."""

    iteration: int  # 0: the base policy
    success: float  # share of the scenarios; without a rule those on which a judge finds it better than the base policy
    ci95: tuple[float, float]  # of that share
    reward: float | None  # mean; None without a rule
    sampled: float | None = None  # success of attempts at temperature 1, where they were made
    measure: str = "success"  # what `success` is, in words
    by_task: Mapping[str, float] = {}  # success on each of several tasks
    origin: str = ""  # START or SFT, of a policy before iteration 001
    counted: str = ""  # the scenarios and groups of alike ones that the interval rests on, in words
    scores: Mapping[str, float] = {}  # by scenario, of which `success` is the mean
    groups: Groups = Groups({})

    @property
    def name(self) -> str:
        """The name of its folder in run/."""
        return self.origin or iteration_name(self.iteration)


def point(policy: int | str) -> Point:
    """The point of an iteration, or of an origin by its name."""
    iteration, origin = (policy, "") if isinstance(policy, int) else (0, policy)
    folder = RUN / (origin or iteration_name(iteration)) / "evaluation"
    evaluation = Evaluation.model_validate_json((folder / "summary.json").read_text())
    return Point(
        iteration,
        evaluation.share,
        evaluation.interval,
        evaluation.reward,
        evaluation.sampled_success,
        evaluation.measure,
        {task: result.success for task, result in evaluation.by_task.items()},
        origin,
        evaluation.counted,
        gaps.scores_of(folder),
        alike.read(RUN / "scenarios"),
    )


def compared(now: Point, before: Point, tail: float) -> tuple[float, float, float]:
    """(difference of `success`, low, high) of two policies, scenario by scenario; `tail`: the probability on each side."""
    return gaps.difference(now.scores, before.scores, now.groups, tail)


def task_line(point: Point) -> str:
    """A policy's validation success on each of several tasks, for a person; empty for a single task."""
    shown = ", ".join(f"{task} {success:.3f}" for task, success in point.by_task.items())
    return shown and f"  by task: {shown}"


def origin_line(name: str) -> str:
    """What a policy before iteration 001, START or SFT, reaches on validation, for a person."""
    evaluation = Evaluation.model_validate_json((RUN / name / "evaluation" / "summary.json").read_text())
    return f"{name}: validation {evaluation.sentence()}"


def origin_rows() -> dict[str, Any]:
    """Validation of the policies before iteration 001, by name: START and SFT, where chain.yaml has them."""
    keys = ("success", "ci95", "clusters", "n", "sampled_success")
    names = origins(Path())
    if not names:
        return {}
    policies = {"base": BASE} | {name: name for name in names}
    rows = {shown: read(RUN / name / "evaluation" / "summary.json") for shown, name in policies.items()}
    return {"before": {shown: {key: row.get(key) for key in keys} for shown, row in rows.items()}}


def read(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    return dict(json.loads(path.read_text()))


def seconds(iteration: int) -> dict[str, float]:
    """Stage -> seconds that its own work took when it last ran."""
    folder = RUN / iteration_name(iteration) / "timings"
    timings = {stage: folder / f"{output}.json" for stage, output in ITERATION_STAGES.items()}
    return {stage: read(path)["seconds"] for stage, path in timings.items() if path.exists()}


def tests_seconds(name: str, sizes: Any) -> float:
    """How long the tests of the base policy and of the best one take, by the latest evaluation, that of run/<name>, and the
    sizes of the splits (params.scenarios)."""
    path = RUN / name / "timings" / "evaluation.json"
    seconds: float = read(path)["seconds"] if path.exists() else 0.0
    return 2 * seconds * sizes.test / sizes.val


def keep_overhead(iteration: int, overhead: float) -> None:
    """Keep the seconds that an iteration took beyond its stages' own work: DVC, Prefect, MLflow, the hand-over."""
    path = RUN / iteration_name(iteration) / "timings" / "overhead.json"
    path.parent.mkdir(exist_ok=True)  # no stage has, where DVC brought all outputs from its cache
    write_json(path, {"seconds": round(overhead, 4)})


def iteration_row(iteration: int) -> dict[str, Any]:
    """One iteration's entry in summary.json."""
    metrics = read(RUN / iteration_name(iteration) / "metrics.json")
    spent = seconds(iteration)
    overhead = RUN / iteration_name(iteration) / "timings" / "overhead.json"
    tokens = metrics["tokens"] * metrics["collected"]
    measured = point(iteration)
    return {
        "iteration": iteration,
        "reward": metrics["reward_mean"],
        measured.measure.replace(" ", "_"): measured.success,
        "sampled_success": measured.sampled,
        "tokens_per_second": round(tokens / spent["rollout"], 1) if spent.get("rollout") else None,
        "seconds": spent,
        "overhead_seconds": read(overhead)["seconds"] if overhead.exists() else None,
        **({"by_task": dict(measured.by_task)} if measured.by_task else {}),
    }


def summary(task: str, best: Point, iterations: int, version: str | None, wall: float) -> dict[str, Any]:
    """The content of run/summary.json, which is a report and not an output of a DVC stage. `wall` is in seconds."""
    trained = read(RUN / best.name / "test" / "summary.json")
    begun = [name for name in origins(Path())[-1:] if name != best.name]
    receipt = read(RUN / "receipt.json")
    keys = ["success", "ci95", "clusters", "n", "sampled_success", "sampled_ci95"]
    keys += [key for key in ("judged", "by_task") if trained.get(key)]
    return {
        "task": task,
        "way": "sft" if SFT in origins(Path()) else "grpo",
        "base": tested_row(BASE, keys),
        **({"begun": tested_row(begun[0], keys)} if begun else {}),
        "trained": tested_row(best.name, keys) | {"iteration": best.iteration},
        **origin_rows(),
        "iterations": [iteration_row(iteration) for iteration in range(1, iterations + 1)],
        "registered": {"name": receipt["name"], "version": version} if version else None,
        "wall_seconds": round(wall, 2),
    }


def tested_row(policy: str, keys: list[str]) -> dict[str, Any]:
    """What a policy reached on the test split; `policy` is the name of its folder."""
    row = read(RUN / policy / "test" / "summary.json")
    return {key: row.get(key) for key in keys} | {"policy": policy}


def tested(summary: Mapping[str, Any]) -> str:
    """The folder in run/ of the policy that was tested as the best, by the content of run/summary.json."""
    return str(summary["trained"]["policy"])
