"""What the agents share: the address (of a network that fails, where a test wants one), tools, and the count of calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from environments._agents import Result

TURNS = 3
TIMEOUT = float(os.environ.get("STORM_TIMEOUT", "60"))  # seconds, of a request
RETRIES = int(os.environ.get("STORM_RETRIES", "60"))  # of a request, by the SDK


def base_url(episode: Any) -> str:
    """The episode's address, through the proxy at STORM_PROXY where there is one."""
    proxy = os.environ.get("STORM_PROXY")
    if not proxy:
        return str(episode.base_url)
    scheme, _, rest = str(episode.base_url).partition("://")
    return f"{scheme}://{proxy}/{rest.partition('/')[2]}"


def question(episode: Any) -> str:
    return str(episode.scenario.messages[-1]["content"])


def search(query: str) -> str:
    """Search the mails for a text."""
    return f"2 mails hold {query[:20]!r}: 17, 23"


def read(number: int) -> str:
    """Read a mail by its number."""
    return f"Mail {number}: the meeting is on Tuesday."


def answer(text: str) -> str:
    """Give the answer."""
    return "noted"


TOOLS: list[Callable[..., str]] = [search, read, answer]
SCHEMAS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": {field: {"type": kind}}, "required": [field]},
        },
    }
    for name, text, field, kind in (
        ("search", "Search the mails for a text.", "query", "string"),
        ("read", "Read a mail by its number.", "number", "integer"),
        ("answer", "Give the answer.", "text", "string"),
    )
]


def run(name: str, arguments: str) -> str:
    """What a tool answers, whatever the policy made of its name and arguments."""
    return f"{name[:20]} was called with {arguments[:40]}"


def result(calls: int) -> Result:
    return Result(reward=float(calls % 2), components={"calls": float(calls)})
