"""The gate: hand-computed differences and intervals, every check on its own, and what is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from environments.base import Scenario
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.params import Promote
from steps.core.records import Reward, Trajectory, write_records
from steps.core.stats import slices_of, wilson
from steps.registry import checks, gate, verdict_report
from steps.registry.gate import Look, Side, decide, read_side

KINDS = ("sender", "month")


def make_scenarios(n: int, split: Any = "test") -> list[Scenario]:
    """Scenarios of two kinds in turn; the last one is of a third."""
    kinds = [KINDS[i % 2] for i in range(n - 1)] + ["rare"]
    return [Scenario.make("toy", split, [], {"number": i, "kind": kind}) for i, kind in enumerate(kinds)]


def side(name: str, wins: list[int] | range, n: int = 100, turns: float = 4.0, tokens: float = 50.0) -> Side:
    """A policy that succeeds at the given places alone."""
    success_N = np.zeros(n)
    success_N[list(wins)] = 1
    return Side(name, success_N, turns, tokens)


def clean(n: int = 100, **changed: Any) -> dict[str, Any]:
    return {"passed": True, "scenarios": {"test": n}, "found": {"content": 0, "source": 0}} | changed


def looked(
    challenger: Side, base: Side, number: int = 1, clusters: list[str] | None = None, **more: Any
) -> gate.Verdict:
    """A look at 100 scenarios."""
    compared = Look(make_scenarios(100), challenger, base, clusters=clusters, number=number)
    return decide(compared, clean(), Promote(**more))


def verdict(challenger: Side, base: Side, report: Any = None, **more: Any) -> gate.Verdict:
    """Of 100 scenarios; more: champion, scripted, and parameters."""
    sides = {name: more.pop(name, None) for name in ("champion", "scripted")}
    return decide(Look(make_scenarios(100), challenger, base, **sides), report or clean(), Promote(**more))


def failed(result: gate.Verdict) -> list[str]:
    assert result.promoted == all(check.passed for check in result.checks)
    return [check.name for check in result.checks if not check.passed]


def check(result: gate.Verdict, name: str) -> checks.Check:
    return next(row for row in result.checks if row.name == name)


# --- The decision


def test_one_that_is_better_is_promoted_and_the_verdict_says_why() -> None:
    result = verdict(side("c", range(20, 100)), side("b", range(60)))
    assert (result.promoted, result.against, result.n) == (True, "base", 100)
    ids = [scenario.id for scenario in make_scenarios(100)]
    assert result.wins == tuple(ids[60:])
    assert result.losses == tuple(ids[:20])
    assert check(result, "base").measured == pytest.approx(0.05, abs=0.02)  # 0.2 - 1.96 × √(0.6 - 0.04) / 10
    assert result.reason.startswith("success 0.800 against 0.600 of the base: +0.200 [+0.0")
    assert [row.name for row in result.checks] == [
        "champion",
        "base",
        "scripted",
        "slices",
        "turns",
        "tokens",
        "contamination",
    ]
    assert check(result, "champion").text == "there is none: the base policy stands in for it"
    assert {name: shown.adapter_hash for name, shown in result.sides.items()} == {"challenger": "c", "base": "b"}
    assert result.parameters["false_promotions"] == 0.05
    assert (result.look, result.tail, result.clusters, result.largest) == (1, 0.025, 100, 1)
    assert verdict(side("c", range(20, 100)), side("b", range(60))).text() == result.text()
    assert json.loads(result.text())["wins"] == list(result.wins)


@pytest.mark.parametrize(
    ("challenger", "more", "expected"),
    [
        (range(50), {}, ["base"]),  # the same scenarios: no difference, and an interval of nothing
        (range(55), {}, ["base"]),  # 5 won and none lost: a coin does that in 1 of 32 cases, which is more than 0.025
        (range(56), {}, []),  # 6 won: 1 of 64
        (range(70), {"margin": 0.1}, []),  # +0.20, and 0.11 at the lower end
        (range(70), {"margin": 0.15}, ["base"]),
        (range(30), {}, ["base", "slices"]),
    ],
)
def test_the_lower_end_must_exceed_the_margin(challenger: range, more: Any, expected: list[str]) -> None:
    assert failed(verdict(side("c", challenger), side("b", range(50)), **more)) == expected


def test_alike_scenarios_count_as_clusters() -> None:
    """20 of 100 won, in two clusters of ten: two clusters are no proof, and twenty scenarios would be."""
    challenger, base = side("c", range(70)), side("b", range(50))
    clusters = [str(number // 10) for number in range(100)]
    judged = partial(looked, challenger, base)
    result = judged(clusters=clusters)
    assert failed(result) == ["base"]
    assert (result.clusters, result.largest) == (10, 10)
    interval = result.sides["challenger"].ci95
    assert interval is not None
    assert interval[0] < wilson(70, 100)[0] - 0.1
    assert failed(judged(clusters=[str(number) for number in range(100)])) == failed(judged()) == []


def test_each_further_look_at_a_split_must_prove_more() -> None:
    """7 won and none lost: 1 of 128 coins does that, which is below the 0.025 of the first look, and a half of it is not
    below the 0.00417 of the third."""
    judged = partial(looked, side("c", range(57)), side("b", range(50)))
    assert [judged(look).promoted for look in (1, 3)] == [True, False]
    result = judged(3)
    assert result.look == 3
    assert result.tail == pytest.approx(0.05 / 12)
    assert "(99.17 %); the lower end must exceed +0.000" in result.reason
    assert not judged(false_promotions=0.01).promoted
    widest = looked(side("c", range(100)), side("b", range(0)), 20)
    assert widest.promoted, "a large gain is promoted at any look"


def test_an_older_verdict_keeps_its_text_and_its_hash() -> None:
    result = verdict(side("c", range(80)), side("b", range(50)))
    fields = json.loads(result.text())
    for name in ("look", "tail", "clusters", "largest", "clustered", "power"):
        del fields[name]
    for part in fields["slices"]:
        del part["fallen"]
    older = json.dumps(fields, indent=2) + "\n"
    assert gate.Verdict.model_validate_json(older).text() == older
    assert verdict_report.basis(gate.Verdict.model_validate_json(older)) == ""
    assert "look" not in verdict_report.note(gate.Verdict.model_validate_json(older))


def test_the_champion_stands_before_the_base_policy() -> None:
    champion = side("champion", range(88))
    result = verdict(side("c", range(80)), side("b", range(10)), champion=champion)
    assert (result.against, failed(result)) == ("champion", ["champion"])
    assert check(result, "base").passed
    result = verdict(side("c", range(100)), side("b", range(10)), champion=champion)
    assert failed(result) == []
    assert result.losses == ()
    assert len(result.wins) == 12


def test_better_than_a_bad_champion_is_not_enough() -> None:
    result = verdict(side("c", range(40)), side("b", range(50)), champion=side("champion", range(20)))
    assert failed(result) == ["base"]
    assert check(result, "base").bound == 0
    same = verdict(side("c", range(50)), side("b", range(50)), champion=side("champion", range(20)))
    assert failed(same) == ["base"], "not above"


def test_the_scripted_player_is_shown_and_decides_nothing() -> None:
    result = verdict(side("c", range(80)), side("b", range(30)), scripted=side("scripted", range(90)))
    assert failed(result) == []
    assert check(result, "scripted").measured == pytest.approx(-0.1)
    assert check(result, "scripted").bound is None


def test_no_slice_may_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sender` is every even place (50), `month` every odd one but the last (49), `rare` the last alone."""
    base = side("b", range(0, 40, 2))  # 20 of the 50 of sender
    falls = side("c", [*range(0, 28, 2), *range(1, 99, 2)])  # 14 of them, and all of month
    result = verdict(falls, base)
    assert failed(result) == ["slices"]
    assert check(result, "slices").measured == pytest.approx(-6 / 50)
    assert check(result, "slices").text == "fallen: kind=sender (-0.120); too small to judge: kind=rare (1)"
    assert [(row.name, row.n, row.judged) for row in result.slices] == [
        ("kind=month", 49, True),
        ("kind=rare", 1, False),
        ("kind=sender", 50, True),
    ]
    just = side("c", [*range(0, 30, 2), *range(1, 99, 2)])  # 15: a drop of 0.1 is not more than 0.1
    assert failed(verdict(just, base)) == []
    assert failed(verdict(falls, base, max_slice_drop=0.12)) == []
    monkeypatch.setattr(checks, "MIN_SLICE", 51)
    assert failed(verdict(falls, base)) == []


