"""JSON that others send: one reader for every server's bodies.

Python's own reader takes more than JSON, and leaves traps for the code behind it: it guesses UTF-16, takes NaN, makes `inf`
of 1e999, keeps the last of two fields of one name (another reader may keep the first), and gives texts with half a character
that no file can hold. A body of many brackets ends in a RecursionError, here or in the code that walks it later. All of that
is a ValueError here, whose sentence says what is wrong and holds nothing of the body.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

DEEPEST = 100  # lists and objects within each other: code that walks them by recursion has room for this
DIGITS = 300  # of a whole number, so that it has a place among the floating ones
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character outside of the first plane; a pair of them is whole


def read(body: bytes) -> Any:
    """The value. ValueError with a sentence where it is not JSON in UTF-8, or one of the traps above."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"the body is not UTF-8 (byte {problem.start})") from None
    if text.startswith("\ufeff"):
        raise ValueError("the body begins with a byte order mark: send JSON in UTF-8 without it")
    try:
        value = DECODER.decode(text)
    except json.JSONDecodeError as problem:
        raise ValueError(f"the body is not valid JSON: {problem.msg} at character {problem.pos}") from None
    except ValueError as problem:  # one of the traps
        raise ValueError(f"the body{str(problem).removeprefix('it')}") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > DEEPEST:
        _refuse_deep(value)
    if HALF.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("the body holds half a character (a lone surrogate), which cannot be written") from None
    return value


def read_object(body: bytes) -> dict[str, Any]:
    """The object. ValueError with a sentence for anything else."""
    value = read(body)
    if not isinstance(value, dict):
        raise ValueError("the body must be a JSON object")
    return value


def _refuse_deep(value: Any) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEEPEST):
        inner = (part for each in level for part in (each.values() if isinstance(each, dict) else each))
        level = [part for part in inner if isinstance(part, (dict, list))]
        if not level:
            return
    raise ValueError(TOO_DEEP)


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"it holds a number of more than {DIGITS} digits")
    return int(digits)


def _number(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError("it holds a number that is too large")
    return value


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("it holds an object with a field twice, of which readers take one or the other")
    return made


def _constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is no JSON")


TOO_DEEP = f"the body is nested too deeply: more than {DEEPEST} lists and objects within each other"
DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_number, parse_constant=_constant, object_pairs_hook=_fields)
