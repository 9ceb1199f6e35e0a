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
from string import hexdigits

import stdnum

from addons.masking.readable import Seen, Span, replaced, value_of
from addons.masking.readable import seen as seen_as
from addons.production.traces import personal_forms as forms


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
    for kind, words in forms.ANNOUNCED:
        for match in words.finditer(seen):
            yield kind, *value_of(match)
    yield from _mails(seen)
    if forms.SIGNS.search(text):
        yield from _by_digits(seen)


def _by_digits(seen: Seen) -> Iterator[tuple[str, int, int]]:
    text, is_announced = seen.text, not seen.is_ascii or not seen.heads.isdisjoint(forms.ANNOUNCING)
    for match in forms.CLUSTER.finditer(text):
        start = match.start()
        while start > 0 and match.start() - start < 2 and text[start - 1] in "+(":
            start -= 1
        yield from _number(seen, start, match.end(), is_announced)
    for match in forms.ADDRESS4.finditer(text):
        if _is_machine(text, match.start(), match.end()):
            yield "ip address", *match.span()
    for match in (match for pattern in forms.IN_WORDS for match in pattern.finditer(text)):
        if forms.INSURANCE.fullmatch(match[0]) or _is_id(match[0]):
            yield "number", *match.span()
    for match in forms.IBAN.finditer(text):
        if end := _iban(match[0]):
            yield "iban", match.start(), match.start() + end
    if "\n" in text or "\v" in text:
        for match in forms.LINES.finditer(text):
            if forms.CARDS.fullmatch(re.sub(r"\s+", " ", match[0])) and _luhn(match[0]):
                yield "card", *match.span()
    yield from _machines(text)
    for place, word in seen.long:
        for match in forms.WALLETS.finditer(word) if len(word) >= 26 else ():
            if not match[0].isalpha() and not match[0].isdigit():
                yield "wallet", place + match.start(), place + match.end()
    for match in forms.COORDINATES.finditer(text):
        first, second = (abs(float(re.sub(r"[^\d.-]", "", part))) for part in match[0].split(","))
        if 90 >= first >= 10 and second <= 180:
            yield "coordinates", *match.span()
    yield from (("address", *match.span()) for match in forms.STREET.finditer(text))


def _number(seen: Seen, start: int, end: int, is_announced: bool) -> Iterator[tuple[str, int, int]]:
    """What a run of digits is, by its form and what stands before it. `is_announced`: the text has a word that may."""
    text = seen.text
    whole, before = text[start:end], text[start - 1 : start]
    is_plain = whole.isdecimal() and whole[0] != "0" and len(whole) not in (15, 16, 18)
    if (is_plain and not is_announced) or forms.DATED.match(whole) or (before in ("-", ".", "/") and whole[0] != "+"):
        return
    around = text[max(0, start - 40) : start]
    is_called = is_announced and forms.CALLED.search(around) is not None
    kind, size = _kind(whole, around, is_called, is_announced)
    if kind and (is_called or whole[0] == "+" or not forms.HARMLESS.search(around) or forms.CARD_NUMBER.search(around)):
        yield kind, start, start + size


