"""Columns of parquet files, and what is said of a file that cannot be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from steps.core.errors import UserError
from steps.core.parquet import MissingFile, read_columns
from steps.core.records import Reward, Trajectory, Turn, read_records, write_records

NESTED = "turns.list.element.completion_ids"


def trajectory(turns: int) -> Trajectory:
    turn = Turn(
        prompt_ids=(1,),
        completion_ids=(2, 3),
        logprobs=(-0.5, -0.5),
        message={"role": "assistant", "content": "yes"},
        observations=(),
        finish_reason="stop",
    )
    fields = {"scenario_id": "s", "attempt": 0, "adapter_hash": "a", "turns": (turn,) * turns, "stop_reason": "done"}
    return Trajectory.model_validate({"id": f"t{turns}"} | fields)


def test_columns_are_read_in_rows(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    write_records([trajectory(1), trajectory(2)], path)
    tokens = {"completion_ids": [2, 3]}
    expected = [{"id": "t1", "turns": [tokens]}, {"id": "t2", "turns": [tokens, tokens]}]
    assert read_columns(path, ["id", NESTED]).to_pylist() == expected
    assert set(read_columns(path).column_names) == set(Trajectory.model_fields) - {"pictures"}  # where none is shown
    assert read_records(Trajectory, path) == [trajectory(1), trajectory(2)]


def test_a_nested_column_that_no_row_has_is_left_out(tmp_path: Path) -> None:
    write_records([trajectory(0)], tmp_path / "some.parquet")
    assert read_columns(tmp_path / "some.parquet", ["id", NESTED]).column_names == ["id"]


def test_a_file_without_rows_has_the_columns_empty(tmp_path: Path) -> None:
    write_records([], tmp_path / "none.parquet")
    assert read_columns(tmp_path / "none.parquet", ["id", NESTED]).to_pydict() == {"id": []}
    assert read_records(Trajectory, tmp_path / "none.parquet") == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("text.parquet", "cannot be read (Parquet magic bytes not found"),
        ("empty.parquet", "cannot be read (Parquet file size is 0 bytes"),
        ("some.parquet", "cannot be read (it has no column rating, score)"),
        ("missing.parquet", "does not exist"),
        ("folder", "cannot be read ("),
    ],
)
def test_what_cannot_be_read_is_one_sentence_with_a_cure(tmp_path: Path, name: str, reason: str) -> None:
    write_records([trajectory(1)], tmp_path / "some.parquet")
    (tmp_path / "text.parquet").write_text("no parquet, but longer than its magic bytes")
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        UserError, match=rf"^{re.escape(f'{tmp_path / name} {reason}')}.*`.venv/bin/dvc checkout`\)$"
    ) as caught:
        read_columns(tmp_path / name, ["id", "score", "rating"])
    assert isinstance(caught.value, MissingFile) == isinstance(caught.value, FileNotFoundError) == ("missing" in name)


def test_a_flipped_bit_anywhere_is_read_or_one_sentence(tmp_path: Path) -> None:
    """Parquet files without checksums may hide a flipped bit; none may end in a traceback."""
    path = tmp_path / "some.parquet"
    write_records([trajectory(1), trajectory(2)], path)
    whole = path.read_bytes()
    sentences = []
    for place in range(0, len(whole), 17):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        for read in (lambda: read_records(Trajectory, path), lambda: read_columns(path, ["id", NESTED]).to_pylist()):
            try:
                read()
            except UserError as problem:
                sentences.append(str(problem))
    assert len(sentences) > 10
    for sentence in sentences:
        assert sentence.startswith(f"{path} cannot be read (")
        assert "\n" not in sentence


def test_a_record_of_another_kind_is_one_sentence(tmp_path: Path) -> None:
    write_records([trajectory(1)], tmp_path / "some.parquet")
    with pytest.raises(
        UserError, match=r"some\.parquet cannot be read \(a row is no Reward: .*`.venv/bin/dvc checkout`"
    ):
        read_records(Reward, tmp_path / "some.parquet")
