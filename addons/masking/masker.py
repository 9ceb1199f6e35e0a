"""Finds secrets that are nowhere written down as such, and masks them in the core's place (steps/core/masking.py).

A secret is, beside the values of the environment,

- a value under or beside a name of one ("password", "api_key", "authorization"), in JSON within a text too, where it may be
  a list or an object (secret_names.py);
- a text with the form of one: keys of well-known services, JSON web tokens, private keys, passwords in addresses,
  `password=...` and `"token": "..."` in a text (secret_forms.py).

It cannot recognise a secret in plain words ("it is the name of my dog"). Counts such as `max_tokens`, the tokens of a
tokenizer, and code that only handles secrets stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from addons.masking import secret_forms, secret_names
from addons.masking.readable import Span, places_of, replaced
from addons.masking.readable import seen as seen_as
from addons.masking.secret_names import SURE, UNSURE
from steps.core import masking
from steps.core.masking import IN_ADDRESS, MASK, SHORTEST, Inside

# The pattern is tried only where one of these occurs in the lower-case text, because finding them is 50 times as fast.
KEYS = (
    "pass pwd secret private signing encryption auth api credential"
    " token access cookie account shared session bearer jwt ssws ://"
).split()
CLOSED = r"(?:\\*[\"'`]|\]|\*{1,3}|</\w{1,9}>)"  # markup that ends with a name
TEXT = re.compile(
    r"(?P<lead>(?<!\w)(?i:bearer|ssws)[ \t]+)(?=[\w.~+/-]{0,500}\d)[\w.~+/-]{8,}=*"
    r"|(?P<place>://[^\s/:\"'<>]{0,200}:)"  # to the last @: a password may hold others, and /
    r"(?:[^\s/\"'<>]{1,300}(?=@)|(?!\d{1,5}[/?])[^\s\"'<>]{1,100}(?=@))"
    rf"|(?P<word>(?i:{SURE}|{UNSURE})[_-]?\d*)"
    rf"(?:{CLOSED}{{0,2}}\s{{0,3}}(?:=>|:=?|<-|=(?!=)|(?<=\w)>(?=[^\s<]))(?:\*{{1,2}}(?=[ \t])|</\w{{1,9}}>)?\s{{0,3}}"
    r"(?:[|>][+-]?[ \t]{0,3}[\n\v]\s{1,20}|\(\s{0,20}(?=\\*[\"'])|`)?"  # a block, a bracket
    r"|(?P<pair>(?:\s(?:field|input|box))?(?:\\*[\"'](?=[\s,])[^<>{}()\[\]]{0,80}?|[ \t]{0,3}[\n\v][ \t]{0,40})"
    r"\b(?i:value|default|(?:text|content|answer)(?=\W{1,9}[^\s\"']{0,79}\d))(?:\\*[\"'])?\s{0,3}[:=]\s{0,3})"
    r"|(?P<gap>(?:\\*[\"'`])?(?:[ \t]{1,3}(?:[|→»][ \t]{1,3})?|\s{0,40},\s{0,40}(?=\\*[\"']))"
    r"|\\*[\"']>|</\w{1,9}>\s{0,20}<\w{1,9}>)(?!-))"  # --password x, "--password", "x", | password | x |
    r"(?:(?P<open>\\*[\"'])"  # `_quoted_end` finds where it is closed
    r"|(?P<scheme>(?i:basic|bearer|digest|token)[ \t]+)?"
    r"(?(scheme)|(?![$%]))"  # a variable's name
    r"(?P<bare>(?:(?<=\w)'(?=\w)|[^\s\"'<>,;&(){}\[\]|\\]){1,4000}+)(?![(\[]))",
    re.DOTALL,
)
OPTION = re.compile(r"(?:\A|[^\w-])(?:--?(?:[A-Za-z][\w-]*)?|(?:ENV|ARG|setx|setenv|set -\w{1,3})[ \t]+\w*)\Z")
# What stands before a name that has its value beside it.
PAIRED = re.compile(
    rf"(?i)\b(?:{'|'.join(sorted(secret_names.NAMES))})\\*[\"']?\s{{0,3}}[:=]\s{{0,3}}\\*[\"']?[^\"'\n:=]{{0,40}}\Z"
)
APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
QUOTE = re.compile(r"(?<!\\)\\*[\"']|\n")
REST = re.compile(r"[^\s\"'<>,;&(){}\[\]|\\]*")  # of a value that is longer than the pattern reads
LONGEST = 4000  # characters of a value by which is decided whether it is a secret; then all of it is masked
BEFORE = re.compile(r"[\w-]{1,60}\Z")
CODE = re.compile(  # texts after `password:` that are none
    r"(?:str|string|bytes|none|null|true|false|optional|required"
    r"|any|self|tokens?|secret|password|key|auth|basic|bearer"
    r"|the|your|changed?|reset|missing|invalid|wrong|expired|unset|enabled|disabled)\b[.:!?]*$"
    r"|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+$"  # settings.password
    r"|[$%]|\*+$|\.+$|x+$",
    re.IGNORECASE,
)


class Masker(masking.Masker):
    """Masks what is recognised, too."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.text  # what masks the text that base64 holds

    def text(self, text: str) -> str:
        text = self.without_values(text)
        return text if len(text) < SHORTEST else replaced(secret_names.without_held(text), self._spans)

    def sure(self, text: str) -> str:
        """A text without the environment's secrets and keys of services, whatever stands before them."""

        def spans(shown: str) -> Iterator[Span]:
            yield from ((*match.span("value"), MASK) for match in IN_ADDRESS.finditer(shown))
            yield from ((*span, MASK) for span in secret_forms.keys(shown))

        return replaced(self.without_values(text), spans)

    def _spans(self, text: str) -> Iterator[Span]:
        seen = seen_as(text)
        yield from ((*span, MASK) for span in _after_names(text, seen.plain))
        yield from ((*span, MASK) for span in secret_forms.spans(seen, self.again))

    @staticmethod
    def names_secret(name: str) -> bool:
        return secret_names.names_secret(name) is not None

    def copy(self, value: Any, depth: int, around: frozenset[int], above: bool | None) -> Any:
        is_held = above is not None and not isinstance(value, secret_names.CONTAINERS)
        if is_held and secret_names.is_secret("", value, above):
            return MASK
        return super().copy(value, depth, around, above)

    def fields(self, fields: Mapping[Any, Any], inside: Inside) -> dict[Any, Any]:
        depth, around, above = inside
        return {
            self.text(key) if isinstance(key, str) else key: MASK
            if secret_names.is_secret(name, item) and not (isinstance(item, Mapping) and secret_names.is_schema(item))
            else self.copy(item, depth, around, secret_names.secrecy(name, item, held))
            for key, name, item, held in secret_names.inside(fields, above)
        }

    def items(self, items: list[Any], inside: Inside) -> list[Any]:
        pairs = zip([None, *items], items, strict=False)
        return [MASK if secret_names.is_after(before, item) else self.copy(item, *inside) for before, item in pairs]


