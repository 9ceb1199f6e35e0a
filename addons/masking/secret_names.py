"""Finds secrets by what names them: the key above a value, a field or an item beside it, a list or an object around it.

Under some names any value is a secret ("password"), under others what looks random ("token" may be a word). Both hold for
all that a list or an object of the name holds, so for {"tokens": {"bot": "..."}}. In the JSON schema of a secret only the
keywords that describe it stay: its default and its constants do not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from steps.core.masking import MASK

# Names under which any value is a secret, and names under which it is one only if it looks random.
SURE = (
    r"pass[_ -]?(?:word|wd|phrase)|pwd|auth[_ -]?string"
    r"|(?:secret|private|signing|encryption)[_ -]?(?:access[_ -]?)?key(?:[_ -]?base)?"
)
SURE += r"|authorization|api[_ -]?key|credentials?|client[_ -]?secret"
UNSURE = (
    r"token|secret|jwt|bearer|access[_ -]?key(?:[_ -]?id)?|auth|cookie|private[_ -]?key[_ -]?id"
    r"|(?:account|shared|session)[_ -]?(?:access[_ -]?)?(?:key|id)"
)
UNSURE += r"|(?<=[A-Za-z0-9][_-])pass"
NAME = re.compile(rf"(?:|.*?[^a-z]|[a-z]*?)(?:(?P<sure>{SURE})|(?:{UNSURE}))[_-]?\d*", re.DOTALL)
NO_SECRET = re.compile(
    r".*\b(?:\w*_)?(?:bos|eos|pad|unk|sep|cls|mask|end|stop|start|next|first|last|special|per)_token"
)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
RANDOM = re.compile(r"(?=\D*\d)\S{8,}|\S{20,}")  # forms that words do not have
PLAIN = re.compile(r"\d{4}-\d\d\b\S*|\w+://\S*|[~.]{0,2}/\S*")  # dates, addresses and paths are no random texts
DRAWN = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[^\s\"'(){}]{6,200}")
ALTERNATE = re.compile(r"(?<=[A-Za-z])\d|\d(?=[A-Za-z])")
# Fields that name the value beside them, what stands behind the name there, and fields of the value.
NAMES = frozenset("name key field label element selector variable header id type question".split())
LABEL = re.compile(r"(?:\s\(.*|\s(?:field|input|box|textbox)\b\W*|[^\w\s]+|\s+)\Z", re.IGNORECASE | re.DOTALL)
VALUES = frozenset("value default text content answer".split())
WORDY = frozenset("text content answer".split())  # that may be prose
SCHEMA_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
SCHEMA = re.compile(
    rf"\{{(?:[^{{}}]|\{{[\d,]{{1,9}}\}}){{0,400}}?\\*[\"'](?:type\\*[\"']\s*:\s*\[?\s*\\*[\"'](?:{'|'.join(SCHEMA_TYPES)})\b|(?:anyOf|oneOf|allOf|enum|const|\$ref)\b)"
)
KEYWORDS = frozenset(
    "type description title format pattern required minLength maxLength minimum maximum minItems maxItems $ref $id".split()
)
# `"name": [` or `{` in JSON or Python, quotes escaped or not: HOLDS finds the colon, HOLDER the name before it.
HOLDS = re.compile(r":\s{0,3}(?=[\[{])")
HOLDER = re.compile(r"([\w-]{1,60})(\\*[\"'])\s{0,3}\Z")
CONTAINERS = (Mapping, list, tuple, set, frozenset)
COLON = re.compile(r"\s{0,3}:")


@functools.lru_cache(maxsize=4096)
def names_secret(name: str) -> bool | None:
    """True: any value under this name is a secret; False: it is one if it looks random; None: it is none."""
    small = CAMEL.sub("_", name[-100:]).lower().replace("-", "_")
    match = NAME.fullmatch(small)
    if match is None or NO_SECRET.fullmatch(small):
        return None
    return match["sure"] is not None


def secrecy(name: object, value: object, above: bool | None = None) -> bool | None:
    """`names_secret` of a value's name and of what it stands in (`above`). A list or an object may have the plural."""
    own = names_secret(name) if isinstance(name, str) else None
    if own is None and isinstance(name, str) and name[-1:] in ("s", "S") and isinstance(value, CONTAINERS):
        own = names_secret(name[:-1])
    return above if own is None else own or bool(above)


