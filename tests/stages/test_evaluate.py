"""The stage evaluate without a model: the decisive attempts, and the sampled ones beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from addons.report import decisions
from addons.report.curve import draw
from environments.base import Message, Scenario
from environments.multiplication import Multiplication
from flows.terminal import report
from steps.core.alike import Groups
from steps.core.evaluations import Evaluation
from steps.core.params import Evaluate, EvaluateParams, Policy, Score
from steps.core.records import PAIRS, Reward, Trajectory, Turn, read_records, write_records
from steps.evaluate import evaluate
from steps.project.chain import write_chain
from steps.registry import paired
from steps.sampling.job import Job
from tests.conftest import ROOT

DATA = ROOT / "tasks_data/multiplication"
SCENARIOS = 12


class FakeEngine:
    """In place of vLLM: greedy attempts are wrong, and sampled ones right where the attempt's number is even."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str, int]] = []  # temperature, prefix, seed

    def play(self, job: Job) -> list[Trajectory]:
        self.calls.append((job.limits.temperature, job.prefix, job.seed))
        is_right = job.limits.temperature > 0 or job.logit_bias == {2: 1.0}
        return [self.episode(scenario, number, job.prefix, is_right) for scenario, number in job.attempts]

    def episode(self, scenario: Scenario, number: int, prefix: str, is_sampled: bool) -> Trajectory:
        answer = scenario.data["answer"] if is_sampled and number % 2 == 0 else -1
        message: Message = {"role": "assistant", "content": str(answer)}
        turn = Turn(
            prompt_ids=(1,), completion_ids=(2,), logprobs=(), message=message, observations=(), finish_reason="stop"
        )
        name = f"{prefix}-{scenario.id}-{number}"
        common = {"scenario_id": scenario.id, "attempt": number, "adapter_hash": "0" * 16, "stop_reason": "done"}
        return Trajectory.model_validate({"id": name, "turns": (turn,)} | common)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr("steps.sampling.engine.play", fake.play)
    return fake


def evaluated(folder: Path, against: Path | None = None, **settings: Any) -> tuple[Evaluation, Path]:
    scenarios: Sequence[Scenario] = Multiplication.scenarios(Multiplication.load(DATA), "val", SCENARIOS, 1)
    (folder / "scenarios").mkdir(exist_ok=True)
    write_records(scenarios, folder / "scenarios/val.parquet")
    sections = {"evaluate": Evaluate(**settings), "score": Score()}
    params = EvaluateParams(task="multiplication", policy=Policy(), **sections)
    out = folder / f"evaluation-{len(settings)}-{settings.get('sampled_attempts')}"
    evaluate(DATA, folder / "scenarios", out, params, adapter=folder / "adapter", against=against)
    return Evaluation.model_validate_json((out / "summary.json").read_text()), out


def expected(folder: Path, success: Sequence[int]) -> tuple[float, float]:
    """The gate's interval of these attempts, in the order of their scenarios."""
    scenarios = read_records(Scenario, folder / "scenarios/val.parquet")
    each = len(success) // len(scenarios)
    names = [Multiplication.cluster(one, None) for one in scenarios for _ in range(each)]
    return paired.share_interval(np.array(success, dtype=float), paired.numbered(names))


def test_sampled_success_stands_beside_the_greedy_one(tmp_path: Path, engine: FakeEngine) -> None:
    summary, out = evaluated(tmp_path, sampled_attempts=1)
    assert engine.calls == [(0.0, "val", 0), (1.0, "sampled", 1)]
    assert (summary.success, summary.sampled_success, summary.sampled_attempts) == (0.0, 1.0, 1)
    assert summary.sampled_ci95 == expected(tmp_path, [1] * SCENARIOS)
    assert len(read_records(Reward, out / "sampled.parquet")) == SCENARIOS
    assert not any(reward.success for reward in read_records(Reward, out / "rewards.parquet"))
    assert "judged" not in json.loads((out / "summary.json").read_text()), "by the rule, nothing speaks of judges"
    assert not (out / PAIRS).exists()


