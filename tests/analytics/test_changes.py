"""What training changed: scenarios that only one of the two policies solves, in a fixed order and in a few lines."""

from __future__ import annotations

from pathlib import Path

import pytest

import environments
from environments.base import Scenario, use, words
from steps.analytics.changes import MOST, changes, question, short
from steps.core.errors import UserError
from steps.core.records import PAIRS, Pair, Trajectory, write_records
from tests.support.ended import SCENARIOS, evaluated
from tests.support.judged import attempt

ENV = environments.load("multiplication")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run/scenarios").mkdir(parents=True)
    write_records(SCENARIOS, tmp_path / "run/scenarios/test.parquet")
    return tmp_path / "run"


def says(scenario: Scenario, turns: int, text: str = "it is 7") -> Trajectory:
    return attempt(scenario, 0, *[words(f"step {place}") for place in range(turns - 1)], words(text))


def test_what_only_one_policy_solves_the_shortest_first(run: Path) -> None:
    before = [False, False, True, True, False]
    after = [True, True, False, True, False]
    evaluated(run / "000", [says(each, 1) for each in SCENARIOS], before)
    evaluated(run / "sft", [says(each, 3 - place % 2) for place, each in enumerate(SCENARIOS)], after)
    found = changes(run, "sft")
    assert [change.scenario for change in found.fixed] == [SCENARIOS[1], SCENARIOS[0]], "two turns before three"
    assert [change.scenario for change in found.broken] == [SCENARIOS[2]]
    assert [side.verdict for side in found.broken[0][1:]] == ["success", "no success"]
    assert changes(run, "sft") == found
    assert changes(run, "000") == ([], [])


def test_without_a_rule_a_judge_says_what_is_better(run: Path) -> None:
    evaluated(run / "000", [says(each, 1) for each in SCENARIOS], [None] * 5)
    evaluated(run / "001", [says(each, 1) for each in SCENARIOS], [None] * 5)
    scores = (0.5, 1.0, 0.0, 0.5, 1.0)
    pairs = [Pair(scenario_id=each.id, score=score, reason="") for each, score in zip(SCENARIOS, scores, strict=True)]
    (run / "001/test" / PAIRS).write_text("".join(pair.model_dump_json() + "\n" for pair in pairs))
    found = changes(run, "001")
    assert [change.scenario for change in found.fixed] == [SCENARIOS[1], SCENARIOS[4]]
    assert [change.after.verdict for change in (*found.fixed, *found.broken)] == ["judged better"] * 2 + [
        "judged worse"
    ]


def test_an_attempt_is_four_short_lines(run: Path) -> None:
    [scenario, *_] = SCENARIOS
    long = attempt(
        scenario,
        0,
        use("add", first=1, second=2),
        {"role": "tool", "name": "add", "content": "3\n\x1b[31mand more" * 40},
        *[words(f"step {place}\n" * 30) for place in range(5)],
        stop="max_turns",
    )
    evaluated(run / "000", [long, *[says(each, 1) for each in SCENARIOS[1:]]], [False] * 5)
    evaluated(run / "001", [says(each, 1, f"it is {each.data['answer']}") for each in SCENARIOS], [True] * 5)
    change = next(each for each in changes(run, "001").fixed if each.scenario == scenario)
    lines = change.before.lines(ENV, scenario, width=80)
    assert lines[0].startswith("add(first=1, second=2) → 3 \\x1b[31mand more")
    assert lines[1] == "… 4 more turns"
    assert lines[3].startswith("no success; ")
    assert "expected: 132" in lines[3]
    assert len(lines) == MOST
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    [said, result] = change.after.lines(ENV, scenario, width=80)
    assert (said, result) == ("it is 132", "success; answer: 132")
    assert "12" in question(scenario, 80)
    assert short("the key is sk-proj-abcdefghijklmnop1234", 25) == "the key is [masked]"
    assert short("a  b\nc" * 50, 20) == "a b ca b ca b ca b…"


def test_evaluations_of_other_scenarios_are_one_sentence(run: Path) -> None:
    evaluated(run / "000", [says(SCENARIOS[0], 1)], [True])
    evaluated(run / "001", [says(each, 1) for each in SCENARIOS], [True] * 5)
    with pytest.raises(UserError, match=f"do not have scenario {SCENARIOS[1].id}: evaluate again"):
        changes(run, "001")
