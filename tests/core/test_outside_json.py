"""JSON from outside: what is read is what json reads, and each trap is a sentence that holds nothing of the body."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from steps.core import outside_json


def value(rng: random.Random, depth: int) -> Any:
    kinds: list[Any] = [
        None,
        True,
        rng.randrange(-(10**20), 10**20),
        rng.random() * 10 ** rng.randrange(300),
        "é\n😀\x00",
    ]
    if depth and rng.random() < 0.7:
        parts = [value(rng, depth - 1) for _ in range(rng.randrange(4))]
        return parts if rng.random() < 0.5 else {f"{place}\\": part for place, part in enumerate(parts)}
    return rng.choice(kinds)


def test_what_json_writes_is_read_as_it_was() -> None:
    rng = random.Random(49)
    for _ in range(300):
        made = value(rng, 8)
        for is_ascii in (True, False):
            assert outside_json.read(json.dumps(made, ensure_ascii=is_ascii).encode()) == made
    deepest: Any = "x"
    for _ in range(outside_json.DEEPEST):
        deepest = [deepest]
    assert outside_json.read(json.dumps(deepest).encode()) == deepest
    assert outside_json.read(b'"' + b"[{" * 5000 + b'"') == "[{" * 5000, "brackets in a text are none"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * 101 + b"]" * 101, "nested too deeply"),
        (b'{"a":' * 99_999, "nested too deeply"),
        (b'{"secret":1,"secret":2}', "a field twice"),
        (b'[{"a":{"b":1,"b":1}}]', "a field twice"),
        (b'{"\\udc00":1}', "half a character"),
        (b'["\\ud83d"]', "half a character"),
        ("[]".encode("utf-32"), "not UTF-8"),
        (b"\xef\xbb\xbf{}", "a byte order mark"),
        (b'{"a":-Infinity}', "-Infinity"),
        (b"-1e400", "too large"),
        (b"1" * 301, "more than 300 digits"),
        (b"secret", "not valid JSON: Expecting value at character 0"),
    ],
)
def test_a_trap_is_a_sentence(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as problem:
        outside_json.read(body)
    assert str(problem.value).startswith("the body ")
    assert "secret" not in str(problem.value)
    assert problem.type is ValueError


def test_an_object_is_an_object() -> None:
    assert outside_json.read_object(b' {"a": [1]}\n') == {"a": [1]}
    with pytest.raises(ValueError, match="must be a JSON object"):
        outside_json.read_object(b"[]")