def _after_names(text: str, small: str) -> Iterator[tuple[int, int]]:
    """Where a secret stands after its name; `small` is the text in lower case."""
    end = 0
    for place in sorted(places_of(KEYS, small)):
        if place >= end and (match := TEXT.match(text, place)) and (secret := _secret(text, match)) is not None:
            yield secret
            end = secret[1]


def _secret(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    """Where the secret in a match begins and ends; None where the match is no secret after all."""
    for group in ("lead", "place"):
        if match[group] is not None:
            return match.end(group), match.end()
    around = text[max(0, match.start() - 60) : match.start()]
    before = BEFORE.search(around)
    sure = secret_names.names_secret((before[0] if before else "") + match["word"])
    is_apart = match["gap"] is not None and not OPTION.search(around)  # as in `#define PASSWORD "x9"`
    if sure is None or (match["pair"] is not None and not PAIRED.search(around)):
        return None
    if match["open"] is not None:
        start, end = match.end(), _quoted_end(text, match.end(), match["open"], match.end() + LONGEST)
    else:
        start, end = match.span("bare")
        if text[start - 1] == "`":
            end = start + len(match["bare"].partition("`")[0])
    value = text[start:end]
    if match["open"] is not None:
        is_drawn = secret_names.is_listed(value) if "," in (match["gap"] or "") else secret_names.DRAWN.fullmatch(value)
        is_none = not value.strip(" )]},;:.") or (is_apart and not is_drawn)
    elif is_apart:
        is_none = end - start > 200 or not secret_forms.is_drawn(value)
    else:
        is_none = not match["scheme"] and ((end - start < 4 and match["gap"] is None) or CODE.match(value) is not None)
    if is_none:
        return None
    if not value or value.startswith(MASK) or not (sure or match["scheme"] or secret_names.RANDOM.fullmatch(value)):
        return None
    if end - start < LONGEST:
        return start, end
    if match["open"]:
        return start, _quoted_end(text, start, match["open"], len(text))
    rest = REST.match(text, end)
    return start, rest.end() if rest else end


def _quoted_end(text: str, start: int, opened: str, limit: int) -> int:
    """Where a quoted text ends that begins at `start`: before the quote that closes it, else with its line, or at `limit`.

    `opened` is the quote with the backslashes before it: JSON in JSON has one, and three on the next level. A quote that
    belongs to the text has more of them, and so has one after a backslash that does: both come in whole multiples.
    """
    slashes = len(opened) - 1
    for token in QUOTE.finditer(text, start, limit):
        sign, place = token[0][-1], token.start()
        if sign == "\n":
            return place
        if sign != opened[-1] or APOSTROPHE.match(text, place):
            continue
        more = len(token[0]) - len(opened)
        if more < 0 or more % (2 * slashes + 2) == 0:
            return token.end() - len(opened) if more > 0 else place
    return min(limit, len(text))
