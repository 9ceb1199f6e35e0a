"""Promotion of a task without a rule: a judge compares champion and challenger. Its results are arranged here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from flows import promote
from flows.deployment.settings import PromoteSettings
from flows.promotion import evaluations, judging
from steps.core import params
from steps.core.evaluations import Evaluation, Judged
from steps.core.params import EvaluateParams
from steps.core.records import PAIRS, Pair
from steps.core.section import at
from steps.policy.adapter import adapter_hash
from steps.registry import paired
from tests.flows import test_promote
from tests.flows.test_promote import PARAMS, SCENARIOS, N, Project

SCORE = {
    "judges": {"rule": 0, "ruler": 1},
    "ruler": {"endpoint": {"model": "judge-1", "base_url": "http://127.0.0.1:9/v1"}},
}
RULED = test_promote.write_evaluation


def write_evaluation(folder: Path, good: int, adapter: str, rival: int = 10, rival_hash: str = "") -> None:
    """What the stage evaluate writes where a judge compares: a policy is good at the first `good` scenarios, and is judged
    better where the other is not."""
    import numpy as np

    RULED(folder, 0, adapter)
    score_N = np.array([0.5 + 0.5 * ((place < good) - (place < rival)) for place in range(N)])
    share, low, high = paired.judged_interval(score_N, np.arange(N))
    counts = {
        "wins": int((score_N == 1).sum()),
        "losses": int((score_N == 0).sum()),
        "ties": int((score_N == 0.5).sum()),
    }
    judged = Judged(
        rival="base policy",
        rival_hash=rival_hash or adapter_hash(Path("run/000/adapter")),
        judge="judge-1 abc",
        share=share,
        ci95=(low, high),
        disagreements=2,
        unjudged=0,
        **counts,
    )
    summary = Evaluation.model_validate_json((folder / "summary.json").read_text())
    changed = {"success": None, "ci95": None, "reward": None, "judged": judged}
    (folder / "summary.json").write_text(summary.model_copy(update=changed).text())
    pairs = zip(SCENARIOS, score_N, strict=True)
    lines = [Pair(scenario_id=scenario.id, score=score, reason="").model_dump_json() for scenario, score in pairs]
    (folder / PAIRS).write_text("\n".join(lines) + "\n")


class JudgedEvaluate(test_promote.FakeEvaluate):
    """Stands for the stage evaluate: compares with the evaluation that `--against` names."""

    def __call__(self, stage: str, who: str, arguments: dict[str, str]) -> None:
        read = params.load(arguments["params"], EvaluateParams)
        assert at(read, "score.ruler").endpoint.model == "judge-1"
        assert arguments["rival"] == "challenger"
        policy = adapter_hash(Path(arguments["adapter"]))
        rival = json.loads(Path(arguments["against"], "summary.json").read_text())["adapter_hash"]
        self.asked.append((who, policy, read))
        shutil.rmtree(arguments["evaluation"], ignore_errors=True)
        write_evaluation(Path(arguments["evaluation"]), self.wins[policy], policy, self.wins[rival], rival)


@pytest.fixture
def project(here: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(test_promote, "write_evaluation", write_evaluation)
    monkeypatch.setattr(test_promote, "FakeEvaluate", JudgedEvaluate)
    project = Project(here)
    (here / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"score": SCORE}))
    monkeypatch.setattr(evaluations, "run_stage", project.evaluate)
    monkeypatch.delenv("FLYWHEEL_LEDGER_URL", raising=False)
    monkeypatch.setattr(judging, "show_page", lambda verdict, _: project.pages.append(verdict))
    return project


def test_a_challenger_that_the_judge_prefers_becomes_champion(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.trained("004", 30)
    project.trained("007", 45)
    verdict = promote.promote.fn(PromoteSettings())
    assert verdict is not None
    assert [who for who, *_ in project.evaluate.asked] == ["champion"], "there is no rule for a scripted player"
    assert (verdict.promoted, verdict.against, verdict.look) == (True, "champion", 1)
    assert len(verdict.wins) == 15
    assert verdict.sides["champion"].beaten == pytest.approx(0.5 + 7.5 / N)
    assert verdict.sides["base"].beaten == pytest.approx(0.5 + 17.5 / N)
    shown = capsys.readouterr().out
    assert "judged better than the champion on 0.625 [0.5" in shown
    assert "judge judge-1 abc: 35 won, 0 lost, 25 ties" in shown
    assert "success" not in shown
    assert project.aliases()["champion"] == "2"
    version = project.registry().versions["2"]
    assert version.tags["test_judge"] == "judge-1 abc"
    assert "judged better than the base policy" in version.description
    assert "## Verdict of the gate" in version.description
    assert "No rule tells success; a judge, which may be wrong, compared attempts" in version.description
    again = promote.promote.fn(PromoteSettings(version="2"))
    assert again is None, "it is champion"


def test_one_that_the_judge_does_not_prefer_is_refused_at_a_look_of_its_own(project: Project) -> None:
    project.trained("004", 30)
    project.trained("007", 33)
    first = promote.promote.fn(PromoteSettings(dry_run=True))
    again = promote.promote.fn(PromoteSettings())
    assert first is not None
    assert again is not None
    assert (first.hash, first.promoted, first.look) == (again.hash, False, 1)
    assert len(project.evaluate.asked) == 1, "the same comparison is not made twice"
    project.trained("009", 34)
    second = promote.promote.fn(PromoteSettings())
    assert second is not None
    assert (second.promoted, second.look, second.tail) == (False, 2, pytest.approx(0.05 / 6))
    assert project.aliases()["champion"] == "1"
