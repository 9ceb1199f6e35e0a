"""Looks at a test split: their numbers, what they cost, and what counts as one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from steps.project.ledger import Ledger
from steps.registry import decisions, looks
from steps.registry.decisions import Decision
from steps.registry.judgements import count
from steps.registry.looks import split_hash, tail

IDS = [f"s{number}" for number in range(40)]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        yield ledger


def test_all_looks_together_err_no_more_often_than_allowed() -> None:
    assert [tail(look, 0.05) for look in (1, 2, 3)] == pytest.approx([0.025, 0.05 / 6, 0.05 / 12])
    assert sum(tail(look, 0.05) for look in range(1, 100_000)) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_each_challenger_is_a_look_and_keeps_its_number(
    kind: str, ledger: Ledger, request: pytest.FixtureRequest
) -> None:
    if kind == "postgresql":
        with Ledger(request.getfixturevalue("postgresql")) as team:
            check_numbers(team)
    else:
        check_numbers(ledger)


def check_numbers(ledger: Ledger) -> None:
    assert [count(ledger, "toy", IDS, name, "base") for name in ("a", "b", "a", "c", "b")] == [1, 2, 1, 3, 2]
    assert count(ledger, "toy", IDS, "a", "champion") == 4, "another policy to beat is another question"
    assert count(ledger, "other model", IDS, "a", "base") == 1, "the same look, whatever the model is called"
    assert count(ledger, "other model", IDS, "d", "base") == 5, "another name makes no split new"


def test_what_a_run_has_tested_is_a_look_whether_it_is_judged_or_not(ledger: Ledger) -> None:
    for name in ("a", "b", "c", "b"):
        looks.tested(ledger, "toy", IDS, name)
    assert count(ledger, "toy", IDS, "c", "base") == 3, "two that were turned away stand before it"
    assert count(ledger, "toy", IDS, "b", "base") == 2
    looks.tested(ledger, "toy", IDS, "b")
    assert [count(ledger, "toy", IDS, "b", against) for against in ("base", "champion")] == [2, 4]
    looks.tested(ledger, "toy", IDS[:30], "b")
    assert count(ledger, "toy", IDS, "d", "base") == 6, "its test on most of the same scenarios was one more"


def test_a_ledger_with_the_same_look_of_two_models_counts_it_once(ledger: Ledger) -> None:
    """Older code has counted by model."""
    row = {"scenarios": split_hash(IDS), "ids": IDS, "challenger": "a", "against": "base", "created": datetime.now(UTC)}
    with ledger.engine.begin() as link:
        link.execute(looks.LOOKS.insert(), [row | {"model": model} for model in ("one", "two")])
    assert count(ledger, "three", IDS, "a", "base") == 1
    assert count(ledger, "three", IDS, "b", "base") == 2


def test_a_split_is_new_only_if_nearly_all_of_its_scenarios_are(ledger: Ledger) -> None:
    assert count(ledger, "toy", IDS, "a", "base") == 1
    assert count(ledger, "toy", IDS[:-1], "b", "base") == 2, "one scenario less"
    assert count(ledger, "toy", IDS[::-1], "c", "base") == 3, "another order"
    fresh = [f"new {number}" for number in range(36)]
    assert count(ledger, "toy", [*fresh, *IDS[:5]], "d", "base") == 4, "5 of 41 were looked at"
    assert count(ledger, "toy", [*(f"other {name}" for name in fresh), *IDS[:4]], "e", "base") == 1, "4 of 40"


def test_decisions_from_before_looks_were_counted_are_looks(ledger: Ledger) -> None:
    """Only their split's hash is known."""

    def decided(model: str, challenger: str, ids: list[str], event: str = "refusal") -> None:
        sides = {"challenger": {"adapter_hash": challenger}, "champion": {"adapter_hash": "x"}}
        verdict = {"scenarios": split_hash(ids), "against": "champion", "sides": sides}
        row = Decision(event, model, "2", challenger, "1", "x", "why", f"verdict of {challenger}")
        decisions.record(ledger, row, {"verdict": verdict, "evaluations": {}})

    decided("toy", "a", IDS)
    decided("toy", "b", IDS, "promotion")
    decided("toy", "c", IDS[:3])
    decided("other", "d", IDS)
    decisions.record(ledger, Decision("rollback", "toy", "1", "x", "2", "b", "why", None))
    assert count(ledger, "toy", IDS, "e", "champion") == 4
    assert count(ledger, "toy", IDS, "a", "x") == 1
    assert count(ledger, "other", IDS, "e", "x") == 5
    decided("toy", "e", IDS)
    decided("toy", "f", IDS)
    assert count(ledger, "toy", IDS, "g", "x") == 7, "older code has decided on f since"


def test_two_that_look_at_once_have_one_row(ledger: Ledger) -> None:
    look = looks.Look(split_hash(IDS), "a", "base")
    count(ledger, "toy", IDS, "a", "base")
    looks.add(ledger, "toy", look, IDS)
    with ledger.engine.connect() as link:
        assert link.scalar(sa.select(sa.func.count()).select_from(looks.LOOKS)) == 1
