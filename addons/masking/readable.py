"""A text as a reader takes it: other scripts' digits and full-width letters as ASCII, entities and escapes decoded.

What is found in it is replaced in the text itself (`replaced`), whose other characters stay as they are.
"""

# ruff: noqa: RUF001  # letters of other scripts, which are meant
from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from html import unescape
from typing import NamedTuple

Span = tuple[int, int, str]  # start, end, and what stands there afterwards
NOTHING = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f"  # characters that show nothing
CODED = re.compile(
    r"%[2-7][0-9A-Fa-f]|&#(?:\d{2,3}|[xX][0-9A-Fa-f]{2});|&(?:commat|period|colon);"
    rf"|(?<!\\)\\{{1,32}}(?:u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|[nrt](?![A-Za-z]{{0,20}}[:\\]))|[{NOTHING}]"
)
GAPS = bytes(code if chr(code).isalpha() and code < 128 else 32 for code in range(256))
DIGIT = re.compile("[0-9]")
SHY = re.compile(f"[{NOTHING}]")


class Readable(NamedTuple):
    """The readable text, and where its pieces begin in it and in the original."""

    text: str
    starts: list[int]
    originals: list[int]

    def place(self, at: int) -> int:
        """Where in the original the character at a place stands."""
        piece = bisect_right(self.starts, at) - 1
        return self.originals[piece] + at - self.starts[piece]


@lru_cache(1)
def table() -> dict[int, str]:
    """What is written for a single character of other scripts."""
    made = {}
    for code in range(128, 0x20000):  # Unicode has no digits behind
        if chr(code).isdecimal():
            made[code] = str(unicodedata.decimal(chr(code)))
        elif 0xFF01 <= code <= 0xFF5E:
            made[code] = chr(code - 0xFEE0)
    made |= dict.fromkeys(map(ord, "\u00a0\u2000\u2001\u2002\u2003\u2007\u2009\u202f\u3000"), " ")
    made |= dict.fromkeys(map(ord, "‐‑‒–—−"), "-")
    return made | {ord("。"): ".", ord("．"): "."}


@lru_cache(2)
def readable(text: str) -> Readable | None:
    """None where the text is readable as it is."""
    shown = text
    if not text.isascii():
        for code in table().keys() & set(map(ord, set(text))):
            shown = shown.replace(chr(code), table()[code])
    is_coded = "%" in text or "&" in text or "\\" in text or (not text.isascii() and SHY.search(text) is not None)
    first = CODED.search(shown) if is_coded else None
    if first is None:
        return None if shown is text else Readable(shown, [0], [0])
    parts, starts, originals, size, end = [], [0], [0], 0, 0
    for match in CODED.finditer(shown, first.start()):
        sign = _decoded(match[0])
        parts += [shown[end : match.start()], sign]
        size += match.start() - end
        starts += [size, size + len(sign)] if sign else [size]
        originals += [match.start(), match.end()] if sign else [match.end()]
        size, end = size + len(sign), match.end()
    return Readable("".join([*parts, shown[end:]]), starts, originals)


def _decoded(code: str) -> str:
    if code[0] == "%":
        return chr(int(code[1:], 16))
    if code[0] == "&":
        return unescape(code) if len(unescape(code)) == 1 else " "
    if code[0] != "\\":
        return ""
    # No line break: that ends a quoted text.
    return chr(int(code[-4:], 16)).translate(table()) if code.lstrip("\\")[0] == "u" else "\v"


def replaced(text: str, find: Callable[[str], Iterable[Span]]) -> str:
    """The text with what `find` finds in it as it is read; spans that overlap are one, with the first one's
    mark."""
    seen = readable(text)
    spans = sorted(find(seen.text if seen else text), key=lambda span: (span[0], -span[1]))
    if not spans:
        return text
    parts, end = [], 0
    for start, stop, mark in spans:
        start, stop = (seen.place(start), seen.place(stop - 1) + 1) if seen else (start, stop)
        if seen and stop < len(text) and (code := CODED.match(text, stop - 1)) and code.start() == stop - 1:
            stop = code.end()
        if start >= end:
            parts += [text[end:start], mark]
        end = max(end, stop)
    return "".join([*parts, text[end:]])


class Seen:
    """A text, the same in lower case with as many characters, and its words."""

    def __init__(self, text: str) -> None:
        small = text.lower()
        if len(small) != len(text):  # the lower case of some letters is two characters
            small = "".join(sign.lower() if sign.isascii() else sign for sign in text)
        self.text, self.small, self.is_ascii = text, small, text.isascii()
        plain = small.encode("ascii", "replace")
        self.plain = small if self.is_ascii else plain.decode()  # which is searched faster
        self.has_digits = DIGIT.search(self.plain) is not None
        self.long = list(long_words(text, 16))
        words = set(plain.translate(GAPS).decode().split())
        heads = {word[:4] for word in words}
        self.heads = heads | {head[:3] for head in heads}
        self.live: dict[Words, list[str]] = {}  # the words that may be there, by their pattern
        for head in self.heads & BEGINS.keys():
            for pattern, word in BEGINS[head]:
                self.live.setdefault(pattern, []).append(word)


BEGINS: dict[str, list[tuple[Words, str]]] = {}  # the first letters of a word -> the patterns that it announces


class Words:
    """A pattern that is tried only where one of some words is in the text in lower case. `back`: how many characters before
    the word it may begin; 0: with the word. `wordy`: it may have no digit."""

    def __init__(
        self, words: str, pattern: str, flags: re.RegexFlag = re.NOFLAG, back: int = 0, wordy: bool = False
    ) -> None:
        self.pattern, self.back, self.wordy = re.compile(pattern, flags), back, wordy or r"\d" not in pattern
        self.words: list[str] = []  # those that may begin within a word of the text
        self.others: list[str] = []  # those with other letters than ASCII's, which only some texts have
        for word in words.split(","):
            head = max(["", *re.findall(r"[a-z]+", word)], key=len)[:4]
            if not word.isascii():
                self.others.append(word)
            elif back or len(head) < 3:
                self.words.append(word)
            else:
                BEGINS.setdefault(head, []).append((self, word))

    def finditer(self, seen: Seen) -> Iterator[re.Match[str]]:
        """Its matches in a text."""
        if not (self.wordy or seen.has_digits):
            return
        places, end = places_of([*self.words, *seen.live.get(self, ())], seen.plain), 0
        if not seen.is_ascii:
            places |= places_of(self.others, seen.small)
        for place in sorted(places):
            if place < end:
                continue
            if self.back:
                match = self.pattern.search(seen.text, max(end, place - self.back), place + 200)
            else:
                match = self.pattern.match(seen.text, place)
            if match:
                yield match
                end = match.end()


def places_of(words: Iterable[str], text: str) -> set[int]:
    """Where one of the words stands in a text, whatever stands around it."""
    places = set[int]()
    for word in words:
        place = text.find(word)
        while place >= 0:
            places.add(place)
            place = text.find(word, place + 1)
    return places


@lru_cache(2)
def seen(text: str) -> Seen:
    return Seen(text)


def long_words(text: str, least: int) -> Iterator[tuple[int, str]]:
    """The words of a text that have at least so many characters, with their places."""
    place = 0
    for word in [word for word in text.split() if len(word) >= least]:
        place = text.find(word, place)
        yield place, word
        place += len(word)


def value_of(match: re.Match[str]) -> tuple[int, int]:
    """Where the group that matched stands, or all of the match where it has none."""
    return match.span(match.lastgroup) if match.lastgroup else match.span()