def test_a_slice_refuses_on_evidence_and_not_by_chance() -> None:
    """Twelve slices of 20, of which one fell by 3 scenarios in 20 (0.15) and the others gained; then by 10."""
    scenarios = [Scenario.make("toy", "test", [], {"number": i, "kind": f"k{i // 20:02d}"}) for i in range(240)]
    base = side("b", range(0, 240, 2), n=240)
    gained = [place for place in range(20, 240) if place % 2 == 0 or place % 8 == 1]
    judged = [
        decide(Look(scenarios, side("c", [*range(start, 20, 2), *gained], n=240), base), clean(240), Promote())
        for start in (6, 20)
    ]
    assert [failed(result) for result in judged] == [[], ["slices"]]
    assert check(judged[0], "slices").measured == pytest.approx(-0.15)
    assert check(judged[0], "slices").text.endswith("kind=k00, 20 scenarios, -0.150, which is within chance")
    assert check(judged[1], "slices").text == "fallen: kind=k00 (-0.500)"
    assert [part.fallen for part in judged[1].slices] == [True] + [False] * 11


def test_a_regression_set_refuses_on_evidence_and_not_by_chance() -> None:
    before = side("b", range(6), n=12)
    held = checks.holds("regression", side("c", range(2, 6), n=12), before, "base", None, Promote())
    assert held.passed
    assert held.measured == pytest.approx(-2 / 12)
    lost = checks.holds("regression", side("c", [], n=12), before, "base", None, Promote())
    assert not lost.passed
    clusters = ["one"] * 6 + list("abcdef")
    alike = checks.holds("regression", side("c", [], n=12), before, "base", clusters, Promote())
    assert alike.passed, "a single cluster"


