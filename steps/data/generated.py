"""Generated scenarios as they lie on disk: read back, and checked by the task again. steps/data/generate.py writes them.

A file of its own, so that the stage scenarios depends on nothing that asks a model.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from environments.base import Env, Scenario, Split, unwritable
from steps.core.errors import UserError

SPLITS: tuple[Split, ...] = ("train", "val", "test")


class Said(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: str = Field(pattern="^(system|user)$")
    content: str = Field(min_length=1, max_length=20_000)


class Candidate(BaseModel):
    """What a model is asked to write; its schema goes with the request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    messages: list[Said] = Field(min_length=1)
    data: dict[str, JsonValue]
    difficulty: int = Field(ge=1, le=5)


def take(env: type[Env], data: Any, split: Split | None, candidate: Candidate) -> Scenario:
    """What the task makes of a candidate. ValueError where it refuses."""
    if unwritable(candidate.model_dump()):
        raise ValueError("characters that are no text, or nested too deeply")
    try:
        return env.accept(data, split, candidate.model_dump())
    except (LookupError, TypeError, AttributeError) as problem:  # of hostile content, which a task need not foresee
        raise ValueError(f"it breaks the task's check: {type(problem).__name__}") from None


def essence(scenario: Scenario) -> str:
    """What two scenarios must not have in common: their words, however they are written."""
    text = " ".join(str(message["content"]) for message in scenario.messages)
    return " ".join(re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFKC", text).casefold()))


def read_generated(env: type[Env], data: Any, path: Path) -> dict[Split, list[Scenario]]:
    """Scenarios of a file that was generated, by split, each checked again. UserError names the line that is wrong."""
    found: dict[Split, list[Scenario]] = {split: [] for split in SPLITS}
    known: set[str] = set()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"scenarios.generated: {path} does not exist; python -m steps.data.generate makes it") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"scenarios.generated: {path} cannot be read ({problem})") from None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            given = json.loads(line)
            candidate = Candidate.model_validate({name: given.get(name) for name in Candidate.model_fields})
            scenario = take(env, data, given["split"], candidate)
        except (ValueError, LookupError, TypeError, AttributeError) as problem:
            reason = " ".join(str(problem).split())[:300]
            raise UserError(f"scenarios.generated: {path}, line {number}: {reason}; generate it again") from None
        if scenario.id not in known:
            known.add(scenario.id)
            found[scenario.split].append(scenario)
    return found
