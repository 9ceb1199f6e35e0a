"""Reads what an offline run of Weights & Biases would send: a .wandb file, which is LevelDB's log of protocol buffers.

LevelDB's format: blocks of 32 KiB; a piece has a checksum (4 bytes), its length (2) and its type (1 whole, 2 first,
3 middle, 4 last); fewer than 7 bytes at a block's end are padding. wandb puts 7 bytes of its own before the first. Its
version 0.31 has no reader in Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7


def records(path: Path) -> Iterator[Any]:
    """wandb_internal_pb2.Record of each."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B", path
    place, whole = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        piece = data[place + HEADER : place + HEADER + length]
        whole = piece if kind in (1, 2) else whole + piece
        place += HEADER + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(whole)


class Sent:
    """Everything of one offline run."""

    def __init__(self, folder: Path) -> None:
        [path] = folder.glob("*.wandb")
        self.files = folder / "files"
        self.run: Any = None
        self.config: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.artifacts: list[Any] = []
        self.exit_code: int | None = None
        for record in records(path):
            match record.WhichOneof("record_type"):
                case "run":
                    self.run = record.run
                    self.config |= _items(record.run.config.update)
                case "config":
                    self.config |= _items(record.config.update)
                case "history":
                    self.history.append(_items(record.history.item))
                case "summary":
                    self.summary |= _items(record.summary.update)
                case "artifact":
                    self.artifacts.append(record.artifact)
                case "request" if record.request.WhichOneof("request_type") == "log_artifact":
                    self.artifacts.append(record.request.log_artifact.artifact)
                case "exit":
                    self.exit_code = record.exit.exit_code

    def table(self, step: int, name: str) -> tuple[list[str], list[list[Any]]]:
        """Columns and rows of a table of a step."""
        [entry] = [row[name] for row in self.history if row["_step"] == step]
        found = json.loads((self.files / entry["path"]).read_text())
        return found["columns"], found["data"]


def _items(items: Any) -> dict[str, Any]:
    """A key may be a path of keys: the table's own fields stand under its name."""
    found: dict[str, Any] = {}
    for item in items:
        *above, last = item.nested_key or [item.key]
        place = found
        for key in above:
            place = place.setdefault(key, {})
        place[last] = json.loads(item.value_json)
    return found
