"""The end of a run: which policy is the best, and the result in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.terminal import health, report
from flows.training import ending
from steps.core.alike import Groups
from steps.core.params import Params
from tests.support import ended


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(health, "at_end", lambda *_: [])  # which reads the iterations' files
    return Params(task="multiplication", seed=7)


def test_the_result_says_each_fact_once(params: Params) -> None:
    summary = ended.run(Path()) | {"registered": None}
    seen = {"001": ["no variance"], "002": ["no variance", "length"]}
    summary |= {
        "tripwires": seen,
        "base": summary["trained"],
        "trained": summary["base"] | {"iteration": 0, "policy": "001"},
    }
    registered, tripwires = ending.result_lines(summary)[2:]
    assert registered == "Not registered: that is not above the base policy."
    assert tripwires.startswith("Tripwires: no variance in iteration 1, 2; length in iteration 2 (.venv/bin/python -m ")


def point(number: int, won: str, origin: str = "") -> report.Point:
    """A policy's validation on twenty scenarios, which it solves where `won` has a 1."""
    scores = {str(place): float(sign == "1") for place, sign in enumerate(won.ljust(20, "0"))}
    return report.Point(number, sum(scores.values()) / 20, (0.0, 1.0), 0.5, origin=origin, scores=scores)


def test_an_iteration_takes_the_place_of_what_it_began_with_by_more_than_a_standard_error() -> None:
    """Of the difference, on the same scenarios: what both solve says nothing."""
    taught = point(0, "1" * 12, "sft")
    curve = [point(0, ""), point(1, "1" * 13)]
    assert ending.best([taught], curve).name == "sft", "one scenario more may be chance"
    other = point(2, "0" * 4 + "1" * 16)
    assert ending.best([taught], [*curve, other]).name == "002", "eight won and four lost"
    better = point(2, "1" * 16)
    assert ending.best([taught], [*curve, better]).name == "002", "four won and none lost"
    grouped = Groups({str(place): "ab"[place // 10] for place in range(20)})  # all that is won is in one group
    sides = [each._replace(groups=grouped) for each in (taught, *curve, better)]
    assert ending.best(sides[:1], sides[1:]).name == "sft"
    start = point(0, "1" * 15, "start")
    assert ending.best([start, taught], [*curve, better]).name == "start", "of all that the iterations began with"
    assert ending.highest([taught, *curve, better]).name == "002"
    assert ending.best([], curve[:2]).name == "001"


def test_an_iteration_that_is_passed_over_is_said_with_its_lead() -> None:
    taught = point(0, "1" * 12, "sft")._replace(counted="20 scenarios in 5 groups")
    curve = [point(0, ""), point(1, "1" * 13)]
    sentence = ending.passed_over([taught], curve)
    assert sentence.startswith(
        "Iteration 1 had validation success 0.650, and run/sft is kept, with 0.600: of 20 scenarios in 5 groups the lead of "
        "0.050 has a standard error of 0.0"
    )
    assert float(sentence.partition("error of ")[2].split(". ")[0]) >= 0.05
    assert ending.passed_over([taught], [*curve, point(2, "1" * 16)]) == "", "which is kept"
    assert ending.passed_over([taught], [point(0, ""), point(1, "1" * 11)]) == "", "none was higher"
    assert ending.passed_over([taught], [point(0, ""), point(1, "1" * 12)._replace(reward=0.9)]) == "", (
        "in reward alone"
    )
    assert ending.passed_over([], curve) == ""