def test_attempts_at_one_scenario_do_not_narrow_the_interval(tmp_path: Path, engine: FakeEngine) -> None:
    summary, out = evaluated(tmp_path, sampled_attempts=4)
    assert (summary.sampled_success, summary.sampled_attempts) == (0.5, 4)
    assert summary.sampled_ci95 == expected(tmp_path, [1, 0, 1, 0] * SCENARIOS)
    alone, copied = ([(str(place), place % 2) for place in range(12)] * times for times in (1, 4))
    (low, high), (least, most) = (paired.attempts_interval(pairs, Groups({})) for pairs in (alone, copied))
    assert least - 0.05 < low < 0.3, "four attempts that all end alike tell no more than one"
    assert most + 0.05 > high > 0.7
    assert len(read_records(Reward, out / "sampled.parquet")) == 4 * SCENARIOS


def test_none_are_made_where_none_are_wanted(tmp_path: Path, engine: FakeEngine) -> None:
    summary, out = evaluated(tmp_path)
    assert engine.calls == [(0.0, "val", 0)]
    assert (summary.sampled_success, summary.sampled_ci95, summary.sampled_attempts) == (None, None, 0)
    assert not (out / "sampled.parquet").exists()


def test_the_curve_and_the_summary_show_it(tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, made = evaluated(tmp_path, sampled_attempts=1)
    monkeypatch.chdir(tmp_path)
    write_chain(1, 1)
    for folder in ("run/000/evaluation", "run/000/test", "run/001/evaluation", "run/001/test"):
        Path(folder).mkdir(parents=True)
        Path(folder, "summary.json").write_text(summary.model_dump_json())
        Path(folder, "rewards.parquet").write_bytes((made / "rewards.parquet").read_bytes())
    before = summary.model_dump(exclude={"sampled_success", "sampled_ci95", "sampled_attempts"})  # an older run's
    Path("run/000/test/summary.json").write_text(json.dumps(before))
    Path("run/receipt.json").write_text("{}")
    Path("run/001/metrics.json").write_text('{"reward_mean": 0.1, "tokens": 1, "collected": 1}')
    shown = report.summary("multiplication", report.point(1), 1, None, 1.0)
    assert shown["base"]["sampled_success"] is None
    assert shown["trained"]["sampled_success"] == 1.0
    assert [row["sampled_success"] for row in shown["iterations"]] == [1.0]
    points = [report.point(0)._replace(sampled=None), report.point(1)]
    draw(points, 1, tmp_path / "with.png")
    draw([point._replace(sampled=None) for point in points], 1, tmp_path / "without.png")
    assert (tmp_path / "with.png").read_bytes() != (tmp_path / "without.png").read_bytes()


def test_the_table_of_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares in % by iteration; a long run shows its first, its last, and some between; without decisions there is none."""
    common: dict[str, Any] = {"split": "val", "adapter_hash": "a", "n": 4, "success": 0.5, "ci95": (0, 1), "reward": 0}
    monkeypatch.chdir(tmp_path)
    for number in range(31):
        counts = {"query": (number, 30)} | ({"cite": (1, 2)} if number else {})
        summary = Evaluation(**common, turns=1, tokens=1, decisions=counts)
        Path(f"run/{number:03d}/evaluation").mkdir(parents=True)
        Path(f"run/{number:03d}/evaluation/summary.json").write_text(summary.text())
    assert decisions.table(2) == [
        "  right decisions, %  base    1    2",
        "               query     0    3    7",
        "                cite     -   50   50",
    ]
    heading = decisions.table(30)[0].split()[3:]
    assert (heading[:2], heading[-1], len(heading)) == (["base", "2"], "30", decisions.COLUMNS)
    bare = Evaluation(**common, turns=1, tokens=1).text()
    assert "decisions" not in bare
    for number in range(2):
        Path(f"run/{number:03d}/evaluation/summary.json").write_text(bare)
    assert decisions.table(1) == []


def test_references_stand_in_the_base_policys_evaluation_alone(tmp_path: Path, engine: FakeEngine) -> None:
    """The script multiplies rightly; with +1 on token 2, and no other bias, the fake policy does, too."""
    base = tmp_path / "base.json"
    base.write_text(json.dumps({"adapter_hash": "0" * 16}))
    summary, _ = evaluated(tmp_path, base, references=True)
    assert summary.references == {"script": 1.0, "base with the best bias on a token": 1.0}
    for place, (against, references) in enumerate(((None, True), (tmp_path, True), (base, False))):
        assert evaluated(tmp_path, against, references=references, sampled_attempts=place)[0].references == {}
