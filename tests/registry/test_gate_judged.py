"""The gate where a judge compares: hand-computed shares, what cannot be compared, and how often it promotes by chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from addons.report import card
from environments.base import Scenario
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation, Judged
from steps.core.params import Promote
from steps.core.records import PAIRS, Pair, Reward, Trajectory, write_records
from steps.registry import gate, publish, verdict_report
from steps.registry.gate import Look, Side, decide, read_side

N = 100
SCENARIOS = [Scenario.make("toy", "test", [], {"number": i, "kind": "ab"[i % 2]}) for i in range(N)]
CLEAN = {"passed": True, "scenarios": {"test": N}, "found": {}}


def judged(rival_hash: str, won: int, lost: int, rival: str = "base policy", **measured: float) -> Judged:
    ties = N - won - lost
    counts = {"wins": won, "ties": ties, "losses": lost, "disagreements": 3, "unjudged": 0}
    share = (won + ties / 2) / N
    known = {"judge": "judge-1 abc", "share": share, "ci95": (share - 0.1, share + 0.1), "measured": measured}
    return Judged(rival=rival, rival_hash=rival_hash, **known, **counts)


def side(name: str, rival: str, won: int, lost: int, turns: float = 4.0) -> Side:
    """A policy that is better than its rival at the first scenarios, and worse at the last."""
    score_N = np.full(N, 0.5)
    score_N[:won], score_N[N - lost :] = 1, 0
    return Side(name, score_N, turns, 50.0, judged=judged(rival, won, lost, position_bias=0.04, cost=0.2))


BASE = side("b", "b", 0, 0)


def verdict(challenger: Side, champion: Side | None = None, **more: Any) -> gate.Verdict:
    return decide(Look(SCENARIOS, challenger, BASE, champion), CLEAN, Promote(**more))


def failed(result: gate.Verdict) -> list[str]:
    return [check.name for check in result.checks if not check.passed]


def test_the_judge_decides_as_success_would() -> None:
    result = verdict(side("c", "b", 60, 20))
    assert (result.promoted, result.against) == (True, "base")
    assert result.reason.startswith("judged better than the base on 0.700 [0.6")
    assert result.reason.endswith("of the scenarios (95 %); the lower end must exceed 0.500")
    assert (len(result.wins), len(result.losses)) == (60, 20)
    assert result.sides["challenger"].success is None
    assert result.sides["base"].beaten == pytest.approx(0.7)
    assert result.judges is not None
    assert result.judges["challenger"].judge == "judge-1 abc"
    assert gate.Verdict.model_validate_json(result.text()).text() == result.text()
    scripted = next(check for check in result.checks if check.name == "scripted")
    assert scripted.text == "not measured: a judge compares with the champion and the base policy alone"


@pytest.mark.parametrize(
    ("won", "lost", "more", "expected"),
    [
        (6, 0, {}, []),  # as of 6 scenarios that only the challenger solves: 1 of 64 coins
        (5, 0, {}, ["base"]),  # 1 of 32
        (30, 30, {}, ["base"]),
        (60, 20, {"margin": 0.1}, []),  # 0.70, and 0.62 at the lower end
        (60, 20, {"margin": 0.15}, ["base"]),
    ],
)
def test_the_lower_end_must_exceed_a_half_and_the_margin(won: int, lost: int, more: Any, expected: list[str]) -> None:
    assert failed(verdict(side("c", "b", won, lost), **more)) == expected


def test_the_champion_is_compared_directly() -> None:
    """By its own evaluation against the challenger: what it lost, the challenger won."""
    challenger = side("c", "b", 70, 10)
    result = verdict(challenger, side("champion", "c", 15, 50))
    assert (result.against, result.promoted) == ("champion", True)
    assert result.sides["champion"].beaten == pytest.approx((50 + 35 / 2) / N)
    assert (len(result.wins), len(result.losses)) == (50, 15)
    assert failed(verdict(challenger, side("champion", "c", 30, 30))) == ["champion"]
    assert failed(verdict(side("c", "b", 10, 60), side("champion", "c", 15, 50))) == ["base"]
    with pytest.raises(UserError, match="has not compared the challenger c with the champion champion, but with b"):
        verdict(challenger, side("champion", "x", 15, 50))


def test_two_kinds_cannot_be_compared() -> None:
    ruled = Side("r", np.zeros(N), 4.0, 50.0)
    with pytest.raises(UserError, match="of two kinds: one has rewards by a rule"):
        verdict(side("c", "b", 60, 20), ruled)


def test_slices_are_judged_by_the_same_share() -> None:
    score_N = np.array([1.0, 0.0] * 30 + [1.0, 0.5] * 20)  # kind a always won, kind b 30 of 50 lost
    challenger = Side("c", score_N, 4.0, 50.0, judged=judged("b", 50, 30))
    result = verdict(challenger)
    assert {part.name: round(part.difference, 3) for part in result.slices} == {"kind=a": 0.5, "kind=b": -0.3}
    assert "slices" in failed(result)


def test_the_report_names_the_judge(tmp_path: Path) -> None:
    result = verdict(side("c", "b", 60, 20), side("champion", "c", 15, 50))
    text = verdict_report.table(result)
    assert "| policy | adapter | challenger judged better | 95 % | turns | tokens | failed |" in text
    assert "| champion | champion | 0.675 | 0." in text
    assert "| challenger | c | | | 4.00 | 50.0 | 0 |" in text
    assert text.count("success") == text.count("No rule tells success") == 1
    for shown in (text, verdict_report.note(result)):
        assert "a judge, which may be wrong, compared attempts" in shown
        assert (
            "judge judge-1 abc: 60 won, 20 lost, 20 ties: on 3 the orders disagree; 0 answers, cost 0.2; position bias +0.04"
            in shown
        )
    verdict_report.picture(result, tmp_path / "verdict.png")
    assert (tmp_path / "verdict.png").stat().st_size > 1000


def stored(folder: Path, score: float = 0.7) -> Path:
    """An evaluation of SCENARIOS that a judge made: 60 won, 20 lost."""
    folder.mkdir()
    ids = [scenario.id for scenario in SCENARIOS]
    scores = [1.0] * 60 + [0.5] * 20 + [0.0] * 20
    common = {"split": "test", "adapter_hash": "c", "n": N, "turns": 3, "tokens": 40}
    none = {"success": None, "ci95": None, "reward": None}
    summary = Evaluation(**common, **none, judged=judged("b", 60, 20).model_copy(update={"share": score}))
    (folder / "summary.json").write_text(summary.text())
    lines = [
        Pair(scenario_id=name, score=score, reason="").model_dump_json()
        for name, score in zip(ids, scores, strict=True)
    ]
    (folder / PAIRS).write_text("\n".join(lines) + "\n")
    empty: dict[str, Any] = {"attempt": 0, "adapter_hash": "c", "turns": (), "stop_reason": "done"}
    write_records([Trajectory(id=name, scenario_id=name, **empty) for name in ids], folder / "trajectories.parquet")
    unscored = {"name": "rule", "score": None, "success": None}
    write_records([Reward(trajectory_id=n, scenario_id=n, **unscored) for n in ids], folder / "rewards.parquet")
    return folder


def test_a_side_is_read_from_its_comparisons(tmp_path: Path) -> None:
    read = read_side(stored(tmp_path / "whole"), SCENARIOS)
    assert read.judged is not None
    assert read.success_N.mean() == pytest.approx(0.7)
    with pytest.raises(UserError, match=r"summary\.json does not fit the files beside it"):
        read_side(stored(tmp_path / "other", 0.8), SCENARIOS)
    path = stored(tmp_path / "cut") / PAIRS
    whole = path.read_text()
    for text in ("", whole[: len(whole) // 2], whole.replace(SCENARIOS[0].id, "x")):
        path.write_text(text)
        with pytest.raises(UserError, match=r"pairs\.jsonl .*evaluate it again"):
            read_side(path.parent, SCENARIOS)


def test_a_card_says_who_judged(tmp_path: Path) -> None:
    summary = Evaluation.model_validate_json((stored(tmp_path / "e") / "summary.json").read_text())
    tags = publish.results("test", summary)
    assert tags == {
        "test_judged_share": "0.7",
        "test_judged_ci95": "(0.6, 0.7999999999999999)",
        "test_judge": "judge-1 abc",
        "test_n": "100",
    }
    for text in (card.card(tags, evaluations={"test": summary}), card.card(tags)):
        assert "| judged better than the base policy | on 0.700 of the scenarios |" in text
        assert "| 95 % interval | 0.600 to 0.800 |" in text
        assert "| judge | judge-1 abc |" in text
        assert "The judge is a model, and may be wrong" in text
        assert "uccess" not in text.replace("tells success", "")
    assert "60 won, 20 lost" in card.card(tags, evaluations={"test": summary})
