"""Pictures in records: each is stored once, comes back, and tells prompts with the same ids apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from environments.base import Scenario
from steps.core import pictures
from steps.core.pictures import Shown
from steps.core.records import Trajectory, Turn, read_records, write_records
from steps.training.contract import breach, rows_breach
from tests.support.seeing import asked

SAID: dict[str, Any] = {"role": "assistant", "content": "Red."}
RED, BLUE = "a" * 64, "b" * 64
DATA = {RED: "UkVE" * 500, BLUE: "QkxVRQ==" * 500}


def turn(prompt: tuple[int, ...], *shown: Shown) -> Turn:
    more: dict[str, Any] = {"message": SAID, "observations": (), "finish_reason": "stop"}
    return Turn(prompt_ids=prompt, completion_ids=(8, 2), logprobs=(-0.5, -0.1), pictures=shown, **more)


def trajectory(*turns: Turn, name: str = "e", **more: Any) -> Trajectory:
    own = {each.sha256: DATA[each.sha256] for turn in turns for each in turn.pictures}
    fields: dict[str, Any] = {"scenario_id": "s", "attempt": 0, "adapter_hash": "a", "stop_reason": "done"}
    return Trajectory(id=name, turns=turns, **fields | {"pictures": own} | more)


FIRST = turn((1, 9, 9, 3), Shown(1, 2, RED))
LATER = turn((1, 9, 9, 3, 8, 2, 9, 9, 9, 4), Shown(1, 2, RED), Shown(6, 3, BLUE))


def test_a_file_has_the_bytes_of_each_picture_once(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    batch = [trajectory(FIRST, LATER, name=f"e{number}") for number in range(5)] + [trajectory(turn((1, 2)), name="t")]
    for name in ("one", "two"):
        write_records(batch, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    texts = pq.read_table(tmp_path / "one")["pictures"].to_pylist()
    assert [text.count(data) for data in DATA.values() for text in texts] == [1, 0, 0, 0, 0, 0] * 2
    assert read_records(Trajectory, tmp_path / "one") == batch


def test_a_file_without_pictures_has_no_such_column(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_records([trajectory(turn((1, 2)))], tmp_path / "plain")
    schema = pq.read_schema(tmp_path / "plain")
    assert "pictures" not in schema.names
    assert "pictures" not in [field.name for field in schema.field("turns").type.value_type]


def test_scenarios_with_and_without_pictures_lie_in_one_file(tmp_path: Path) -> None:
    made = [Scenario.make("t", "train", messages, {}) for messages in ([asked(1, "a")], [SAID], [asked(1, "b")])]
    write_records(made, tmp_path / "scenarios")
    assert read_records(Scenario, tmp_path / "scenarios") == made


def test_a_turn_continues_a_row_only_where_its_pictures_do() -> None:
    [row] = trajectory(FIRST, LATER).flatten()
    assert [each.data for each in row.pictures] == list(DATA.values())
    assert row.mask == [0] * 4 + [1, 1] + [0] * 4 + [1, 1]
    other = LATER.model_copy(update={"pictures": (Shown(1, 2, BLUE), LATER.pictures[1])})
    played = trajectory(FIRST, other)
    assert [len(row.pictures) for row in played.flatten()] == [1, 2]
    assert played.before(1) is None
    assert trajectory(FIRST, LATER).before(1) == 0


@pytest.mark.parametrize(
    ("prompt", "shown", "stored", "reason"),
    [
        ((1, 9, 9, 3), (Shown(1, 2, RED),), True, None),
        ((1, 9, 9, 3), (Shown(1, 3, RED),), True, "a picture that does not stand on tokens of its own"),
        ((1, 9, 9, 3), (Shown(3, 2, RED),), True, "a picture that does not stand on tokens of its own"),
        (
            (1, 9, 9, 3),
            (Shown(1, 2, RED), Shown(2, 1, BLUE)),
            True,
            "a picture that does not stand on tokens of its own",
        ),
        ((1, 9, 9, 3), (Shown(1, 2, RED),), False, "a picture that is not in the record"),
    ],
)
def test_a_trajectory_whose_pictures_are_not_there_is_quarantined(
    prompt: tuple[int, ...], shown: tuple[Shown, ...], stored: bool, reason: str | None
) -> None:
    more: dict[str, Any] = {} if stored else {"pictures": {}}
    played = trajectory(turn(prompt, *shown), **more)
    assert breach(played, played.flatten(), 2, 100) == reason


def test_rows_with_a_picture_that_bears_loss_are_refused() -> None:
    played = trajectory(FIRST)
    [row] = played.flatten()
    assert rows_breach(played, [row]) is None
    assert rows_breach(played, [row._replace(pictures=(Shown(4, 1, RED),))]) == "a picture that bears loss"


def test_missing_bytes_are_empty_not_an_error() -> None:
    assert pictures.filled((Shown(0, 1, RED),), {}) == (Shown(0, 1, RED, ""),)
    rows: list[dict[str, Any]] = [{"pictures": {RED: ""}}]
    pictures.restore(rows)
    assert rows == [{"pictures": {RED: ""}}]
