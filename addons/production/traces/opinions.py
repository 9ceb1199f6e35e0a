"""Feedback in one form: a score from 0 to 1, whatever scale, label or thumb a producer has; and times in one form.

A number says nothing without its scale: 1 is the best of 0..1 and the worst of five stars. So a scale is judged by all
scores of a name together: where one is outside of 0..1, none of that name counts until --scale says what is worst and best.
One that is outside of a scale that is known, or is no finite number, is refused alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from addons.production.traces.messages import answer_of
from addons.production.traces.records import Conversation, Feedback
from environments.base import Message
from steps.core.errors import UserError

Scales = Mapping[str, tuple[float, float]]  # name of a score -> its worst and its best value
GOOD_WORDS = frozenset(
    "good up thumbs_up thumbsup 👍 positive correct yes true like liked helpful pass passed accepted right".split()
)
BAD_WORDS = frozenset(
    """bad down thumbs_down thumbsdown 👎 negative incorrect no false dislike disliked unhelpful fail failed rejected
    wrong""".split()
)


def score_of(
    given: Any, name: str = "score", scales: Scales | None = None, is_label: bool = False
) -> tuple[float | None, str]:
    """(the score as a share of its scale, which is from 0 to 1 for values on it; the scale's name). A word has a score and
    no scale, whose name is empty. Nothing given has no score, and neither has a label's text that says neither good nor
    bad. ValueError for anything else that is no score, and for one that is not on the scale that it has."""
    value, scale = given, (scales or {}).get(name)
    if isinstance(given, str):
        value = text = re.sub("[\ufe0f\U0001f3fb-\U0001f3ff]", "", given.strip().lower())  # without shades of emoji
        word = re.sub(r"(?<=.)[\s-]+", "_", text)
        if word in GOOD_WORDS or word in BAD_WORDS:
            return float(word in GOOD_WORDS), ""
        if match := re.fullmatch(r"(-?\d+(?:\.\d+)?)_?(?:(%)|(?:/|_of_|_out_of_)_?(\d+(?:\.\d+)?)(?:_stars)?)", word):
            most = 100.0 if match[2] else float(match[3])  # "80%", "4/5"
            scale = scale or (0.0, most or 1.0)
            value = float(match[1])
        else:
            with suppress(ValueError):
                value = float(text)
    if value in (None, "") or (isinstance(value, str) and is_label):
        return None, ""
    if isinstance(value, bool):
        return float(value), name
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # an integer beyond all floats
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"the score {name} is {given!r:.40}, neither a finite number nor a word such as good or bad")
    low, high = scale or (0.0, 1.0)
    share = round((number - low) / (high - low), 6)
    if scale and not 0 <= share <= 1:
        raise ValueError(f"the score {name} is {number:g}, not from {low:g} to {high:g}")
    return share, name


def is_outside(feedback: Feedback) -> bool:
    """Whether a score is not from 0 to 1, so that its name needs a scale."""
    return feedback.score is not None and not 0 <= feedback.score <= 1


def waits(name: str) -> str:
    """Why no score of a name counts."""
    return (
        f"a score {name} is not from 0 to 1, so none counts: say what is worst and best with --scale {name}=LOW..HIGH"
    )


def unscaled(parts: Iterable[Conversation]) -> set[tuple[str, str]]:
    """(producer, name) of the scores of which one is not from 0 to 1."""
    return {(_producer(part), feedback.name) for part in parts for feedback in part.feedback if is_outside(feedback)}


def waiting(part: Conversation, names: set[tuple[str, str]]) -> list[str]:
    """The scores of a conversation that wait for the scale of one of these names."""
    return [feedback.name for feedback in part.feedback if (_producer(part), feedback.name) in names]


def without_scores(part: Conversation, names: set[tuple[str, str]]) -> Conversation:
    """A conversation without the scores of these names; words and corrections stay."""
    left_out = set(waiting(part, names))
    if not left_out:
        return part
    kept = (each.model_copy(update={"score": None}) if each.name in left_out else each for each in part.feedback)
    return part.model_copy(update={"feedback": tuple(kept)})


def _producer(part: Conversation) -> str:
    return part.key.partition(":")[0]


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


def place_in_time(value: Any) -> tuple[str, int, str]:
    """What sorts times in one form, finer than the microseconds of `moment`."""
    return moment(value), len(str(value)), str(value)


def consents(value: Any) -> bool:
    """Whether a field that a producer keeps for consent says yes."""
    return value is True or (
        isinstance(value, str | int) and str(value).strip().lower() in ("true", "yes", "1", "given")
    )