def _kind(whole: str, before: str, is_called: bool, is_announced: bool) -> tuple[str, int]:
    """(the kind, how many characters of it); empty for no kind."""
    digits = "".join(filter(str.isdecimal, whole.partition("x")[0]))
    if len(set(digits)) == 1:
        return "", 0
    if (match := forms.CARDS.match(whole)) and not whole[match.end() : match.end() + 1].isdigit() and _luhn(match[0]):
        return "card", match.end()
    has_its_length = 12 <= len(digits) <= 19 and whole[0] in "123456"
    if is_announced and has_its_length and forms.PAID.search(before) and _luhn(digits):
        return "card", len(whole)
    if forms.SOCIAL.fullmatch(whole) or forms.BIRTH_NUMBER.fullmatch(whole) or _is_id(whole):
        return "number", len(whole)
    if is_called and 7 <= len(digits) <= 15:
        return "phone", len(whole)
    match = None if forms.COUNTED.fullmatch(whole) else forms.PHONES.match(whole)
    count = sum(map(str.isdecimal, match[0])) if match and match.end() >= len(whole.partition("x")[0]) - 1 else 0
    is_phone = 8 <= count <= 15 and (len(digits) >= 9 or whole[0] in "+(")
    return ("phone", len(whole)) if is_phone else ("", 0)


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
            start = place - len(text[start:place].lstrip("'.-"))
        domain, owner = forms.DOMAIN.match(text, place + 1), text[start:place]
        is_message = text[start - 1 : start] == "<" and len(re.findall(r"\d", owner)) >= 8  # and nobody's name
        if owner and domain and owner.lower() not in forms.SERVICES and not is_message:
            yield "email", start, domain.end()
        place = text.find("@", place + 1)
    yield from (("email", *match.span()) for match in forms.SPOKEN.finditer(seen))


def _machines(text: str) -> Iterator[tuple[str, int, int]]:
    """Addresses of machines and of their network cards: where colons, or points between four hex digits, are."""
    for pattern, signs in ((forms.COLONS, ":."), (forms.DOTTED, "."), (forms.DASHED, "-")):
        around, end = hexdigits + signs, 0
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
            if forms.MAC.fullmatch(whole):
                yield "mac address", start, start + len(whole)
            elif pattern is forms.COLONS and _is_version6(whole):
                yield "ip address", start, start + len(whole)


def _is_version6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    has_groups = len(text) >= 6 and len(list(filter(None, text.split(":")))) >= 2 and any(map(str.isdigit, text))
    return has_groups and not (address.is_loopback or address.is_unspecified)


PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
WELL_KNOWN = frozenset("8.8.8.8 8.8.4.4 1.1.1.1 1.0.0.1 9.9.9.9 169.254.169.254".split())


def _is_machine(text: str, start: int, end: int) -> bool:
    """Whether four numbers are the address of somebody's machine, and no version, network or lab's."""
    try:
        address = ipaddress.IPv4Address(text[start:end])
    except ValueError:
        return False
    number, before, after = text[start:end], text[max(0, start - 30) : start], text[end : end + 1]
    first, is_harmless = int(address) >> 24, forms.HARMLESS.search(before)
    if address.is_loopback or address.is_unspecified or address.is_multicast or first in (0, 255):
        return False
    if number in WELL_KNOWN or number.endswith(".0") or (first < 10 and is_harmless):
        return False
    if is_harmless and not re.search(r"(?:from|at|to|is|was|-|/)[ (\[\"']{0,2}\Z", before):
        return False
    if re.match(r" ?(?:of|release|version)\b", text[end : end + 9]):
        return False
    if after == "/" and text[end + 1 : end + 2].isdigit():
        return False
    is_quoted = before[-1:] in ("'", '"', "=", "`") or after in ("/", ":", "'", '"', "`")
    return not (is_quoted and any(address in network for network in PRIVATE))


def _luhn(text: str) -> bool:
    """Whether the last digit checks the others, in any script and with any signs between."""
    return _module("luhn")("".join(str(int(sign)) for sign in text if sign.isdecimal()))


def _iban(text: str) -> int:
    """How many characters of a text are an IBAN; 0 where none are."""
    for end in range(len(text), 14, -1):
        is_end = text[end - 1].isalnum() and not text[end : end + 1].isalnum()
        if is_end and _module("iban")(text[:end].replace(".", "")):
            return end
    return 0


def _is_id(text: str) -> bool:
    match = forms.ANY_ID.fullmatch(text)
    return bool(match and match.lastindex and _module(tuple(forms.IDS)[match.lastindex - 1])(text))


@lru_cache
def _module(name: str) -> Callable[[str], bool]:
    """The check of python-stdnum's module of this name."""
    made: Callable[[str], bool] = import_module(f"{stdnum.__name__}.{name}").is_valid
    return made
