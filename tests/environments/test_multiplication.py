"""Multiplication: splits that share no pair, exact answers, and an episode of one turn through the real chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from environments.base import Split
from environments.multiplication import Multiplication, answer, split_of_pair
from tests.conftest import ROOT

DATA = ROOT / "tasks_data" / "multiplication"
SPLITS: tuple[Split, ...] = ("train", "val", "test")


def test_splits_share_no_pair_either_way_round() -> None:
    pairs = Multiplication.load(DATA)
    unordered = [{tuple(sorted(pair)) for pair in pairs[split]} for split in SPLITS]
    assert sum(map(len, unordered)) == len(set.union(*unordered))
    assert all(split_of_pair(a, b) == split_of_pair(b, a) == split for split in SPLITS for a, b in pairs[split])
    assert sum(len(pairs[split]) for split in SPLITS) == 98 * 98


def test_the_same_seed_gives_the_same_scenarios() -> None:
    pairs = Multiplication.load(DATA)
    first, again, other = (Multiplication.scenarios(pairs, "val", 20, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({one.id for one in first}) == 20
    with pytest.raises(ValueError, match="99999 scenarios need as many pairs"):
        Multiplication.scenarios(pairs, "val", 99999, 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("56", 56), ("7 * 8 = 56.", 56), ("It is 1,234", 1234), ("-5", -5), ("", None), ("fifty", None), ("5 6", 6)],
)
def test_the_answer_is_the_last_number(text: str, value: int | None) -> None:
    assert answer(text) == value


def test_a_right_answer_beats_a_wrong_one() -> None:
    [scenario] = Multiplication.scenarios(Multiplication.load(DATA), "train", 1, 3)
    for text, score in (
        (str(scenario.data["answer"]), 1.0),
        (str(scenario.data["answer"] + 1), -1.0),
        ("no idea", -1.0),
    ):
        told = [*scenario.messages, {"role": "assistant", "content": text}]
        assert sum(part.value for part in Multiplication.reward(scenario, told)) == score
        assert Multiplication.success(scenario, told) == (score > 0)


def test_the_policy_does_not_see_the_product() -> None:
    for scenario in Multiplication.scenarios(Multiplication.load(DATA), "test", 50, 1):
        assert str(scenario.data["answer"]) not in json.dumps(scenario.messages)


def test_plain_words_end_the_episode() -> None:
    [scenario] = Multiplication.scenarios(Multiplication.load(DATA), "train", 1, 3)
    env = Multiplication(scenario, None)
    assert env.hear("12") == []
    assert env.done


def test_missing_ranges_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"ranges\.json is missing: restore it"):
        Multiplication.load(tmp_path)
