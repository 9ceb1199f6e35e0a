"""A server's answer before anything trusts it: its text, its JSON, its token counts, and why it may hold no answer.

What a server says gets into the ledger, files, terminals and pages. So characters that move a terminal's cursor, or that
files and databases refuse, are removed; what is nested too deeply is refused; and a count that cannot be true is unknown.
Whether an answer is a good one is decided by whoever asked.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

LARGEST = 2**20  # bytes of an answer, decompressed, beside those that its tokens may take: reasoning, log probabilities
TOKEN = 64  # bytes of a token in JSON; one of ten escaped characters has 60
DEEPEST = 50  # levels of nesting
MOST_TOKENS = 10_000_000  # of a call; no model's context is that long
SHOWN = 200  # characters of a refusal
# All control characters but tab and newline, line separators, and marks that turn the direction of writing.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
FENCED = re.compile(r"```[A-Za-z0-9]*\s(.*)```", re.DOTALL)
STOPPED = {
    "content_filter": "the server's content filter stopped it",
    "length": "it was cut off at max_tokens",
    "refusal": "the model refused",
}
Pairs = list[tuple[str, Any]]


def plain(text: str) -> str:
    """The text without the characters of CONTROLS, and with a question mark for each half of a surrogate pair."""
    return CONTROLS.sub("", text).encode(errors="replace").decode()


def cleaned(value: Any, secret: str = "", depth: int = 0) -> Any:
    """A copy of parsed JSON in which texts are plain, the secret is "***", and numbers that are not finite are None.

    ValueError where it is nested more than DEEPEST levels deep, which the ledger could not write.
    """
    if isinstance(value, str):
        return plain(value).replace(secret, "***") if secret else plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, dict | list):
        return value
    if depth == DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(value, list):
        return [cleaned(item, secret, depth + 1) for item in value]
    return {cleaned(name, secret): cleaned(item, secret, depth + 1) for name, item in value.items()}


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, which some servers send in parts; what is not text is left out."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def token_counts(input_tokens: Any, output_tokens: Any) -> tuple[int, int] | None:
    """The tokens that a call took; None where the server did not count them, or says what cannot be true."""
    if any(type(count) is not int or not 0 <= count <= MOST_TOKENS for count in (input_tokens, output_tokens)):
        return None
    return (input_tokens, output_tokens) if input_tokens + output_tokens else None


class Doubled(ValueError):
    """A JSON object has a key twice."""


def parse(text: str, pairs: Callable[[Pairs], Any]) -> Any:
    """The JSON that the text is, or that it holds in a code fence; `pairs` makes the objects. ValueError where it is none:
    "is empty", "is no JSON" or "has a key twice".

    A fence with words around it is not taken: it may be a quotation of what was to be judged.
    """
    fenced = FENCED.fullmatch(text.strip())
    for candidate in (text, *(fenced.groups() if fenced else ())):
        try:
            return json.loads(candidate, object_pairs_hook=pairs)
        except Doubled:
            raise
        except (ValueError, RecursionError):
            continue
    raise ValueError("is no JSON" if text.strip() else "is empty")


def without_doubles(pairs: Pairs) -> dict[str, Any]:
    """A JSON object's pairs as a dict."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Doubled("has a key twice")
    return fields


def stopped(message: Mapping[str, Any], finish_reason: str) -> str:
    """Why the model may not have answered in full, as far as the server says so: a refusal, a filter, the token limit."""
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        return f"the model refused: {' '.join(refusal.split())[:SHOWN]!r}"
    return STOPPED.get(finish_reason, "")