def test_a_small_slice_decides_nothing_and_is_listed() -> None:
    result = verdict(side("c", range(80)), side("b", [*range(30), 99]))
    rare = next(row for row in result.slices if row.name == "kind=rare")
    assert (rare.difference, rare.judged, failed(result)) == (-1, False, [])
    assert "too small to judge: kind=rare (1)" in check(result, "slices").text


def test_slices_are_of_kind_difficulty_and_language_where_there_are_any() -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "a", "difficulty": 2},
        {"language": "de", "difficulty": 1},
        {"kind": None, "answer": "x"},
        {"kind": "a", "difficulty": 1},
    ]
    result = slices_of([Scenario.make("toy", "test", [], row) for row in rows])
    assert result == {"kind=a": [0, 3], "difficulty=1": [1, 3], "difficulty=2": [0], "language=de": [1]}
    assert list(result) == ["kind=a", "difficulty=1", "difficulty=2", "language=de"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"turns": 6.0}, []),  # 1.5 times as many is allowed
        ({"turns": 6.1}, ["turns"]),
        ({"tokens": 76.0}, ["tokens"]),
        ({"turns": 1.0, "tokens": 75.0}, []),
    ],
)
def test_episodes_may_not_grow_too_long(more: dict[str, Any], expected: list[str]) -> None:
    result = verdict(side("c", range(90), **more), side("b", range(30)))
    assert failed(result) == expected
    assert check(result, "turns").measured == more.get("turns", 4.0) / 4


def test_from_nothing_no_ratio_is_right() -> None:
    assert checks.growth("tokens", 0, 0, "base").passed
    assert not checks.growth("tokens", 1, 0, "base").passed


@pytest.mark.parametrize(
    "report", [clean(passed=False), clean(found={"content": 0, "overlap": 2}), clean(passed="yes")]
)
def test_contaminated_scenarios_prove_nothing(report: dict[str, Any]) -> None:
    assert failed(verdict(side("c", range(90)), side("b", range(30)), report=report)) == ["contamination"]


@pytest.mark.parametrize("report", [clean(99), {"passed": True}])
def test_a_contamination_report_of_other_scenarios_is_refused(report: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"is of (99|None) test scenarios, and there are 100: make both again"):
        verdict(side("c", range(90)), side("b", range(30)), report=report)


def test_the_same_adapter_is_no_challenger() -> None:
    with pytest.raises(UserError, match="challenger and champion are the same adapter, c: there is nothing to compare"):
        verdict(side("c", range(90)), side("b", range(30)), champion=side("c", range(90)))


def test_sides_of_other_lengths_are_refused() -> None:
    with pytest.raises(UserError, match="challenger and base are not of the same 100 scenarios"):
        verdict(side("c", range(90)), side("b", range(30), n=99))


# --- What it reads


