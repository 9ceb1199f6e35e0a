"""Finds personal data in a text by its form: each kind has a pattern, and a check where a form alone would hit harmless
numbers.

Check digits decide for the kinds that have them (python-stdnum's for IBANs and national ids), `ipaddress` for addresses
of machines, and the word before a number: "order", "version" or "part number" leave it, "phone", "passport no." or "born
on" take it. Each kind is tried only where a sign or a word of it is, because most texts have none.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module

import stdnum

from addons.production.traces.personal_forms import (
    ADDRESS4,
    ANNOUNCED,
    ANNOUNCING,
    ANY_ID,
    BIRTH_NUMBER,
    CALLED,
    CARD_NUMBER,
    CARDS,
    CLUSTER,
    COLONS,
    COORDINATES,
    COUNTED,
    DASHED,
    DATED,
    DOMAIN,
    DOTTED,
    HARMLESS,
    IBAN,
    IDS,
    IN_WORDS,
    INSURANCE,
    LINES,
    MAC,
    PAID,
    PHONES,
    SERVICES,
    SIGNS,
    SOCIAL,
    SPOKEN,
    STREET,
    WALLETS,
)
from steps.core.readable import Seen, Span, replaced, value_of
from steps.core.readable import seen as seen_as


def without(text: str) -> str:
    """The text with each piece of personal data as its kind in brackets."""
    return replaced(text, spans)


def spans(text: str) -> Iterator[Span]:
    """The pieces of personal data in a text."""
    for kind, start, end in _pieces(seen_as(text)):
        if not text.startswith("[", start):
            yield start, end, f"[{kind}]"


def _pieces(seen: Seen) -> Iterator[tuple[str, int, int]]:
    text = seen.text
    for kind, words in ANNOUNCED:
        for match in words.finditer(seen):
            yield kind, *value_of(match)
    yield from _mails(seen)
    if SIGNS.search(text):
        yield from _by_digits(seen)


def _by_digits(seen: Seen) -> Iterator[tuple[str, int, int]]:
    text, is_announced = seen.text, not seen.is_ascii or not seen.heads.isdisjoint(ANNOUNCING)
    for match in CLUSTER.finditer(text):
        start = match.start()
        while start > 0 and match.start() - start < 2 and text[start - 1] in "+(":
            start -= 1
        yield from _number(seen, start, match.end(), is_announced)
    for match in ADDRESS4.finditer(text):
        if _is_machine(text, match.start(), match.end()):
            yield "ip address", *match.span()
    for match in (match for pattern in IN_WORDS for match in pattern.finditer(text)):
        if INSURANCE.fullmatch(match[0]) or _is_id(match[0]):
            yield "number", *match.span()
    for match in IBAN.finditer(text):
        end = _iban(match[0])
        if end:
            yield "iban", match.start(), match.start() + end
    if "\n" in text or "\v" in text:
        for match in LINES.finditer(text):
            if CARDS.fullmatch(re.sub(r"\s+", " ", match[0])) and _luhn(match[0]):
                yield "card", *match.span()
    yield from _machines(text)
    for place, word in seen.long:
        for match in WALLETS.finditer(word) if len(word) >= 26 else ():
            if not match[0].isalpha() and not match[0].isdigit():
                yield "wallet", place + match.start(), place + match.end()
    for match in COORDINATES.finditer(text):
        first, second = (abs(float(re.sub(r"[^\d.-]", "", part))) for part in match[0].split(","))
        if 90 >= first >= 10 and second <= 180:
            yield "coordinates", *match.span()
    yield from (("address", *match.span()) for match in STREET.finditer(text))


def _number(seen: Seen, start: int, end: int, is_announced: bool) -> Iterator[tuple[str, int, int]]:
    """What a run of digits is, by its form and what stands before it. `is_announced`: the text has a word that may."""
    text = seen.text
    whole, before = text[start:end], text[start - 1 : start]
    is_plain = whole.isdecimal() and whole[0] != "0" and len(whole) not in (15, 16, 18)
    if (is_plain and not is_announced) or DATED.match(whole) or (before in ("-", ".", "/") and whole[0] != "+"):
        return
    around = text[max(0, start - 40) : start]
    is_called = is_announced and CALLED.search(around) is not None
    kind, size = _kind(whole, around, is_called, is_announced)
    if kind and (is_called or whole[0] == "+" or not HARMLESS.search(around) or CARD_NUMBER.search(around)):
        yield kind, start, start + size


def _kind(whole: str, before: str, is_called: bool, is_announced: bool) -> tuple[str, int]:
    """(the kind, how many characters of it); empty for no kind."""
    digits = "".join(filter(str.isdecimal, whole.partition("x")[0]))
    if len(set(digits)) == 1:
        return "", 0
    if (match := CARDS.match(whole)) and not whole[match.end() : match.end() + 1].isdigit() and _luhn(match[0]):
        return "card", match.end()
    if is_announced and 12 <= len(digits) <= 19 and whole[0] in "123456" and PAID.search(before) and _luhn(digits):
        return "card", len(whole)
    if SOCIAL.fullmatch(whole) or BIRTH_NUMBER.fullmatch(whole) or _is_id(whole):
        return "number", len(whole)
    if is_called and 7 <= len(digits) <= 15:
        return "phone", len(whole)
    if (
        (match := PHONES.match(whole))
        and match.end() >= len(whole.partition("x")[0]) - 1
        and not COUNTED.fullmatch(whole)
    ):
        count = sum(map(str.isdecimal, match[0]))
        if 8 <= count <= 15 and (len(digits) >= 9 or whole[0] in "+("):
            return "phone", len(whole)
    return "", 0


def _mails(seen: Seen) -> Iterator[tuple[str, int, int]]:
    text = seen.text
    place = text.find("@")
    while place >= 0:
        start = place
        if text[place - 1 : place] == '"' and (opened := text.rfind('"', max(0, place - 66), place - 1)) >= 0:
            start = opened
        else:
            while start > 0 and place - start < 64 and (text[start - 1].isalnum() or text[start - 1] in "._%+'-"):
                start -= 1
            start += len(text[start:place]) - len(text[start:place].lstrip("'.-"))
        domain = DOMAIN.match(text, place + 1)
        if (
            start < place
            and domain
            and text[start:place].lower() not in SERVICES
            and not _is_message(text, start, place)
        ):
            yield "email", start, domain.end()
        place = text.find("@", place + 1)
    yield from (("email", *match.span()) for match in SPOKEN.finditer(seen))


def _is_message(text: str, start: int, end: int) -> bool:
    """Whether what stands before the @ is the number of a message and nobody's name."""
    return text[start - 1 : start] == "<" and len(re.findall(r"\d", text[start:end])) >= 8


