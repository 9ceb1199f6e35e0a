"""Feedback in one form: a score from 0 to 1, whatever scale, label or thumb a producer has; and times in one form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from environments.base import Message
from steps.core.errors import UserError
from steps.traces.messages import answer_of

Scales = Mapping[str, tuple[float, float]]  # name of a score -> its worst and its best value
GOOD_WORDS = frozenset(
    "good up thumbs_up positive correct yes true like liked helpful pass passed accepted right".split()
)
BAD_WORDS = frozenset(
    "bad down thumbs_down negative incorrect no false dislike disliked unhelpful fail failed rejected wrong".split()
)


def score_of(value: Any, name: str = "score", scales: Scales | None = None) -> float | None:
    """The score as a number from 0 to 1; None for a label that says neither good nor bad. ValueError beyond the scale."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        word = re.sub(r"[\s-]+", "_", value.strip().lower())
        if word in GOOD_WORDS or word in BAD_WORDS:
            return float(word in GOOD_WORDS)
        try:
            value = float(word)
        except ValueError:
            return None
    if not isinstance(value, int | float):
        return None
    low, high = (scales or {}).get(name, (0.0, 1.0))
    share = (value - low) / (high - low)
    if not 0 <= share <= 1:
        raise ValueError(
            f"the score {name} is {value:g}, not from {low:g} to {high:g}: say its scale with --scale {name}=LOW..HIGH"
        )
    return round(share, 6)


def scales_of(words: list[str]) -> dict[str, tuple[float, float]]:
    """Scales as the command line gives them, NAME=LOW..HIGH. UserError for anything else."""
    scales = {}
    for word in words:
        match = re.fullmatch(r"(.+)=(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)", word)
        if match is None or float(match[2]) == float(match[3]):
            raise UserError(f"--scale {word}: give a score's name and its worst and best value, as in stars=1..5")
        scales[match[1]] = (float(match[2]), float(match[3]))
    return scales


def correction_of(value: Any) -> Message:
    """The message that a correction stands for: a message, or a text of the assistant. ValueError where it is neither."""
    messages = answer_of(value)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise ValueError("a correction must be the assistant's message, or its text")
    return messages[0]


def moment(value: Any) -> str:
    """A time as ISO 8601 in UTC with microseconds: of such a text, a datetime, or Unix time in s, ms, µs or ns; else
    empty, for times outside of the years 1 to 9999 too."""
    if isinstance(value, str) and re.fullmatch(r"\d{9,20}(?:\.\d+)?", value):
        value = float(value) if "." in value else int(value)
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            size = next(power for power in (10**9, 10**6, 10**3, 1) if value >= power * 10**8 or power == 1)
            value = datetime.fromtimestamp(value / size, UTC)
        elif isinstance(value, str):
            value = datetime.fromisoformat(value)
        if not isinstance(value, datetime):
            return ""
        at = (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, OSError):  # no time, or one before the year 1 or after 9999
        return ""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def consents(value: Any) -> bool:
    """Whether a field that a producer keeps for consent says yes."""
    return value is True or (
        isinstance(value, str | int) and str(value).strip().lower() in ("true", "yes", "1", "given")
    )
