"""Reads generated scenarios, which addons/supervised/generate.py writes, and has the task check them again.

This is a file of its own so that the stage scenarios depends on no code that asks a model.
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
from steps.core.files import json_lines

SPLITS: tuple[Split, ...] = ("train", "val", "test")


# Names and docstrings of these two classes are part of the schema that goes with each request, and so of the key under which
# its answer is kept: a change makes every request a new one.
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
    """The scenario that the task makes of a candidate. ValueError where the task refuses it."""
    if unwritable(candidate.model_dump()):
        raise ValueError("characters that are no text, or nested too deeply")
    try:
        return env.accept(data, split, candidate.model_dump())
    except (LookupError, TypeError, AttributeError) as problem:  # hostile content, which a task need not foresee
        raise ValueError(f"it breaks the task's check: {type(problem).__name__}") from None


def essence(scenario: Scenario) -> str:
    """The words of a scenario without regard to case, spacing and Unicode form; equal ones are the same scenario."""
    text = " ".join(str(message["content"]) for message in scenario.messages)
    return " ".join(re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFKC", text).casefold()))


def read_generated(env: type[Env], data: Any, path: Path) -> dict[Split, list[Scenario]]:
    """The scenarios of a generated file by split, each checked again. UserError names the line that is wrong."""
    scenarios: dict[Split, list[Scenario]] = {split: [] for split in SPLITS}
    ids: set[str] = set()
    try:
        lines = json_lines(path)
    except FileNotFoundError:
        raise UserError(
            f"scenarios.generated: {path} does not exist; .venv/bin/python -m addons.supervised.generate makes it"
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"scenarios.generated: {path} cannot be read ({problem})") from None
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            candidate = Candidate.model_validate({name: fields.get(name) for name in Candidate.model_fields})
            scenario = take(env, data, fields["split"], candidate)
        except (ValueError, LookupError, TypeError, AttributeError) as problem:
            reason = " ".join(str(problem).split())[:300]
            raise UserError(f"scenarios.generated: {path}, line {number}: {reason}; generate it again") from None
        if scenario.id not in ids:
            ids.add(scenario.id)
            scenarios[scenario.split].append(scenario)
    return scenarios
