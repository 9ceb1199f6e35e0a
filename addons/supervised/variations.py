"""Variations of demonstrations: the same conversation with other names and numbers, so that copying is learnt and not names.

A few demonstrations hold a few names, and a small policy learns those by heart instead of reading them. In a variation each
text that the assistant took over word for word from what it had read (an argument of a call, or a whole answer) is replaced
by another one, everywhere in the conversation. What it did not copy stays: a value that only the schema offers, a time or a
date, which may be compared with others, and numbers of one or two digits, which may be counted with.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from addons.supervised import words
from addons.supervised.chats import Demonstration
from environments.base import Message

WORD = re.compile(r"[^\W\d_]+|\d+")
COMPARED = re.compile(r"[\d\s:./,+-]*[:./-][\d\s:./,+-]*")  # times, dates and the like
SHORTEST = 3  # letters or digits of what is replaced
LONGEST = 60  # letters of an answer that is taken for a copied value
NAMES = (*words.FIRST, *words.LAST, *words.PLACES)


def variations(
    demonstrations: Sequence[Demonstration], tools: Sequence[Mapping[str, Any]], copies: int, seed: int
) -> list[Demonstration]:
    """`copies` of each demonstration in which something is replaced; none of one in which nothing was copied. `tools` are
    the schemas of those that name none."""
    made = []
    for number in range(copies):
        for place, demonstration in enumerate(demonstrations):
            rng = random.Random(f"variation {seed} {number} {place}")
            values = copied(demonstration.messages, demonstration.tools or tools)
            if values:
                made.append(demonstration._replace(messages=replaced(demonstration.messages, values, rng)))
    return made


def copied(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the assistant took over word for word from earlier messages of others, the longest first."""
    values, read = dict[str, None](), ""
    for message in messages:
        if message["role"] != "assistant":
            read += f"\n{message['content']}"
            continue
        for value in given(message, tools):
            if is_replaceable(value) and re.search(bounded(value), read):
                values[value] = None
    return sorted(values, key=lambda value: (-len(value), value))


def given(message: Message, tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The texts and whole numbers in a turn's calls, and its words where they are few."""
    content = str(message.get("content") or "").strip()
    if content and len(content) <= LONGEST:
        yield content.rstrip(".!")
    for call in message.get("tool_calls") or ():
        function = call["function"]
        offered = enumerated(function["name"], tools)
        for name, value in function["arguments"].items():
            for part in value if isinstance(value, list) else [value]:
                if name not in offered and isinstance(part, str | int) and not isinstance(part, bool):
                    yield str(part)


def enumerated(name: str, tools: Sequence[Mapping[str, Any]]) -> set[str]:
    """The arguments of a tool whose schema lists their values."""
    schemas = [tool["function"].get("parameters") or {} for tool in tools if tool["function"]["name"] == name]
    return {
        argument
        for schema in schemas
        for argument, kind in (schema.get("properties") or {}).items()
        if "enum" in json.dumps(kind)
    }


def is_replaceable(value: str) -> bool:
    return not COMPARED.fullmatch(value) and any(len(part) >= SHORTEST for part in WORD.findall(value))


def bounded(value: str) -> str:
    """A pattern for the value where it is no part of a longer word or number."""
    return rf"(?<!\w){re.escape(value)}(?!\w)"


def replaced(messages: Sequence[Message], values: Sequence[str], rng: random.Random) -> list[Message]:
    """The conversation with another text in place of each value, the same one everywhere."""
    others = {value: WORD.sub(lambda part: other(part.group(), rng), value) for value in values}
    pattern = re.compile("|".join(map(bounded, values)))

    def change(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: others[match.group()], value)
        if isinstance(value, bool) or not isinstance(value, int | list | dict):
            return value
        if isinstance(value, int):
            return int(others.get(str(value), value))
        if isinstance(value, list):
            return [change(part) for part in value]
        return {name: change(part) for name, part in value.items()}

    changed = []
    for message in messages:
        calls = [
            call | {"function": call["function"] | {"arguments": change(call["function"]["arguments"])}}
            for call in message.get("tool_calls") or ()
        ]
        changed.append(message | {"content": change(message["content"])} | ({"tool_calls": calls} if calls else {}))
    return changed


def other(part: str, rng: random.Random) -> str:
    """Another word or number, as long as a number was, and with a capital where a word had one."""
    if len(part) < SHORTEST:
        return part
    if part.isdigit():
        return rng.choice("123456789") + "".join(rng.choice("0123456789") for _ in part[1:])
    word = rng.choice(NAMES) if rng.random() < 0.5 else words.made_up(rng)
    return word.capitalize() if part[:1].isupper() else word.lower()
