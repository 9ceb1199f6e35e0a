"""Documents that were right once, with faults: values of other kinds, parts missing or twice, bytes cut off or flipped."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

HOSTILE = (
    "",
    " ",
    "\x00",
    "\ud800",
    "\u202e",
    "../..",
    "-1",
    "1e999",
    "NaN",
    "{",
    "]",
    "null",
    "é" * 50,
    "a" * 5000,
    "<|im_end|>",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=30),
    st.sampled_from(HOSTILE),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a document."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(place for key, value in inner for place in places(value, (*at, key)))]


def holder(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        document = document[key]
    return document


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three faults."""
    made = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(made)))
        if not place:
            if draw(st.integers(0, 9)) == 0:
                return draw(VALUES)
            continue
        around, key = holder(made, place), place[-1]
        kind = draw(st.sampled_from(("replace", "remove", "double", "wrap", "rename", "unwrap")))
        if kind == "remove":
            del around[key]
        elif kind == "double" and isinstance(around, list):
            around.insert(key, copy.deepcopy(around[key]))
        elif kind == "wrap":
            around[key] = draw(st.sampled_from(([around[key]], {"value": around[key]}, str(around[key]))))
        elif kind == "rename" and isinstance(around, dict):
            around[draw(st.text(max_size=8))] = around.pop(key)
        elif kind == "unwrap" and isinstance(around[key], list | dict) and around[key]:
            around[key] = next(iter(around[key].values() if isinstance(around[key], dict) else around[key]))
        else:
            around[key] = draw(VALUES)
    return made


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes with one to three faults."""
    made = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        low, high = sorted((draw(st.integers(0, len(made))), draw(st.integers(0, len(made)))))
        kind = draw(st.sampled_from(("cut", "flip", "insert", "remove", "double", "zero", "end")))
        if kind == "cut":
            del made[low:]
        elif kind == "flip" and low < len(made):
            made[low] ^= 1 << draw(st.integers(0, 7))
        elif kind == "insert":
            made[low:low] = draw(st.binary(min_size=1, max_size=12))
        elif kind == "remove":
            del made[low : min(high, low + 64)]
        elif kind == "double":
            made[low:low] = made[low : min(high, low + 512)]
        elif kind == "zero":
            made[low : min(high, low + 32)] = bytes(min(high, low + 32) - low)
        else:
            made += draw(st.binary(max_size=12))
    return bytes(made)


def text_of(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def lines_of(rows: list[Any]) -> st.SearchStrategy[str]:
    """JSON lines with faults in a row, or in the text."""
    whole = "\n".join(json.dumps(row) for row in rows)
    by_row = mutated(rows).map(lambda made: "\n".join(map(dumped, made if isinstance(made, list) else [made])))
    return by_row | damaged(whole.encode()).map(text_of)


def dumped(value: Any) -> str:
    return json.dumps(value)


def documents(document: Any) -> st.SearchStrategy[bytes]:
    """A JSON document with faults, or with damage to its bytes."""
    by_value = mutated(document).map(lambda made: json.dumps(made).encode())
    return by_value | damaged(json.dumps(document).encode())
