"""What ingestion made of conversations from production: ingested/<task>/, which add-ons write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from steps.core.errors import UserError

if TYPE_CHECKING:
    from environments.base import Scenario

INGESTED = Path("ingested")  # has a folder for each task, which add-ons write


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON lines file; none where it does not exist. UserError names a line that is damaged."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line:
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise UserError(
                    f"{path}, line {number} is damaged: `.venv/bin/dvc checkout {path.parent}` brings back the last version"
                )
            rows.append(row)
    return rows


def read_scenarios(path: Path) -> list[Scenario]:
    """The scenarios of scenarios.jsonl or regression.jsonl, without their sources. UserError where a row is none."""
    from environments.base import Scenario

    try:
        return [Scenario.model_validate({k: v for k, v in row.items() if k != "source"}) for row in read_rows(path)]
    except ValidationError as problem:
        raise UserError(
            f"{path} holds a row that is no scenario ({problem.errors()[0]['msg']}): ingest again"
        ) from None