def _machines(text: str) -> Iterator[tuple[str, int, int]]:
    """Addresses of machines and of their network cards: where colons, or points between four hex digits, are."""
    for pattern, around in (
        (COLONS, "0123456789abcdefABCDEF:."),
        (DOTTED, "0123456789abcdefABCDEF."),
        (DASHED, "0123456789abcdefABCDEF-"),
    ):
        end = 0
        for match in pattern.finditer(text):
            start = match.start()
            while start > end and text[start - 1] in around and match.start() - start < 40:
                start -= 1
            stop = match.end()
            while stop < len(text) and text[stop] in around and stop - start < 46:
                stop += 1
            whole = text[start:stop].rstrip(".")
            if start < end or text[start - 1 : start].isalnum() or text[stop : stop + 1].isalnum():
                continue
            end = stop
            if MAC.fullmatch(whole):
                yield "mac address", start, start + len(whole)
            elif pattern is COLONS and _is_version6(whole):
                yield "ip address", start, start + len(whole)


def _is_version6(text: str) -> bool:
    groups = [group for group in text.split(":") if group]
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return (
        not (address.is_loopback or address.is_unspecified)
        and len(text) >= 6
        and len(groups) >= 2
        and any(map(str.isdigit, text))
    )


PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
WELL_KNOWN = frozenset("8.8.8.8 8.8.4.4 1.1.1.1 1.0.0.1 9.9.9.9 169.254.169.254".split())


def _is_machine(text: str, start: int, end: int) -> bool:
    """Whether four numbers are the address of somebody's machine, and no version, network or lab's."""
    try:
        address = ipaddress.IPv4Address(text[start:end])
    except ValueError:
        return False
    before, after = text[max(0, start - 30) : start], text[end : end + 1]
    if address.is_loopback or address.is_unspecified or address.is_multicast or int(address) >> 24 in (0, 255):
        return False
    if (
        text[start:end] in WELL_KNOWN
        or text[start:end].endswith(".0")
        or (int(address) >> 24 < 10 and HARMLESS.search(before))
    ):
        return False
    if (HARMLESS.search(before) and not re.search(r"(?:from|at|to|is|was|-|/)[ (\[\"']{0,2}\Z", before)) or re.match(
        r"[ ]?(?:of|release|version)\b", text[end : end + 9]
    ):
        return False
    is_quoted = before[-1:] in ("'", '"', "=", "`") or after in ("/", ":", "'", '"', "`")
    return not (is_quoted and any(address in network for network in PRIVATE)) and not (
        after == "/" and text[end + 1 : end + 2].isdigit()
    )


def _luhn(text: str) -> bool:
    digits = [int(sign) for sign in reversed(text) if sign.isdecimal()]
    weighed = [digit if place % 2 == 0 else sum(divmod(2 * digit, 10)) for place, digit in enumerate(digits)]
    return sum(weighed) % 10 == 0


def _iban(text: str) -> int:
    """How many characters of a text are an IBAN; 0 where none are."""
    for end in range(len(text), 14, -1):
        if (
            text[end - 1].isalnum()
            and not text[end : end + 1].isalnum()
            and _module("iban")(text[:end].replace(".", ""))
        ):
            return end
    return 0


def _is_id(text: str) -> bool:
    match = ANY_ID.fullmatch(text)
    return bool(match and match.lastindex and _module(tuple(IDS)[match.lastindex - 1])(text))


@lru_cache
def _module(name: str) -> Callable[[str], bool]:
    """The check of python-stdnum's module of this name."""
    made: Callable[[str], bool] = import_module(f"{stdnum.__name__}.{name}").is_valid
    return made
