"""Two policies compared by a judge, which is simulated: wins, losses and ties, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from addons.judges import pairs, prompts
from addons.judges.section import Ruler
from addons.models import client
from addons.models.section import Endpoint
from environments.base import Scenario
from environments.kit.agents import Result
from environments.multiplication import Multiplication
from environments.multiplication import scenario as product
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation, Judged
from steps.core.params import Evaluate, EvaluateParams, Judges, Policy, Score
from steps.core.records import Judgement, Order, Reward, Trajectory, write_records
from steps.judging import rule
from tests.support.judge_server import Judge
from tests.support.judged import attempt, words
from tests.support.openai_server import Server
from tests.support.ruleless import Ruleless

N = 12
SCENARIOS = [product("test", 20, 10 + number) for number in range(N)]
RULED = Score(judges=Judges(rule=1))


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(client, "SHORTEST", 0.01)


def played(qualities: Sequence[float | None], adapter: str) -> list[Trajectory]:
    """An attempt at each scenario that states its quality; None: it failed."""
    made = []
    for scenario, quality in zip(SCENARIOS, qualities, strict=True):
        said = words("" if quality is None else f"quality {quality:.2f}")
        stop = {"stop": "error", "error": "it broke"} if quality is None else {}
        made.append(attempt(scenario, 0, said, **stop).model_copy(update={"adapter_hash": adapter}))
    return made


def stored(folder: Path, trajectories: Sequence[Trajectory], split: str = "test", is_judged: bool = True) -> Path:
    """An evaluation as far as it is read to compare with it."""
    folder.mkdir()
    none = {"wins": 0, "ties": N, "losses": 0, "disagreements": 0, "unjudged": 0}
    judged = Judged(rival="base policy", rival_hash="b", judge="j", share=0.5, ci95=(0.5, 0.5), **none)
    known = {"success": None, "ci95": None, "reward": None, "judged": judged}
    ruled = {"success": 0.5, "ci95": (0.4, 0.6), "reward": 0.1}
    common = {"split": split, "adapter_hash": trajectories[0].adapter_hash, "n": N, "turns": 1, "tokens": 1}
    summary = Evaluation.model_validate(common | (known if is_judged else ruled))
    (folder / "summary.json").write_text(summary.text())
    write_records(trajectories, folder / "trajectories.parquet")
    return folder


def settings(server: Server, model: str, probes: float = 0.0) -> Ruler:
    return Ruler(endpoint=Endpoint(model=model, base_url=server.url, price_out=1.0), probes=probes, orders=6)


def test_wins_losses_and_ties(tmp_path: Path) -> None:
    """Five won, two lost, one equal, and of four that failed: two by this policy alone, one by the other, one by both."""
    own = [0.9, 0.9, 0.8, 0.8, 0.7, 0.1, 0.1, 0.5, None, None, 0.1, None]
    other = [0.5, 0.4, 0.3, 0.2, 0.1, 0.5, 0.9, 0.5, 0.2, 0.2, None, None]
    against = stored(tmp_path / "base", played(other, "b"))
    judge = Judge()
    with Server(judge) as server:
        call = (
            Ruleless,
            None,
            SCENARIOS,
            played(own, "c"),
            settings(server, judge.model, 1.0),
            "",
            pairs.Rival(against, "base policy", "test"),
        )
        result, found = pairs.judged(*call)
        calls = server.calls
        again = pairs.judged(*call)
        assert server.calls == calls, "the same attempts are not judged again"
    assert again[1] == found
    assert [pair.score for pair in found] == [1, 1, 1, 1, 1, 0, 0, 0.5, 0, 0, 1, 0.5]
    assert calls == 7 * 4, "both orders, a retest and a canary; nothing about what failed or reads alike"
    assert found[7].reason == "the attempts read alike"
    assert [pair.reason for pair in found[8:]] == [
        *["this attempt failed"] * 2,
        "the other attempt failed",
        "both attempts failed",
    ]
    assert (result.wins, result.ties, result.losses, result.disagreements, result.unjudged) == (6, 2, 4, 0, 0)
    assert result.share == pytest.approx(7 / 12)
    assert result.ci95[0] < 0.5 < result.ci95[1]
    assert (result.rival, result.rival_hash) == ("base policy", "b")
    assert result.judge.startswith(judge.model)
    assert result.measured["position_bias"] == pytest.approx(0)
    assert result.measured["retest_spread"] == pytest.approx(0)
    assert result.measured["cost"] > 0
    assert "position bias +0.00" in result.faults()
    assert "6 won, 4 lost, 2 ties" in result.faults()


def test_the_other_way_round_is_the_mirror_image_and_costs_nothing(tmp_path: Path) -> None:
    own, other = [0.9] * 8 + [0.1] * 4, [0.5] * 12
    judge = Judge()
    with Server(judge) as server:
        options = settings(server, judge.model)
        first = pairs.compare(Ruleless, SCENARIOS, played(own, "c"), played(other, "b"), options, "")
        calls = server.calls
        second = pairs.compare(Ruleless, SCENARIOS, played(other, "b"), played(own, "c"), options, "")
        assert server.calls == calls
    assert [1 - pair.score for pair in second] == [pair.score for pair in first]


def test_a_judge_that_prefers_the_first_place_decides_nothing(tmp_path: Path) -> None:
    judge = Judge(lambda shared, own: 0.5, position_bias=0.4)
    against = stored(tmp_path / "base", played([0.2] * N, "b"))
    with Server(judge) as server:
        options = settings(server, judge.model)
        result, found = pairs.judged(
            Ruleless, None, SCENARIOS, played([0.8] * N, "c"), options, "", pairs.Rival(against, "base policy", "test")
        )
    assert {(pair.score, pair.reason) for pair in found} == {(0.5, "the orders disagree")}
    assert (result.share, result.disagreements) == (0.5, N)
    assert result.measured["position_bias"] == pytest.approx(0.4)
    assert "on 12 the orders disagree" in result.faults()


def judgement(*scores: tuple[float | None, float | None], problem: str = "") -> Judgement:
    """Of the attempts "own" and "other", one pair of scores for each order."""
    orders = [
        Order(attempts=names, scores=(own, other) if names[0] == "own" else (other, own), calls=("k",), problem=problem)
        for names, (own, other) in zip((("own", "other"), ("other", "own")), scores, strict=False)
    ]
    reasons = {"own": "good", "other": "better"}
    return Judgement(scenario_id="s", judge="j", scores={}, orders=tuple(orders), problem=problem, reasons=reasons)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (judgement((0.9, 0.1), (0.6, 0.5)), (1.0, "good")),
        (judgement((0.1, 0.9), (0.5, 0.6)), (0.0, "better")),
        (judgement((0.9, 0.1), (0.1, 0.9)), (0.5, "the orders disagree")),
        (judgement((0.9, 0.1), (0.5, 0.5)), (0.5, "the scores are equal, in one order at least")),
        (judgement((0.5, 0.5), (0.5, 0.5)), (0.5, "the scores are equal, in one order at least")),
        (judgement((0.9, 0.1), (None, 0.3), problem="no JSON"), (0.5, "not judged: no JSON")),
        (judgement(problem="too long"), (0.5, "not judged: too long")),
        (judgement(problem=f"{prompts.ALIKE}: all 2 attempts read alike"), (0.5, "the attempts read alike")),
    ],
)
def test_a_win_needs_both_orders(given: Judgement, expected: tuple[float, str]) -> None:
    assert pairs.decided(given, "own", "other") == expected


def test_answers_that_cannot_be_used_are_ties_and_counted(tmp_path: Path) -> None:
    judge = Judge(faults=0.6, seed=3)
    against = stored(tmp_path / "base", played([0.2] * N, "b"))
    with Server(judge, judge.fail) as server:
        options = settings(server, judge.model)
        options = options.model_copy(update={"endpoint": options.endpoint.model_copy(update={"timeout_seconds": 1})})
        call = (
            Ruleless,
            None,
            SCENARIOS,
            played([0.8] * N, "c"),
            options,
            "",
            pairs.Rival(against, "base policy", "test"),
        )
        result, found = pairs.judged(*call)
    assert result.unjudged == sum(pair.reason.startswith("not judged") for pair in found) > 0
    assert result.wins == N - result.unjudged
    assert f"{result.unjudged} could not be judged" in result.faults()


def test_the_base_policy_itself_asks_nobody(tmp_path: Path) -> None:
    options = Ruler(endpoint=Endpoint(model="m", base_url="http://127.0.0.1:9/v1"))
    (tmp_path / "base.json").write_text('{"adapter_hash": "b"}')
    own = played([0.5] * N, "b")
    for against in (tmp_path / "base.json", stored(tmp_path / "evaluation", own)):
        result, found = pairs.judged(
            Ruleless, None, SCENARIOS, own, options, "", pairs.Rival(against, "base policy", "test")
        )
        assert (result.share, result.ci95, result.ties) == (0.5, (0.5, 0.5), N)
        assert {pair.judgement for pair in found} == {None}
    with pytest.raises(UserError, match="names b as the base policy, and this is c"):
        pairs.judged(
            Ruleless,
            None,
            SCENARIOS,
            played([0.5] * N, "c"),
            options,
            "",
            pairs.Rival(tmp_path / "base.json", "base policy", "test"),
        )


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    options = Ruler(endpoint=Endpoint(model="m", base_url="http://127.0.0.1:9/v1"))
    own, other = played([0.5] * N, "c"), played([0.4] * N, "b")

    def compared(against: Path | None) -> None:
        pairs.judged(Ruleless, None, SCENARIOS, own, options, "", pairs.Rival(against, "base policy", "test"))

    with pytest.raises(UserError, match="name its evaluation of the same split with --against"):
        compared(None)
    with pytest.raises(UserError, match="have rewards, and those of this policy have none"):
        compared(stored(tmp_path / "ruled", other, is_judged=False))
    with pytest.raises(UserError, match="is of the split val and 12 scenarios, this evaluation of test and 12"):
        compared(stored(tmp_path / "val", other, split="val"))
    with pytest.raises(UserError, match="only the same scenarios can be compared"):
        compared(stored(tmp_path / "order", other[::-1]))
    with pytest.raises(UserError, match=r"the task has no rule, so only a judge .* set score\.judges\.rule: 0"):
        pairs.settings_of(
            EvaluateParams(task="multiplication", policy=Policy(), evaluate=Evaluate(), score=RULED),
            "the task has no rule",
        )


class Agent(Multiplication):
    """Stands for an agent of the user's own: only its flags are read."""

    is_agent = True


