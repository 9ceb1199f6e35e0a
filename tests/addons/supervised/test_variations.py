"""Variations of demonstrations: what was copied is replaced everywhere, and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

from addons.supervised.chats import Demonstration
from addons.supervised.section import Sft
from addons.supervised.variations import copied, variations
from environments.base import Message, use

KINDS = {"type": "string", "enum": ["Monday", "Friday"]}
TOOLS = [
    {"type": "function", "function": {"name": "find", "parameters": {"properties": {"surname": {}, "day": KINDS}}}},
    {"type": "function", "function": {"name": "connect", "parameters": {"properties": {"extension": {}}}}},
]
ASKED: list[Message] = [
    {"role": "user", "content": "Is Silva in on Monday at 07:55? Ms Silva, not Silvan."},
    use("find", surname="Silva", day="Monday", at="07:55", people=12, kind="anybody", first=True),
    {"role": "tool", "name": "find", "content": "Sami Silva, Archive: extension 4860, desk 14860"},
    use("connect", extension=4860),
    {"role": "tool", "name": "connect", "content": "connected"},
    {"role": "assistant", "content": "Sami Silva, Archive."},
]


def varied(copies: int = 1, messages: list[Message] = ASKED) -> list[Demonstration]:
    return variations([Demonstration(messages, None, "desk 1")], TOOLS, copies, 3)


def test_what_the_assistant_copied_is_told_from_what_it_chose() -> None:
    assert copied(ASKED, TOOLS) == ["Sami Silva, Archive", "Silva", "4860"]


def test_it_is_replaced_everywhere_and_the_rest_stays() -> None:
    [made] = varied()
    asked, call, answer, connect, last, words = made.messages
    arguments: dict[str, Any] = call["tool_calls"][0]["function"]["arguments"]
    name, extension = arguments["surname"], connect["tool_calls"][0]["function"]["arguments"]["extension"]
    assert name != "Silva"
    assert asked["content"] == f"Is {name} in on Monday at 07:55? Ms {name}, not Silvan."
    assert arguments | {"surname": ""} == {
        "surname": "", "day": "Monday", "at": "07:55", "people": 12, "kind": "anybody", "first": True,
    }  # fmt: skip
    assert isinstance(extension, int)
    assert 1000 <= extension <= 9999
    assert extension != 4860
    assert answer["content"].endswith(f": extension {extension}, desk 14860")
    assert words["content"] == answer["content"].partition(":")[0] + ".", "a whole answer that was copied"
    assert last == ASKED[4]
    assert made.source == "desk 1"
    assert "Silva" not in re.sub("Silvan", "", json.dumps(made.messages))


def test_each_copy_differs_and_the_same_seed_gives_the_same() -> None:
    assert len({json.dumps(each.messages) for each in varied(7)}) == 7
    assert varied(7) == varied(7)
    assert [each.messages for each in varied(2)] == [each.messages for each in varied(7)[:2]]


def test_nothing_is_made_of_one_that_copies_nothing() -> None:
    chosen: list[Message] = [
        {"role": "user", "content": "Good morning."},
        {"role": "assistant", "content": "How can I help?"},
    ]
    assert varied(5, chosen) == []


def test_how_many_are_made() -> None:
    def copies(count: int, **fields: Any) -> int:
        return Sft(demonstrations=("x",), **fields).copies(count)

    assert [copies(count) for count in (1, 30, 60, 120, 240, 2000)] == [50, 7, 3, 1, 0, 0]
    assert (copies(30, epochs=3), copies(30, variations=2), copies(30, epochs=3, variations=2)) == (0, 2, 2)
