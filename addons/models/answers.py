"""A server's answer before anything trusts it: its text, its JSON, its token counts, and why it may hold no answer.

What a server says gets into the ledger, files, terminals and pages. So characters that move a terminal's cursor, or that
files and databases refuse, are removed; what is nested too deeply is refused; and a count that cannot be true is unknown.
Whether an answer is a good one is decided by whoever asked.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

LARGEST = 2**20  # bytes of an answer, decompressed, beside those that its tokens may take: reasoning, log probabilities
TOKEN = 64  # bytes of a token in JSON; one of ten escaped characters has 60
DEEPEST = 50  # levels of nesting
MOST_TOKENS = 10_000_000  # of a call; no model's context is that long
SHOWN = 200  # characters of a refusal
# All control characters but tab and newline, line separators, and marks that turn the direction of writing.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
FENCED = re.compile(r"```[A-Za-z0-9]*\s(.*)```", re.DOTALL)
BRACE = re.compile(r'\{\s*"([^"]*)"')  # how an object begins that is not empty
TRIED = 200  # beginnings of objects that are none, after which no more are tried
THOUGHTS = [(f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "reasoning")]
THOUGHTS += [("[THINK]", "[/THINK]")]
ASIDE = ("reasoning", "thinking")  # types of parts that are no answer
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
    """The text of a message, which some servers send in parts; what is not text is left out, and so are thoughts. Of a
    message without a text it is the reasoning where that is an object: servers that look for the end of thoughts take an
    answer without any for thoughts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") not in ASIDE]
    text = "".join(text for text in texts if isinstance(text, str))
    reasoning = str(message.get("reasoning_content") or message.get("reasoning") or "").strip()
    is_object = reasoning.startswith("{") and reasoning.endswith("}")
    return reasoning if is_object and not text.strip() else text


def token_counts(input_tokens: Any, output_tokens: Any) -> tuple[int, int] | None:
    """The tokens that a call took; None where the server did not count them, or says what cannot be true."""
    if any(type(count) is not int or not 0 <= count <= MOST_TOKENS for count in (input_tokens, output_tokens)):
        return None
    return (input_tokens, output_tokens) if input_tokens + output_tokens else None


class Doubled(ValueError):
    """A JSON object has a key twice."""


def parse(text: str, pairs: Callable[[Pairs], Any], keys: Collection[str] = (), whole: bool = False) -> Any:
    """The JSON that the text is, that it holds in a code fence, or that follows thoughts and other words; `pairs` makes the
    objects. ValueError, which begins with what it is: "is empty", "is no JSON", "has a key twice", "is cut off", ….

    Among words the answer is the last complete object that has one of `keys`, or any key where none are given: drafts come
    first. What a model thinks before </think> is never the answer. It is refused where an object like it begins later and
    does not end; and where others before it differ and words follow it, since it may then be a quotation of what was to be
    judged. With `whole`, as of an answer that was stopped, nothing is searched for."""
    fenced = FENCED.fullmatch(text.strip())
    for candidate in (text, *(fenced.groups() if fenced else ())):
        try:
            return json.loads(candidate, object_pairs_hook=pairs)
        except Doubled:
            raise
        except (ValueError, RecursionError):
            continue
    if whole or not text.strip():
        raise ValueError("is no JSON" if text.strip() else "is empty")
    return json.loads(_last_object(after_thoughts(text), keys), object_pairs_hook=pairs)


def after_thoughts(text: str) -> str:
    """What follows the last end of thoughts, or all. ValueError where thoughts begin the text and do not end."""
    ends = max(text.rfind(tag) + len(tag) if tag in text else 0 for _, tag in THOUGHTS)
    if not ends and text.lstrip().startswith(tuple(tag for tag, _ in THOUGHTS)):
        raise ValueError("is cut off: it begins with thoughts that do not end")
    return text[ends:]


def _last_object(text: str, keys: Collection[str]) -> str:
    """The text of the object that `parse` takes."""
    decoder, place, broken, tried = json.JSONDecoder(object_pairs_hook=_Fields), 0, -1, 0
    objects: list[tuple[int, int, _Fields]] = []  # beginning, end, pairs
    while (brace := BRACE.search(text, place)) is not None and tried < TRIED:
        place = brace.start() + 1
        begins_like_it = brace[1] in keys if keys else True
        try:
            fields, end = decoder.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            tried += 1
            broken = brace.start() if begins_like_it else broken
            continue
        place = end
        if not keys or any(name in keys for name, _ in fields):
            objects.append((brace.start(), end, fields))
    if tried == TRIED or (not objects and broken < 0):
        raise ValueError("is no JSON" if text.strip() else "is empty after its thoughts")
    if not objects or broken > (objects[-1][0] if keys else -1):
        raise ValueError("is no JSON: its last object does not end, as if it was cut off")
    begin, end, fields = objects[-1]
    if any(other != fields for _, _, other in objects) and text[end:].strip(" \t\n`"):
        raise ValueError("holds several answers that differ, and goes on after the last")
    return text[begin:end]


class _Fields(list[tuple[str, Any]]):
    """The pairs of an object, apart from lists."""


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