def write_side(folder: Path, scenarios: list[Scenario], wins: set[int], adapter: str = "a", **changed: Any) -> Path:
    """An evaluation's files, in the form of the stage evaluate; no policy played them."""
    folder.mkdir(parents=True)
    ids = [scenario.id for scenario in scenarios]
    summary: dict[str, Any] = {"split": "test", "adapter_hash": adapter, "n": len(ids), "success": len(wins) / len(ids)}
    summary |= {"ci95": (0, 1), "reward": 0.5, "turns": 3.0, "tokens": 40.0} | changed
    (folder / "summary.json").write_text(Evaluation(**summary).model_dump_json())
    played = [
        Trajectory(id=f"test-{name}-0", scenario_id=name, attempt=0, adapter_hash=adapter, turns=(), stop_reason="done")
        for name in ids
    ]
    rewards = [
        Reward(trajectory_id=row.id, scenario_id=row.scenario_id, name="rule", score=1.0, success=place in wins)
        for place, row in enumerate(played)
    ]
    write_records(played, folder / "trajectories.parquet")
    write_records(rewards, folder / "rewards.parquet")
    return folder


def test_an_evaluation_is_read(tmp_path: Path) -> None:
    scenarios = make_scenarios(10)
    result = read_side(write_side(tmp_path / "e", scenarios, {0, 3}), scenarios)
    assert result.success_N.tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert (result.adapter_hash, result.turns, result.tokens, result.errors) == ("a", 3.0, 40.0, 0)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("order", "is of 10 scenarios, which are in another order than the 10 of the test split"),
        ("others", "is of 9 scenarios, which are others than the 10 of the test split"),
        ("split", "is of the split val: what is registered is judged on the test split"),
        ("missing", r"rewards.parquet does not exist: evaluate it again \(`.venv/bin/dvc repro`"),
        ("folder", r"summary.json does not exist: evaluate it again"),
        ("broken", r"trajectories.parquet cannot be read \(.+\): make it again"),
        ("edited", "summary.json does not fit the files beside it"),
        ("adapter", "summary.json does not fit the files beside it"),
    ],
)
def test_what_is_no_evaluation_of_these_scenarios_is_one_sentence(tmp_path: Path, what: str, says: str) -> None:
    scenarios, folder = make_scenarios(10), tmp_path / "e"
    written = {"order": scenarios[::-1], "others": scenarios[:9]}.get(what, scenarios)
    changes: dict[str, dict[str, Any]] = {
        "split": {"split": "val"},
        "edited": {"success": 0.9},
        "adapter": {"adapter_hash": "b"},
    }
    if what != "folder":
        write_side(folder, written, {0, 3}, **changes.get(what, {}))
    if what == "missing":
        (folder / "rewards.parquet").unlink()
    elif what == "broken":
        (folder / "trajectories.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match=says) as problem:
        read_side(folder, scenarios)
    assert "\n" not in str(problem.value)


# --- For a person


def test_the_table_and_the_picture_say_what_the_verdict_says(tmp_path: Path) -> None:
    champion, scripted = side("old", range(78)), side("scripted", range(95))
    result = verdict(side("c", range(70)), side("b", range(30)), champion=champion, scripted=scripted)
    text = verdict_report.table(result)
    assert text.startswith("# Not promoted\n\nfailed: champion; success 0.700 against 0.780 of the champion: -0.080 [")
    assert "| champion | **no** | -0.1" in text
    assert "| contamination | yes | +0.000 | +0.000 | 0 pairs" in text
    assert "| scripted | scripted | 0.950 | 0.887 to 0.979 | 4.00 | 50.0 | 0 |" in text
    assert "| kind=rare | 1 | +0.000 | -1.000 to +1.000 | too small |" in text
    assert "100 scenarios: 0 won and 8 lost against the champion" in text
    assert "This is look 1 at this test split, whose interval is one of 95 %. A true gain of" in text
    assert "(twice as many scenarios: 0.0" in text
    assert result.hash in text
    for name in ("one.png", "two.png"):
        verdict_report.picture(result, tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "two.png"]


def test_the_verdict_says_what_its_level_rests_on() -> None:
    judged = partial(looked, side("c", range(70)), side("b", range(50)))
    clusters = [str(number // 10) for number in range(100)]
    result = judged(2, clusters)
    assert result.power is not None
    text = verdict_report.note(result)
    assert text.endswith(
        "100 scenarios: 20 won and 0 lost against the base. This is look 2 at this test split, whose interval is one of "
        f"98.33 %. {result.power.sentence()} The scenarios are 10 clusters of alike ones, the largest of 10.\n"
    )
    alone = [str(number) for number in range(100)]
    assert "No two scenarios are alike by what the task says." in verdict_report.note(judged(clusters=alone))
    silent = "The task does not say which scenarios are alike, so each counts as independent."
    assert silent in verdict_report.note(judged())
    assert silent not in text
    assert "this is no look at the test split" in verdict_report.note(judged(0))
