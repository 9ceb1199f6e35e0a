"""JSON records: what counts as the record, partial rewards by hand, and splits that share no city."""

from __future__ import annotations

import json
from typing import Any

import pytest

from environments.base import Split
from environments.json_records import JsonRecords, record_in, scenario
from tests.conftest import ROOT

DATA = JsonRecords.load(ROOT / "tasks_data" / "json_records")
RECORD = {"name": "Grace", "age": 24, "city": "Berlin"}


def test_the_question_names_the_keys_and_holds_the_values() -> None:
    asked = scenario("train", RECORD).messages[0]["content"]
    assert asked == "Grace is 24 years old and lives in Berlin. Write this as JSON with the keys name, age and city."


@pytest.mark.parametrize(
    ("text", "reward", "success"),
    [
        (json.dumps(RECORD), 1.0, True),
        ('Here it is:\n```json\n{"city": "berlin", "name": "Grace",\n "age": 24}\n``` Anything else?', 1.0, True),
        ('{"name": "Grace", "age": "24", "city": "Berlin"}', (2 * 2 / 3 - 1) * 0.5, False),
        ('{"name": "Grace", "age": 24}', (2 * 2 / 3 - 1) * 0.5, False),
        ('{"name": "Grace", "age": 24, "city": "Berlin", "job": "nurse"}', (2 * 3 / 4 - 1) * 0.5, False),
        ('{"name": "Bob"} {"name": "Grace", "age": 24, "city": "Berlin"}', -0.5, False),
        ('{"name": "Gra', -1.0, False),
        ("", -1.0, False),
    ],
)
def test_rewards_by_hand(text: str, reward: float, success: bool) -> None:
    asked = scenario("train", RECORD)
    messages: list[Any] = [*asked.messages, {"role": "assistant", "content": text}]
    [part] = JsonRecords.components(asked, messages)
    assert part.value == pytest.approx(reward)
    assert JsonRecords.success(asked, messages) == success


def test_the_first_object_counts() -> None:
    assert record_in('a { b {"c": 1} {"d": 2}') == {"c": 1}
    assert record_in("[1, 2]") is None
    assert record_in("{" * 100_000) is None


def test_no_tested_city_is_trained_on() -> None:
    splits: tuple[Split, ...] = ("train", "val", "test")
    cities = [
        {JsonRecords.cluster(one, DATA) for one in JsonRecords.scenarios(DATA, split, 120, 1)} for split in splits
    ]
    assert sum(map(len, cities)) == len(set.union(*cities))
    assert all(len(names) >= 5 for names in cities)