def rewards(*scores: float | None) -> list[Reward]:
    return [
        Reward(trajectory_id=f"t{place}", scenario_id="s", name="rule", score=score, success=False)
        for place, score in enumerate(scores)
    ]


def test_which_tasks_have_a_rule_is_seen_by_their_attempts() -> None:
    ended, broken = played([0.5, 0.5, *[None] * 10], "a")[:2], played([None] * N, "a")[:1]
    assert rule.has_rule(Agent, rewards(1.0, 0.0), ended, RULED)
    assert not rule.has_rule(Agent, rewards(None, None), ended, RULED)
    assert rule.has_rule(Agent, rewards(1.0, None), [ended[0], broken[0]], RULED), "a failed attempt has no reward"
    full = broken[0].model_copy(update={"stop_reason": "context", "error": "BadRequestError: no room was left"})
    assert rule.has_rule(Agent, rewards(1.0, None), [ended[0], full], RULED), "nor has one whose context was full"
    assert not rule.has_rule(Ruleless, rewards(None, None), ended, RULED)
    with pytest.raises(UserError, match=r"1 attempts have a reward, and 1 have none \(t1 is the first\)"):
        rule.has_rule(Agent, rewards(1.0, None), ended, RULED)
    alone = Score.model_validate({"judges": {"ruler": 1}, "ruler": {"endpoint": {"model": "m"}}})
    assert [rule.has_rule(Agent, rewards(None), broken, score) for score in (RULED, alone)] == [True, False]


def test_a_judge_sees_what_an_agent_returned() -> None:
    scenario: Scenario = SCENARIOS[0]
    first = attempt(scenario, 0, words("It is done."))
    second = first.model_copy(update={"id": "second", "result": Result(output="the answer: 42")})
    shown = prompts.prepare(prompts.Group(scenario, [first, second]), 10_000)
    assert [one.lines for one in shown.attempts] == [(), ('{"output": "the answer: 42"}',)]
    assert (
        len(prompts.prepare(prompts.Group(scenario, [first, first.model_copy(update={"id": "x"})]), 10_000).attempts)
        == 1
    )


def test_the_share_and_its_interval() -> None:
    from steps.registry.paired import judged_interval, paired_interval

    score_N = np.array([1.0] * 30 + [0.5] * 50 + [0.0] * 20)
    alone_N = np.arange(100)
    share, low, high = judged_interval(score_N, alone_N)
    difference, below, above = paired_interval(score_N == 1, score_N == 0, alone_N)
    assert share == pytest.approx(score_N.mean()) == pytest.approx(0.55)
    assert (low, high) == (0.5 + below / 2, 0.5 + above / 2)
    assert difference == pytest.approx(0.1)