def is_secret(name: object, value: object, above: bool | None = None) -> bool:
    """Whether a value under this name is a secret. None, booleans and empty values are not."""
    if value is None or isinstance(value, bool) or value in ("", b"", MASK):
        return False
    sure = secrecy(name, value, above)
    if sure is not False or not isinstance(value, str):
        return sure is True
    is_own = secrecy(name, value) is not None
    return RANDOM.fullmatch(value) is not None and (is_own or PLAIN.fullmatch(value) is None)


def inside(fields: Mapping[Any, Any], above: bool | None) -> Iterator[tuple[Any, Any, Any, bool | None]]:
    """The fields of an object as key, name, value and the secrecy above it. The name is the key, or what a field beside it
    says, as in {"name": "password", "value": "x"}."""
    label, is_described = _label(fields), above is not None and is_schema(fields)
    for key, item in fields.items():
        field = str(key).lower()
        is_value = label and field in VALUES and not (field in WORDY and isinstance(item, str) and item.count(" ") > 3)
        is_free = is_described and key in KEYWORDS and not isinstance(item, Mapping)
        yield key, label if is_value else key, item, None if is_free else above


def _label(fields: Mapping[Any, Any]) -> str:
    """The name of a secret that a field says, one of which any value is a secret first; empty where none does."""
    label = ""
    for key, text in fields.items():
        if isinstance(text, str) and len(text) <= 100 and str(key).lower() in NAMES:
            while text != (text := LABEL.sub("", text)):
                pass
            if sure := names_secret(text):
                return text
            label = label or (text if sure is False else "")
    return label


def is_schema(value: Mapping[Any, Any]) -> bool:
    """Whether an object is the JSON schema of a value: one under the name `password` tells what a password is like."""
    kinds = value.get("type")
    kinds = kinds if isinstance(kinds, (list, tuple)) and kinds else [kinds]
    return all(kind in SCHEMA_TYPES for kind in kinds) or bool(
        value.keys() & {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
    )


def is_after(before: object, value: object) -> bool:
    """Whether a text of a list is the secret that the one before it names: ["--password", "x"], ["X-Api-Key", "a1B2c3"]."""
    if not isinstance(before, str) or not isinstance(value, str) or value.startswith("-"):
        return False
    if re.fullmatch(r"--?[A-Za-z][\w-]*", before):
        return is_secret(before.lstrip("-"), value)
    word = value.rpartition(" ")[2]
    return is_secret(before, value) and is_listed(word)


def is_listed(word: str) -> bool:
    """Whether a word of a list that follows a secret's name is it, and not the next name: digits and letters alternate."""
    return DRAWN.fullmatch(word) is not None and len(ALTERNATE.findall(word)) > 1


def without_held(text: str) -> str:
    """The text without what lists and objects after a secret's name hold."""
    parts, end = [], 0
    for match in HOLDS.finditer(text):
        if match.start() < end:
            continue
        before = HOLDER.search(text, max(end, match.start() - 80), match.start())
        sure = secrecy(before[1], ()) if before else None
        if before is None or sure is None:
            continue
        spans, close = _texts(text, match.end(), before[2], before[1])
        mark = MASK
        if sure and not SCHEMA.match(text, match.end()):
            spans, mark = [(match.end(), close)], f"{before[2]}{MASK}{before[2]}"
        for start, stop in spans:
            parts += [text[end:start], mark]
            end = stop
        parts.append(text[end:close])
        end = close
    return "".join([*parts, text[end:]]) if parts else text


def _texts(text: str, start: int, quote: str, name: str) -> tuple[list[tuple[int, int]], int]:
    """Where the secret texts of the list or object that begins at `start` stand, and where it ends. Quotes within a quoted
    text have more backslashes."""
    levels: list[tuple[bool | None, bool]] = []  # secrecy, and whether it is a schema
    spans, key, opened = [], name, -1
    for token in re.compile(rf"(?<!\\)\\*{quote[-1]}|[\[\]{{}}]").finditer(text, start):
        sign, place = token[0], token.start()
        if sign[-1] == quote[-1] and sign == quote:
            if opened < 0:
                opened = token.end()
                continue
            above, is_described = levels[-1]
            if COLON.match(text, token.end()):
                key = text[opened:place]
            elif not (is_described and key in KEYWORDS) and is_secret(key, text[opened:place], above):
                spans.append((opened, place))
            opened = -1
        elif opened < 0 and sign in "[{":
            above, is_described = levels[-1] if levels else (None, False)
            is_described = is_described if sign == "[" else SCHEMA.match(text, place) is not None
            levels.append((secrecy(key, (), above), is_described))
        elif opened < 0 and sign in "]}":
            levels.pop()
            if not levels:
                return spans, token.end()
    return spans, len(text)
