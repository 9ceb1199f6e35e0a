"""The core types: what they refuse, how they lie on disk, and how a trajectory becomes training rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from environments.base import Scenario
from environments.kit.agents import Result
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation, TaskResult
from steps.core.records import Reward, Row, Stretch, Trajectory, Turn, read_records, write_records


def turn(
    prompt: tuple[int, ...], sampled: tuple[int, ...], logprobs: tuple[float, ...] | None = None, **more: Any
) -> Turn:
    fields: dict[str, Any] = {
        "message": {"role": "assistant", "content": ""},
        "observations": (),
        "finish_reason": "stop",
    }
    logprobs = tuple(-token / 8 for token in sampled) if logprobs is None else logprobs
    return Turn(prompt_ids=prompt, completion_ids=sampled, logprobs=logprobs, **fields | more)


def trajectory(*turns: Turn, **more: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "id": "001-s-0",
        "scenario_id": "s",
        "attempt": 0,
        "adapter_hash": "abc",
        "stop_reason": "done",
    }
    return Trajectory(turns=turns, **fields | more)


CALL = {"type": "function", "function": {"name": "search", "arguments": {"words": ["é", "\n", '"'], "n": 10**30}}}
FULL = trajectory(
    turn(
        (1, 2),
        (3, 4),
        message={"role": "assistant", "content": "Ω\0", "tool_calls": [CALL]},
        observations=({"role": "tool", "name": "search", "content": "1 | 東京"},),
    ),
    turn((1, 2, 3, 4, 5), (6,), (), finish_reason="length"),
    stop_reason="length",
)
EMPTY = trajectory(id="001-s-1", attempt=1, stop_reason="error", error="ValueError: x")
SCENARIO = Scenario.make("t", "val", [{"role": "user", "content": "?"}], {"answer": [1, None, {"a": 0.5}]})
REWARD = Reward(trajectory_id="a", scenario_id="s", name="rule", score=0.1 + 0.2, success=True, components={"x": 0.3})
UNSCORED = Reward(trajectory_id="b", scenario_id="s", name="rule", score=None, success=False, explanation="it failed")
EVALUATION = Evaluation(
    split="val",
    adapter_hash="a",
    n=3,
    success=1 / 3,
    ci95=(0.06, 0.79),
    reward=0.1,
    turns=3.0,
    tokens=60.0,
    slices={"a": 1.0},
    by_task={
        "a": TaskResult(n=3, success=1 / 3, ci95=(0.06, 0.79), reward=0.1, turns=3.0, tokens=60.0, sampled_success=None)
    },
    decisions={"query": (1, 3)},
    references={"script": 1.0},
)


# --- On disk


@pytest.mark.parametrize(
    "records",
    [
        [FULL, EMPTY],
        [EMPTY, FULL],  # the first row alone must not decide what the columns hold
        [EMPTY],
        [trajectory(turn((1,), (2,), ()))],
        [SCENARIO],
        [REWARD, UNSCORED],
        [UNSCORED, REWARD],
        [UNSCORED],
        [EVALUATION],
        [],
    ],
    ids=lambda records: "+".join(type(record).__name__ for record in records),
)
def test_records_come_back_as_they_were(tmp_path: Path, records: list[Any]) -> None:
    path = tmp_path / "records.parquet"
    write_records(records, path)
    kind = type(records[0]) if records else Trajectory
    assert read_records(kind, path) == records


def test_logprobs_come_back_bit_by_bit(tmp_path: Path) -> None:
    logprobs = (-0.1, -1 / 3, -1e-300, -745.0, -0.0, 0.0)
    write_records([trajectory(turn((1,), (1, 2, 3, 4, 5, 6), logprobs))], tmp_path / "t.parquet")
    [read] = read_records(Trajectory, tmp_path / "t.parquet")
    assert [value.hex() for value in read.turns[0].logprobs] == [value.hex() for value in logprobs]


def test_the_same_records_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_records([FULL, EMPTY], tmp_path / name)
    write_records([EMPTY, FULL], tmp_path / "other")
    first, second, other = ((tmp_path / name).read_bytes() for name in ("one", "two", "other"))
    assert first == second
    assert first != other


def test_numbers_lie_as_numbers_and_messages_as_json(tmp_path: Path) -> None:
    write_records([FULL], tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    fields = {field.name: field for field in table.schema.field("turns").type.value_type}
    assert {
        name: str(field.type.value_type) for name, field in fields.items() if name.endswith(("ids", "logprobs"))
    } == {
        "prompt_ids": "int64",
        "completion_ids": "int64",
        "logprobs": "double",
    }
    assert json.loads(table.to_pylist()[0]["turns"][0]["message"])["tool_calls"] == [CALL]


def test_a_file_of_other_records_is_refused(tmp_path: Path) -> None:
    write_records([REWARD], tmp_path / "rewards.parquet")
    with pytest.raises(UserError, match=r"rewards\.parquet cannot be read \(a row is no Trajectory"):
        read_records(Trajectory, tmp_path / "rewards.parquet")


# --- What is refused


@pytest.mark.parametrize(
    "record", [FULL, FULL.turns[0], SCENARIO, REWARD, EVALUATION], ids=lambda record: type(record).__name__
)
def test_unknown_fields_and_changes_are_refused(record: Any) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        type(record).model_validate(record.model_dump() | {"more": 1})
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, next(iter(type(record).model_fields)), "other")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        turn((1,), (2,), (value,))
    with pytest.raises(ValidationError, match="finite"):
        Reward.model_validate(REWARD.model_dump() | {"score": value})
    with pytest.raises(ValidationError, match="finite"):
        Reward.model_validate(REWARD.model_dump() | {"components": {"x": value}})


@pytest.mark.parametrize("stop_reason", ["", "stop", "DONE"])
def test_unknown_stop_reasons_are_refused(stop_reason: str) -> None:
    with pytest.raises(ValidationError, match="stop_reason"):
        trajectory(stop_reason=stop_reason)


# --- Training rows


def test_flatten_extends_one_row() -> None:
    """Prompt, sampled, observation, sampled: hand-made."""
    rows = trajectory(
        turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5), (6,)), turn((1, 2, 3, 4, 5, 6, 7, 8), (9, 10))
    ).flatten()
    assert rows == [
        Row(
            ids=[1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
            mask=[0, 0, 1, 1, 0, 1, 0, 0, 1, 1],
            logprobs=[0, 0, -0.375, -0.5, 0, -0.75, 0, 0, -1.125, -1.25],
        )
    ]


def test_flatten_splits_where_a_prompt_does_not_extend_what_came_before() -> None:
    rows = trajectory(
        turn((1, 2), (3, 4)),
        turn((1, 2, 3, 9), (6,)),  # 4 became 9: re-tokenised
        turn((1, 2, 3, 9, 6, 7), (8,)),
        turn((1,), (2,)),  # shorter than what came before
    ).flatten()
    assert rows == [
        Row([1, 2, 3, 4], [0, 0, 1, 1], [0, 0, -0.375, -0.5]),
        Row([1, 2, 3, 9, 6, 7, 8], [0, 0, 0, 0, 1, 0, 1], [0, 0, 0, 0, -0.75, 0, -1.0]),
        Row([1, 2], [0, 1], [0, -0.25]),
    ]


def test_every_sampled_token_is_in_one_row_once() -> None:
    turns = (turn((1, 2), (3, 4)), turn((9,), (5,)), turn((9, 5, 1), (6, 7)))
    rows = trajectory(*turns).flatten()
    sampled = [token for row in rows for token, mask in zip(row.ids, row.mask, strict=True) if mask]
    assert sampled == [token for turn in turns for token in turn.completion_ids]
    assert all(len(row.ids) == len(row.mask) == len(row.logprobs) for row in rows)


USER = {"role": "user", "content": "?"}
SUB = {"role": "user", "content": "a part of it"}


def said(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}}


def test_a_turn_extends_the_row_that_it_continues_wherever_that_is() -> None:
    """Two conversations that take turns, and a fork from the middle of the first: hand-made."""
    forked = trajectory(
        turn((1, 2), (3, 4), context=(USER,)),
        turn((5,), (6,), context=(SUB,), fork="sub_agent"),
        turn((1, 2, 3, 4, 7), (8,)),  # the first goes on
        turn((5, 6, 9), (10, 11)),  # and the second
        turn((1, 2, 3, 4, 12), (13,), context=(USER,), fork="edited"),  # from the middle of the first: a row of its own
        turn((1, 2, 3, 4, 7, 8, 14), (15,)),  # the first again
        turn((1, 2, 3, 4, 12, 13, 16), (17,)),  # and the fork
    )
    assert forked.flatten() == [
        Row([1, 2, 3, 4, 7, 8, 14, 15], [0, 0, 1, 1, 0, 1, 0, 1], [0, 0, -0.375, -0.5, 0, -1.0, 0, -1.875]),
        Row([5, 6, 9, 10, 11], [0, 1, 0, 1, 1], [0, -0.75, 0, -1.25, -1.375]),
        Row([1, 2, 3, 4, 12, 13, 16, 17], [0, 0, 0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, -1.625, 0, -2.125]),
    ]


def test_the_longest_row_is_extended_and_the_latest_of_equal_ones() -> None:
    rows = trajectory(
        turn((1,), (2,), context=(USER,)),
        turn((1,), (2,), context=(USER,), fork="retry"),  # sampled the same again
        turn((1, 2, 3), (4,)),
    ).flatten()
    assert [row.ids for row in rows] == [[1, 2], [1, 2, 3, 4]]
    rows = trajectory(
        turn((1, 2), (3,), context=(USER,)), turn((1,), (2,), context=(USER,), fork="retry"), turn((1, 2, 3, 4), (5,))
    ).flatten()
    assert [row.ids for row in rows] == [[1, 2, 3, 4, 5], [1, 2]]


def test_what_a_grammar_chose_bears_no_loss_and_its_row_goes_on() -> None:
    rows = trajectory(
        turn((1,), (2, 3), context=(USER,)),
        turn((1, 2, 3, 4), (5, 6), is_constrained=True),
        turn((1, 2, 3, 4, 5, 6), (7,)),
    ).flatten()
    assert rows == [Row([1, 2, 3, 4, 5, 6, 7], [0, 1, 1, 0, 0, 0, 1], [0, -0.25, -0.375, 0, 0, 0, -0.875])]


def test_what_a_known_grammar_chose_bears_loss_where_it_left_a_choice() -> None:
    chosen = turn((1, 2, 3, 4), (5, 6, 7), (0.0, -0.5, -0.0), is_constrained=True, grammar="{}")
    [row] = trajectory(turn((1,), (2, 3), context=(USER,)), chosen).flatten()
    assert row == Row(
        [1, 2, 3, 4, 5, 6, 7], [0, 1, 1, 0, 0, 1, 0], [0, -0.25, -0.375, 0, 0, -0.5, 0], (Stretch(4, 7, "{}"),)
    )


def test_flatten_of_nothing_is_nothing() -> None:
    assert EMPTY.flatten() == []


@pytest.mark.parametrize("logprobs", [(), (-0.1,), (-0.1, -0.1, -0.1)])
def test_flatten_refuses_lengths_that_disagree(logprobs: tuple[float, ...]) -> None:
    bad = trajectory(turn((1,), (2,)), turn((1, 2, 3), (4, 5), logprobs))
    with pytest.raises(ValueError, match=f"trajectory 001-s-0: 2 sampled tokens, {len(logprobs)} logprobs"):
        bad.flatten()


def test_messages_are_the_transcript() -> None:
    messages = FULL.messages(SCENARIO)
    assert messages == [
        SCENARIO.messages[0],
        FULL.turns[0].message,
        FULL.turns[0].observations[0],
        FULL.turns[1].message,
    ]
    assert len(SCENARIO.messages) == 1


def test_the_transcript_of_an_agent_is_the_conversation_of_its_last_request() -> None:
    answer = {"role": "tool", "content": "found"}
    turns = (
        turn((1, 2), (3,), context=(USER,), observations=(answer,), **said("first")),
        turn((5,), (6,), context=(SUB,), fork="sub_agent", **said("of the sub-agent")),
        turn((1, 2, 3, 4), (8,), **said("second")),
        turn((1, 2, 3, 4), (9,), context=(USER,), fork="alternative", **said("not taken")),
    )
    first = [USER, turns[0].message, answer, turns[2].message]
    assert trajectory(*turns).messages(SCENARIO) == first
    assert trajectory(*turns[:2]).messages(SCENARIO) == [SUB, turns[1].message]
    compacted = turn((1, 20), (21,), context=(USER, SUB), fork="history_compacted", **said("third"))
    later = turn((1, 20, 21, 22), (23,), **said("fourth"))
    assert trajectory(*turns, compacted, later).messages(SCENARIO) == [USER, SUB, compacted.message, later.message]


def test_forks_come_back_from_disk(tmp_path: Path) -> None:
    kept = [
        trajectory(turn((1,), (2,), context=(USER,), fork="retry", is_constrained=True), result=Result(reward=0.5)),
        FULL,
    ]
    write_records(kept, tmp_path / "t.parquet")
    assert read_records(Trajectory, tmp_path / "t.parquet") == kept
