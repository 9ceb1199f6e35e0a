"""The stages with several tasks: each task's share of the scenarios and of every batch, and results by task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from addons.drawing.section import Curriculum
from addons.models import players
from addons.report.curve import draw
from environments.base import Scenario
from environments.multiplication import Multiplication
from environments.tic_tac_toe import TicTacToe
from flows.terminal import report
from flows.training import ending
from steps.core.evaluations import Evaluation, TaskResult
from steps.core.params import (
    Evaluate,
    EvaluateParams,
    Policy,
    Rollout,
    RolloutParams,
    Scenarios,
    ScenariosParams,
    Score,
    ScoreParams,
)
from steps.core.records import Trajectory, read_records
from steps.core.stats import slices_of
from steps.evaluate import evaluate
from steps.mix import mix
from steps.rollout import choose, rollout
from steps.sampling.job import Job
from steps.scenarios import scenarios
from steps.score import score
from steps.tracking.measured import MeasuredRun
from tests.conftest import ROOT

BOTH = "multiplication+tic_tac_toe"
TASKS = {"multiplication": 2, "tic_tac_toe": 1}
COUNTS = {"train": 48, "val": 12, "test": 9}
OF = {"task": BOTH, "tasks": TASKS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both tasks' data, as the stage mix copies it, and their scenarios."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "data").mkdir()
    for task in TASKS:
        mix(ROOT / "tasks_data" / task, folder / "data" / task)
    scenarios(folder / "data", folder / "scenarios", ScenariosParams(**OF, seed=3, scenarios=Scenarios(**COUNTS)))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def drawn(folder: Path, split: str) -> list[Scenario]:
    return read_records(Scenario, folder / "scenarios" / f"{split}.parquet")


def test_a_copy_holds_the_same_bytes_each_time_and_no_rubric(folder: Path, tmp_path: Path) -> None:
    mix(ROOT / "tasks_data/tic_tac_toe", tmp_path / "copy")
    assert content(tmp_path / "copy") == content(folder / "data/tic_tac_toe")
    assert content(tmp_path / "copy").items() <= content(ROOT / "tasks_data/tic_tac_toe").items()
    assert (tmp_path / "copy/game.json").is_file()
    assert not list((folder / "data").rglob("rubric.md"))


def test_each_split_has_each_tasks_share_and_the_same_bytes_again(folder: Path, tmp_path: Path) -> None:
    for split, count in COUNTS.items():
        assert Counter(scenario.task for scenario in drawn(folder, split)) == {
            "multiplication": 2 * count // 3,
            "tic_tac_toe": count // 3,
        }
    params = ScenariosParams(**OF, seed=3, scenarios=Scenarios(**COUNTS))
    scenarios(folder / "data", tmp_path / "scenarios", params)
    assert content(tmp_path / "scenarios") == content(folder / "scenarios")
    made = json.loads((folder / "scenarios/contamination.json").read_text())
    assert (made["passed"], made["scenarios"], made["sources"]) == (True, COUNTS, ["seed"])
    assert made["overlap_measured"] == 14, "the questions are compared, and the openings of games are not"


def played(folder: Path, to: Path, iteration: int, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Scenario]:
    """The scenarios of an iteration that the stage rollout plays by the scripted players, in place of vLLM."""

    def play(job: Job) -> list[Trajectory]:
        scripted = players.play(Policy(kind="scripted"), job.env, job.data, job.attempts, prefix=job.prefix)
        return [each.trajectory for each in scripted]

    monkeypatch.setattr("steps.sampling.engine.play", play)
    params = RolloutParams(**OF, seed=3, policy=Policy(), rollout=Rollout(scenarios=10, attempts=2, **settings))
    to.mkdir(exist_ok=True)
    (to / "successes.json").write_text("[]\n")
    outputs: dict[str, Any] = {"successes": to / "successes.json", "drawn": to / "drawn.json"}
    name = f"{iteration:03d}"
    rollout(folder / "data", folder / "scenarios", to / "adapter", to / "trajectories.parquet", name, params, **outputs)
    by_id = {scenario.id: scenario for scenario in drawn(folder, "train")}
    return [by_id[entry["id"]] for entry in json.loads((to / "drawn.json").read_text())["scenarios"]]


@pytest.mark.parametrize("curriculum", [None, Curriculum()])
def test_every_batch_has_each_tasks_share(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, curriculum: Curriculum | None
) -> None:
    settings: Any = {"curriculum": curriculum}
    batches = [played(folder, tmp_path / f"{number}", number, monkeypatch, **settings) for number in range(1, 5)]
    counts = [Counter(scenario.task for scenario in batch) for batch in batches]
    assert [(count["multiplication"], count["tic_tac_toe"]) for count in counts] == [(7, 3), (6, 4), (7, 3), (7, 3)]
    if curriculum is None:  # each task's are drawn as in a run of its own
        of_task = [scenario for scenario in drawn(folder, "train") if scenario.task == "tic_tac_toe"]
        for number, batch in enumerate(batches, 1):
            own = [scenario.id for scenario in batch if scenario.task == "tic_tac_toe"]
            assert own == [scenario.id for scenario in choose(of_task, [3, 4, 3, 3][:number], 3)]
    assert played(folder, tmp_path / "again", 4, monkeypatch, **settings) == batches[3]
    for name in ("drawn.json", "trajectories.parquet"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "4" / name).read_bytes()


def test_rewards_are_those_of_each_task_and_measured_by_task(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(folder, tmp_path, 1, monkeypatch)
    outputs = {"judge": tmp_path / "judge.json"}
    params = ScoreParams(task=BOTH, score=Score())
    score(folder / "data", folder / "scenarios", tmp_path / "trajectories.parquet", tmp_path / "r", params, **outputs)
    measured = json.loads((tmp_path / "judge.json").read_text())
    assert (measured["task/multiplication/episodes"], measured["task/tic_tac_toe/episodes"]) == (14, 6)
    assert (measured["task/multiplication/reward"], measured["task/multiplication/success"]) == (1.0, 1.0)
    assert 0 <= measured["task/tic_tac_toe/reward"] < 1
    assert "reward_correct" in measured


def evaluated(folder: Path, to: Path, policy: Any = "random") -> Evaluation:
    params = EvaluateParams(task=BOTH, policy=Policy(kind=policy), evaluate=Evaluate(), score=Score())
    evaluate(folder / "data", folder / "scenarios", to, params)
    return Evaluation.model_validate_json((to / "summary.json").read_text())


def test_an_evaluation_has_the_results_of_each_task(folder: Path, tmp_path: Path) -> None:
    summary = evaluated(folder, tmp_path / "evaluation", "scripted")
    assert list(summary.by_task) == sorted(TASKS)
    right, games = summary.by_task["multiplication"], summary.by_task["tic_tac_toe"]
    assert (right.n, right.success, right.reward, right.turns) == (8, 1.0, 1.0, 1.0)
    assert (games.n, games.turns > 1) == (4, True)
    assert summary.success == pytest.approx((8 * right.success + 4 * games.success) / 12)
    assert summary.slices == {task: result.success for task, result in summary.by_task.items()}
    assert [name for name in slices_of(drawn(folder, "val")) if name.startswith("task=")] == [
        "task=multiplication",
        "task=tic_tac_toe",
    ]
    single = [scenario for scenario in drawn(folder, "val") if scenario.task == "tic_tac_toe"]
    assert not [name for name in slices_of(single) if "task" in name]


def test_a_single_task_has_no_results_by_task(folder: Path) -> None:
    summary = Evaluation(
        split="val", adapter_hash="x", n=1, success=1.0, ci95=(0, 1), reward=1.0, turns=1, tokens=1, slices={"all": 1.0}
    )
    assert "by_task" not in json.loads(summary.text())


def test_curve_terminal_and_metrics_show_each_task(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in ("000", "001"):
        Path("run", number).mkdir(parents=True)
        evaluated(folder, Path("run", number, "evaluation"), "random" if number == "000" else "scripted")
    points = [report.point(0), report.point(1)]
    assert report.task_line(points[1]).startswith("  by task: multiplication 1.000, tic_tac_toe ")
    assert report.task_line(points[0]._replace(by_task={})) == ""
    lines: dict[str, list[float]] = {}

    def kept(axis: Any, steps: Any, values: Any, **options: Any) -> Any:
        lines[options.get("label", "")] = list(values)
        return original(axis, steps, values, **options)

    from matplotlib.axes import Axes

    original = Axes.plot
    monkeypatch.setattr(Axes, "plot", kept)
    draw(points, 1, Path("curve.png"))
    assert lines["multiplication"] == [points[0].by_task["multiplication"], 1.0]
    assert {"multiplication", "tic_tac_toe"} <= lines.keys()
    metrics = MeasuredRun(tmp_path, print).evaluation("val", "001", "evaluation")
    assert (metrics["val/success_multiplication"], metrics["val/reward_multiplication"]) == (1.0, 1.0)
    assert (metrics["val/scenarios_multiplication"], metrics["val/scenarios_tic_tac_toe"]) == (8, 4)
    fields = TaskResult(n=4, success=0.5, ci95=(0.15, 0.85), reward=0.25, turns=4, tokens=40, sampled_success=0.75)
    result = {"success": 0.5, "ci95": (0.2, 0.8), "n": 4, "by_task": {"tic_tac_toe": fields.model_dump()}}
    registered = {"name": BOTH, "version": "1"}
    summary = {
        "base": result,
        "trained": result | {"iteration": 1, "policy": "001"},
        "registered": registered,
        "iterations": [],
    }
    monkeypatch.setattr("flows.terminal.health.at_end", lambda *_: [])
    assert (
        ending.result_lines(summary)[1]
        == "          tic_tac_toe 0.500 [0.150, 0.850] of 4 scenarios, taken as independent, sampled 0.750"
    )


# --- The real engine


def check(folder: str) -> None:
    """A batch of both tasks by vLLM: each prompt has the tools of its own task, and the same seed gives the same bytes."""
    from environments import load
    from steps.policy.loading import load_tokenizer
    from steps.sampling import engine

    os.chdir(ROOT)
    policy = Policy(base_model=f"tasks_data/{BOTH}/policy", context=512)
    env: Any = load(BOTH)
    data = env.load(Path("tasks_data"))
    attempts = [(scenario, number) for scenario in env.scenarios(data, "train", 6, 1) for number in range(2)]
    adapter = Path(folder) / "adapter"
    words = ["--params", f"tasks_data/{BOTH}.yaml", "--adapter", f"{adapter}", "--checkpoint", f"{folder}/checkpoint"]
    subprocess.run(
        [sys.executable, "-m", "steps.initialise", *words], check=True, env=os.environ | {"FLYWHEEL_WORKER": "off"}
    )
    limits = Rollout(max_tokens=64)
    first, again = (engine.play(Job(policy, limits, adapter, env, attempts, "001", 1, data)) for _ in range(2))
    assert first == again
    tokenizer = load_tokenizer(policy)
    for (scenario, _), trajectory in zip(attempts, first, strict=True):
        prompt = tokenizer.decode(trajectory.turns[0].prompt_ids)
        assert ("move" in prompt) is (scenario.task == "tic_tac_toe"), prompt
        assert trajectory.error is None
        own = Multiplication if scenario.task == "multiplication" else TicTacToe
        assert len(trajectory.turns) <= own.max_turns
    assert any(len(trajectory.turns) > 1 for trajectory in first)


@pytest.mark.slow
@pytest.mark.nightly  # each task alone meets the real engine in make test, and the mixture a stand-in
def test_a_batch_of_both_with_the_real_engine(tmp_path: Path) -> None:
    """In a process of its own: it would keep this one's only engine."""
    words = f"from tests.stages import test_mixed_tasks as t; t.check({os.fspath(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
