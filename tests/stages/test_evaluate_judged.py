"""The stage evaluate of a task without a rule, from its files to what the flow shows. Engine and judge are simulated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader

from addons.judges.section import Ruler
from addons.lineage.__main__ import share_text
from addons.models import client
from addons.models.section import Endpoint
from addons.report.curve import draw
from environments.base import Message, Scenario
from environments.multiplication import Multiplication
from flows.terminal import report
from flows.terminal.display import RunDisplay
from flows.training import ending
from flows.training.ending import best
from steps import score as scoring
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.params import Evaluate, EvaluateParams, Policy, Score
from steps.core.records import PAIRS, Pair, Reward, Trajectory, Turn, read_records, write_records
from steps.evaluate import evaluate
from steps.project.chain import write_chain
from steps.sampling.job import Job
from steps.tracking.measured import MeasuredRun
from tests.conftest import ROOT
from tests.support.judge_server import Judge
from tests.support.openai_server import Server
from tests.support.ruleless import Ruleless
from viewer.formats import FILTERS

DATA = ROOT / "tasks_data/multiplication"
SCENARIOS = 24
TASK = "tests.support.ruleless"


class FakeEngine:
    """In place of vLLM: an adapter's attempts state the quality that stands in its file, less at every fourth scenario."""

    def __init__(self) -> None:
        self.prefixes: list[str] = []

    def play(self, job: Job) -> list[Trajectory]:
        assert job.adapter is not None
        self.prefixes.append(job.prefix)
        quality = float((job.adapter / "quality").read_text())
        return [
            self.episode(scenario, quality - 0.5 * (place % 4 == 0), job.prefix, job.adapter.parent.name)
            for place, (scenario, _) in enumerate(job.attempts)
        ]

    def episode(self, scenario: Scenario, quality: float, prefix: str, adapter: str) -> Trajectory:
        message: Message = {"role": "assistant", "content": f"quality {max(0.0, quality):.2f}"}
        tokens = dict[str, Any](prompt_ids=(1,), completion_ids=(2,), logprobs=(0.0,), finish_reason="stop")
        turn = Turn(message=message, observations=(), **tokens)
        common = {"scenario_id": scenario.id, "attempt": 0, "adapter_hash": adapter, "stop_reason": "done"}
        return Trajectory.model_validate({"id": f"{prefix}-{scenario.id}-0", "turns": (turn,)} | common)


class Run:
    """A folder run/ in which iterations are evaluated by a simulated judge."""

    def __init__(self, folder: Path, server: Server, model: str) -> None:
        self.folder = folder / "run"
        endpoint = Endpoint(model=model, base_url=server.url, price_out=1.0)
        self.score = Score.model_validate({"judges": {"ruler": 1}, "ruler": Ruler(endpoint=endpoint, probes=0.25)})
        (self.folder / "scenarios").mkdir(parents=True)
        for split in ("val", "test"):
            made = Ruleless.scenarios(Ruleless.load(DATA), split, SCENARIOS, 1)
            write_records(made, self.folder / f"scenarios/{split}.parquet")
        self.adapter("000", 0.60)
        (self.folder / "000/base.json").write_text('{"adapter_hash": "000"}')

    def adapter(self, number: str, quality: float) -> None:
        (self.folder / number / "adapter").mkdir(parents=True)
        (self.folder / number / "adapter/quality").write_text(str(quality))

    def evaluate(self, number: str, split: str = "val", against: str | None = None, **changed: Any) -> Evaluation:
        name = {"val": "evaluation", "test": "test"}[split]
        against = against or (f"000/{name}" if number != "000" else "000/base.json")
        sections: dict[str, Any] = {"evaluate": Evaluate(), "score": self.score} | changed
        params = EvaluateParams(task=TASK, policy=Policy(), **sections)
        out, adapter = self.folder / number / name, self.folder / number / "adapter"
        evaluate(DATA, self.folder / "scenarios", out, params, split, adapter, self.folder / against)
        return Evaluation.model_validate_json((out / "summary.json").read_text())


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr("steps.sampling.engine.play", fake.play)
    return fake


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(Judge()) as server:
        yield server


@pytest.fixture
def run(tmp_path: Path, server: Server, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(client, "SHORTEST", 0.01)
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path, server, "simulated")


