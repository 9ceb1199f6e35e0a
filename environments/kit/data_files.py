"""A task's data files: texts, and rows of JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError


def read_text(path: Path, maker: str = "") -> str:
    """The text of a data file. A FileNotFoundError says how to restore it: from git, or with the module that wrote it."""
    if not path.is_file():
        again = f" or write it anew with `.venv/bin/python -m environments.{maker} {path.parent}`" if maker else ""
        raise FileNotFoundError(f"{path} is missing: restore it with `git checkout -- {path}`{again}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path} is not UTF-8 ({problem}): unpack it, or write it anew in UTF-8") from None


def read_lines(path: Path, maker: str = "") -> list[dict[str, Any]]:
    """The rows of a JSON Lines file; FileNotFoundError as from `read_text`. ValueError with the line that is none."""
    return rows_of(read_text(path, maker), path)


def rows_of(text: str, where: Path | str = "the text") -> list[dict[str, Any]]:
    """The rows of JSON Lines, in a third of json's time; blank lines are none."""
    parsed = TypeAdapter(dict[str, Any]).validate_json
    rows = []
    for place, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        try:
            rows += [parsed(line)] if line.strip() else []
        except ValidationError as problem:
            reason = problem.errors(include_url=False, include_input=False)[0]["msg"]
            raise ValueError(f"{where}, line {place}: it must be a JSON object ({reason})") from None
    return rows


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
