"""The numbers that a task's own code returns, and their check: rewards and their components, successes, what judges compare.

One that is no finite number costs its attempt the score, with the sentence of `UnusableNumber` as the reason
(steps/judging/rule.py). Numbers of numpy, torch and the like count as what they hold.
"""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any

from pydantic import BaseModel, ConfigDict

LARGEST = 1e15  # squares and sums of such numbers are finite in float32 too, in which advantages are computed
QUOTED = 60  # characters shown of a value
REASON = "unusable: "  # how the explanation of a reward begins that was not scored because of such a number


class Result(BaseModel):
    """What an episode of your own agent came to. A float stands for Result(reward=…)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    reward: float | None = None  # None: a judge scores the episode
    success: bool | None = None  # None: success is a reward above 0.5
    components: dict[str, float] = {}  # parts of the reward by name
    output: str = ""  # what the agent came to, for judges; its last words where it is empty


class UnusableNumber(TypeError):
    """What was returned, and where, as in "reward is nan: component tidy"."""


def number(value: Any, name: str, where: str = "") -> float:
    """The value as a finite float; True is 1. UnusableNumber where it is none: NaN, infinite, above LARGEST, a text, a
    complex number, None. `name` says what it is, and `where` in which part."""
    given, place = _plain(value), f": {where}" if where else ""
    if not isinstance(given, Real | Decimal):
        raise UnusableNumber(f"{name} is {_shown(value)}, which is no number{place}")
    try:
        result = float(given)
    except OverflowError:
        result = math.inf if given > 0 else -math.inf  # pyrefly: ignore[unsupported-operation]
    except ValueError:  # a signalling NaN of Decimal
        result = math.nan
    if not math.isfinite(result):
        raise UnusableNumber(f"{name} is {result}{place}")
    if abs(result) > LARGEST:
        raise UnusableNumber(f"{name} is {result:g}, which is too large to compare with others{place}")
    return result


def truth(value: Any, name: str) -> bool:
    """The value as a bool; 0 and 1 are taken for one. UnusableNumber for anything else."""
    given = _plain(value)
    if isinstance(given, bool) or (isinstance(given, Real) and given in (0, 1)):
        return bool(given)
    raise UnusableNumber(f"{name} is {_shown(value)}, and neither True nor False")


def _plain(value: Any) -> Any:
    """The Python value of a number of numpy or torch."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _shown(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a class of the task's own
        return f"a {type(value).__name__}"
    return text if len(text) <= QUOTED else f"{text[:QUOTED]} …"