def test_an_evaluation_says_how_often_it_is_judged_better(
    run: Run, server: Server, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    base = run.evaluate("000")
    assert server.calls == 0, "the base policy against itself"
    assert (base.share, base.interval, base.success, base.reward) == (0.5, (0.5, 0.5), None, None)
    run.adapter("001", 0.60)
    assert run.evaluate("001").share == 0.5
    assert server.calls == 0, "attempts that read alike"
    run.adapter("002", 0.90)
    summary = run.evaluate("002")
    assert summary.judged is not None
    assert (summary.share, summary.judged.wins, summary.n) == (1.0, SCENARIOS, SCENARIOS)
    assert (summary.judged.rival_hash, summary.adapter_hash) == ("000", "002")
    assert 2 * SCENARIOS < server.calls <= 2.8 * SCENARIOS, "both orders, and some probes"
    assert engine.prefixes == ["val"] * 3, "sampled attempts have no rule to be counted by"
    shown = capsys.readouterr().out
    assert "val: judged better than the base policy on 1.000 [0.8" in shown
    assert "position bias" in shown
    assert "test-retest spread" in shown
    assert "success" not in shown
    found = (run.folder / "002/evaluation" / PAIRS).read_text().splitlines()
    assert [Pair.model_validate_json(line).score for line in found] == [1.0] * SCENARIOS
    kept = read_records(Reward, run.folder / "002/evaluation/rewards.parquet")
    assert {(reward.success, reward.score, reward.name) for reward in kept} == {(None, None, "ruler")}
    assert kept[1].explanation == "judged better than the attempt of the base policy: it is worth 0.9"


def test_what_the_flow_shows_and_chooses(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for number, quality in (("000", 0.60), ("001", 0.55), ("002", 0.80)):
        if number != "000":
            run.adapter(number, quality)
        run.evaluate(number)
        (run.folder / number / "metrics.json").write_text('{"reward_mean": 0.1, "tokens": 1, "collected": 1}')
        (run.folder / number / "fates.json").write_text('{"t": "gradient"}')
    write_chain(2, 2)
    curve = [report.point(number) for number in range(3)]
    assert [(point.success, point.reward) for point in curve] == [(0.5, None), (0.0, None), (1.0, None)]
    assert best([], curve).iteration == 2
    assert best([], curve[:2]).iteration == 1, "the base is no candidate"
    assert best([curve[0]._replace(origin="sft")], curve[:2]).name == "sft", "what the iterations began with is"
    display = RunDisplay()
    for point in curve:
        display.row(point, None, None)
    titles = [str(column.header) for column in display._table().columns]
    assert "validation judged better than the base policy" in titles
    assert not any("success" in title for title in titles)
    draw(curve, 2, run.folder / "curve.png")
    run.evaluate("000", "test")
    run.evaluate("002", "test")
    (run.folder / "receipt.json").write_text('{"reason": "none"}')
    summary = report.summary(TASK, curve[2], 2, None, 1.0)
    assert summary["iterations"][1]["judged_better_than_the_base_policy"] == 1.0
    assert "success" not in summary["iterations"][1]
    lines = ending.result_lines(summary)
    assert lines[0].startswith(" trained: judged better than the base policy on 1.000 [0.8")
    assert "judge simulated" in lines[1]
    assert not any("success" in line for line in lines)
    assert json.loads(json.dumps(summary)) == summary


def test_trackers_and_pages_say_that_a_judge_measured_it(run: Run, tmp_path: Path) -> None:
    run.evaluate("000")
    run.adapter("001", 0.90)
    run.evaluate("001")
    shutil.copytree(run.folder / "001/evaluation", run.folder / "009/evaluation")  # without an adapter to check it by
    metrics = MeasuredRun(tmp_path, print).evaluation("val", "009", "evaluation")
    assert (metrics["val/judged_better"], metrics["val/judge_wins"], metrics["val/judge_losses"]) == (1.0, SCENARIOS, 0)
    assert metrics["val/judge_cost"] > 0
    assert {"val/judge_position_bias", "val/judge_retest_spread"} <= metrics.keys()
    assert not any("success" in name or "reward" in name for name in metrics)
    evaluation = json.loads((run.folder / "009/evaluation/summary.json").read_text())
    assert share_text(evaluation) == f"judged better than the base policy on 1.000 of {SCENARIOS}"
    environment = Environment(loader=FileSystemLoader(ROOT / "viewer/templates"), autoescape=True)
    environment.filters |= FILTERS
    macro: Any = getattr(environment.get_template("parts.html").module, "outcome")  # noqa: B009  (no type checker knows it)
    outcomes = ((None, None), (0.8, None), (0.8, True), (0.1, False))
    texts = [macro({"reward": reward, "success": success}) for reward, success in outcomes]
    assert texts == ["not scored", "scored by a judge alone", "success", "no success"]


def other_judge(server: Server) -> Evaluate:
    """A judge that training does not ask, on the same server."""
    endpoint = Endpoint(model="held out", base_url=server.url)
    return Evaluate.model_validate({"judge": Ruler(endpoint=endpoint, probes=0), "sampled_attempts": 0})


def test_a_judge_that_training_does_not_ask_tells_the_result(run: Run, server: Server) -> None:
    run.evaluate("000", evaluate=other_judge(server))
    run.adapter("001", 0.90)
    summary = run.evaluate("001", evaluate=other_judge(server))
    assert summary.judged is not None
    assert summary.judged.judge.startswith("held out ")
    assert {body["model"] for body in server.bodies} == {"held out"}
    assert summary.held_out is None, "it is the result itself"


def test_beside_a_rule_the_judge_is_a_second_opinion(
    run: Run, server: Server, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the rule of multiplication no attempt is right: they all state a quality, which the judge goes by."""
    data, out = DATA, run.folder / "001/evaluation"
    made = Multiplication.scenarios(Multiplication.load(DATA), "val", SCENARIOS, 1)
    write_records(made, run.folder / "scenarios/val.parquet")
    run.adapter("001", 0.90)
    params = EvaluateParams(task="multiplication", policy=Policy(), evaluate=other_judge(server), score=Score())

    def evaluated(number: str, against: Path | None) -> Evaluation:
        folder = run.folder / number
        shutil.rmtree(folder / "evaluation", ignore_errors=True)
        evaluate(data, run.folder / "scenarios", folder / "evaluation", params, "val", folder / "adapter", against)
        return Evaluation.model_validate_json((folder / "evaluation/summary.json").read_text())

    base = evaluated("000", run.folder / "000/base.json")
    assert base.held_out is not None
    assert (base.held_out.share, base.success, server.calls) == (0.5, 0.0, 0)
    summary = evaluated("001", run.folder / "000/evaluation")
    assert summary.held_out is not None
    assert (summary.held_out.wins, summary.success, summary.judged) == (SCENARIOS, 0.0, None)
    assert summary.sentence().startswith("success 0.000"), "the rule decides"
    assert "val: judged better than the base policy on 1.000" in capsys.readouterr().out
    assert len((out / PAIRS).read_text().splitlines()) == SCENARIOS
    shutil.copytree(out, run.folder / "009/evaluation")
    metrics = MeasuredRun(run.folder.parent, print).evaluation("val", "009", "evaluation")
    assert (metrics["val/success"], metrics["val/held_out_better"]) == (0.0, 1.0)
    assert evaluated("001", None).held_out is None
    assert "evaluate.judge is not asked: --against names no evaluation" in capsys.readouterr().out
    ruleless = json.loads((run.folder / "000/evaluation/summary.json").read_text()) | {"judged": summary.held_out}
    (run.folder / "000/evaluation/summary.json").write_text(Evaluation.model_validate(ruleless).text())
    with pytest.raises(UserError, match=r"have none, and those of this policy have rewards: the two kinds cannot"):
        evaluated("001", run.folder / "000/evaluation")


def test_what_is_missing_is_said_before_anything_is_sampled(run: Run, engine: FakeEngine) -> None:
    with pytest.raises(UserError, match=r"ruleless has no rule, so only a judge .* score\.ruler\.endpoint\.model"):
        run.evaluate("000", score=Score())
    params = EvaluateParams(task=TASK, policy=Policy(), evaluate=Evaluate(), score=run.score)
    with pytest.raises(UserError, match="name its evaluation of the same split with --against"):
        evaluate(DATA, run.folder / "scenarios", run.folder / "x", params, "val", run.folder / "000/adapter")
    assert engine.prefixes == []


def test_a_batch_without_rewards_needs_a_judge_and_has_no_success(run: Run) -> None:
    scenarios = read_records(Scenario, run.folder / "scenarios/val.parquet")[:2]
    fake = FakeEngine()
    batch = [fake.episode(scenario, quality, "001", "000") for scenario in scenarios for quality in (0.3, 0.8)]
    batch = [trajectory.model_copy(update={"id": f"t{place}"}) for place, trajectory in enumerate(batch)]
    write_records(batch, run.folder / "trajectories.parquet")
    write_records(scenarios, run.folder / "scenarios/train.parquet")
    rubric = run.folder / "rubric.md"
    rubric.write_text("")

    def scored(score: Score) -> list[Reward]:
        params = scoring_params(score)
        outputs = {"rewards": run.folder / "rewards.parquet", "successes": run.folder / "successes.json"}
        scoring.score(rubric, run.folder / "scenarios", run.folder / "trajectories.parquet", params=params, **outputs)
        return read_records(Reward, outputs["rewards"])

    with pytest.raises(
        UserError, match=r"score\.judges\.rule is 1, .* have no reward, so that a judge must score them"
    ):
        scored(Score())
    rewards = scored(run.score)
    assert [(reward.score, reward.success) for reward in rewards] == [(0.3, None), (0.8, None)] * 2
    assert json.loads((run.folder / "successes.json").read_text()) == [{}], "nothing for a curriculum to learn"


def scoring_params(score: Score) -> Any:
    from steps.core.params import ScoreParams

    return ScoreParams(task=TASK, score=score)
