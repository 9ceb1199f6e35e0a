"""Secrets and personal data of many kinds, made from a seed: what masking must find.

A kind is a line `group | name | text`. What stands between « and » in the text is the secret; a part in braces is drawn: a
letter for the alphabet and a number of characters (`{a24}`), or a function's name (`{card}`). `planted` draws from a kind;
`leaks` says whether anything of the secret is left in an output. planted_first.txt was written before masking was tuned,
planted_second.txt after it, so that what was found of the second at first sight says what to expect of kinds that nobody
thought of (docs/history.md).
"""

# ruff: noqa: RUF001  # letters of other scripts, which are meant
from __future__ import annotations

import base64
import random
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ALPHABETS = {
    "a": string.ascii_letters + string.digits,
    "b": string.ascii_letters + string.digits + "+/",
    "s": string.ascii_letters + string.digits + "-_",
    "h": "0123456789abcdef",
    "d": string.digits,
    "u": string.ascii_uppercase + string.digits,
    "U": string.ascii_uppercase,
    "l": string.ascii_lowercase,
    "m": string.ascii_lowercase + string.digits,
    "n": "123456789",
}
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
DRAWN = re.compile(r"\{([A-Za-z]\d+|[a-z_]+)\}")
FIRST_NAMES = "Ada Bruno Carla Dmitri Elena Farid Greta Hiro Ines Jonas Katya Luis Mina Nadia Oskar Priya".split()
LAST_NAMES = (
    "Almeida Brandt Castro Dubois Eriksen Fischer Garcia Haddad Ivanova Jensen Kowalski Lindgren Moreau".split()
)
HOSTS = "mail.test-firma.de corp-mail.io kontor.net posta.it correo.mx poste.fr inbox.co.kr".split()
WORDS = "river lamp orange velvet canyon marble picnic tiger window saddle copper violin".split()


class Planted(NamedTuple):
    """A text with a secret in it."""

    name: str
    group: str
    text: str
    secrets: tuple[str, ...]  # of which nothing may be left


def digits_with(rng: random.Random, start: str, length: int, check: Callable[[str], bool]) -> str:
    """`length` digits that begin so and whose last ones make `check` true."""
    while True:
        made = start + "".join(rng.choice(string.digits) for _ in range(length - len(start)))
        if check(made):
            return made


def luhn(number: str) -> bool:
    digits = [int(sign) for sign in reversed(number)]
    return sum(digit if place % 2 == 0 else sum(divmod(2 * digit, 10)) for place, digit in enumerate(digits)) % 10 == 0


def weighed(weights: str, modulus: int, valid: Callable[[int, int], bool]) -> Callable[[str], bool]:
    """A check of the last digit against the sum of the others by their weights."""
    numbers = [int(each) for each in weights.split()]
    return lambda text: valid(sum(int(a) * b for a, b in zip(text, numbers, strict=False)) % modulus, int(text[-1]))


def _cpf(text: str) -> bool:
    def last(part: str) -> int:
        rest = sum(int(sign) * (len(part) + 1 - place) for place, sign in enumerate(part)) * 10 % 11
        return rest % 10

    return last(text[:9]) == int(text[9]) and last(text[:10]) == int(text[10])


def iban(country: str, form: str) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        own = filled(form, rng)
        number = "".join(str(int(sign, 36)) for sign in f"{own}{country}00")
        return f"{country}{98 - int(number) % 97:02d}{own}"

    return make


def grouped(make: Callable[[random.Random], str], size: int, sign: str = " ") -> Callable[[random.Random], str]:
    def cut(rng: random.Random) -> str:
        whole = make(rng)
        return sign.join(whole[place : place + size] for place in range(0, len(whole), size))

    return cut


def other_digits(zero: str, form: str) -> Callable[[random.Random], str]:
    """Digits of another script."""
    return lambda rng: re.sub(r"[0-9]", lambda match: chr(ord(zero) + int(match[0])), filled(form, rng))


def encoded(form: str) -> Callable[[random.Random], str]:
    return lambda rng: base64.b64encode(filled(form, rng).encode()).decode()


def _email(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES).lower()}.{rng.choice(LAST_NAMES).lower()}{rng.randint(1, 99)}@{rng.choice(HOSTS)}"


def _card(rng: random.Random) -> str:
    return digits_with(rng, "4" + str(rng.randint(100, 999)), 16, luhn)


def _rrn(rng: random.Random) -> str:
    weights = weighed("2 3 4 5 6 7 8 9 2 3 4 5", 11, lambda rest, last: (11 - rest) % 10 == last)
    whole = digits_with(rng, f"{rng.randint(60, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}1", 13, weights)
    return f"{whole[:6]}-{whole[6:]}"


def _china(rng: random.Random) -> str:
    start = f"110105{rng.randint(1950, 2000)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}{rng.randint(0, 999):03d}"
    weights = [7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2]
    return start + "10X98765432"[sum(int(a) * b for a, b in zip(start, weights, strict=True)) % 11]


def _dni(rng: random.Random) -> str:
    number = rng.randint(10**7, 10**8 - 1)
    return f"{number}{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}"


def _nir(rng: random.Random) -> str:
    number = (
        f"{rng.randint(1, 2)}{rng.randint(50, 99)}{rng.randint(1, 12):02d}{rng.randint(10, 95)}{rng.randint(100, 999)}"
    )
    number += f"{rng.randint(100, 999)}"
    return f"{number}{97 - int(number) % 97:02d}"


def _date(rng: random.Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(['March', 'May', 'June', 'October'])} {rng.randint(1940, 2005)}"


MAKERS: dict[str, Callable[[random.Random], str]] = {
    "first": lambda rng: rng.choice(FIRST_NAMES),
    "last": lambda rng: rng.choice(LAST_NAMES),
    "word": lambda rng: rng.choice(WORDS),
    "email": _email,
    "local": lambda rng: _email(rng).partition("@")[0],
    "host": lambda rng: rng.choice(HOSTS),
    "card": _card,
    "card_groups": grouped(_card, 4),
    "card_dashes": grouped(_card, 4, "-"),
    "card_line": lambda rng: grouped(_card, 4)(rng).replace(" ", "\n", 2).replace("\n", " ", 1),
    "card_arabic": lambda rng: re.sub(r"\d", lambda match: chr(0x660 + int(match[0])), _card(rng)),
    "card_wide": lambda rng: re.sub(r"\d", lambda match: chr(0xFF10 + int(match[0])), _card(rng)),
    "amex": lambda rng: digits_with(rng, "37" + str(rng.randint(10, 99)), 15, luhn),
    "imei": lambda rng: digits_with(rng, "35" + str(rng.randint(10, 99)), 15, luhn),
    "iban_de": iban("DE", "{n1}{d17}"),
    "iban_de_groups": grouped(iban("DE", "{n1}{d17}"), 4),
    "iban_fr": grouped(iban("FR", "{n1}{d9}{u11}{d2}"), 4),
    "iban_gb": iban("GB", "{U4}{d14}"),
    "iban_nl": iban("NL", "{U4}{d10}"),
    "cpf": lambda rng: re.sub(
        r"(...)(...)(...)(..)", r"\1.\2.\3-\4", digits_with(rng, str(rng.randint(100, 899)), 11, _cpf)
    ),
    "rrn": _rrn,
    "china": _china,
    "dni": _dni,
    "nir": _nir,
    "nhs": lambda rng: digits_with(
        rng,
        str(rng.randint(400, 499)),
        10,
        weighed("10 9 8 7 6 5 4 3 2", 11, lambda rest, last: (11 - rest) % 11 == last),
    ),
    "date": _date,
    "b_email": encoded("write to {email} today"),
    "b_key": encoded("OPENAI_API_KEY=sk-proj-{a40}"),
    "b_basic": encoded("{local}:{a14}"),
    "arabic_phone": other_digits("٠", "010{d8}"),
    "indic_phone": other_digits("०", "+91 {n1}{d4} {d5}"),
    "bengali_phone": other_digits("০", "017{d8}"),
    "persian_phone": other_digits("۰", "0912{d7}"),
    "b_card": encoded("my card is {card_groups} ok"),
    "btc": lambda rng: "".join(rng.choice(BASE58) for _ in range(33)),
    "wif": lambda rng: "".join(rng.choice(BASE58) for _ in range(51)),
    "seed": lambda rng: " ".join(rng.choice(WORDS) for _ in range(12)),
}


def filled(form: str, rng: random.Random) -> str:
    def draw(match: re.Match[str]) -> str:
        name = match[1]
        if name in MAKERS:
            return MAKERS[name](rng)
        if name[0] not in ALPHABETS or not name[1:].isdecimal():
            return match[0]  # a brace of the text's own
        alphabet, count = ALPHABETS[name[0]], int(name[1:])
        made = "".join(rng.choice(alphabet) for _ in range(count))
        while count >= 8 and alphabet not in (string.ascii_lowercase, string.ascii_uppercase) and made.isalpha():
            made = "".join(rng.choice(alphabet) for _ in range(count))
        return made

    return DRAWN.sub(draw, form)


def kinds(name: str) -> list[tuple[str, str, str]]:
    """(group, name, text) of each kind in tests/support/planted_<name>.txt."""
    lines = (Path(__file__).parent / f"planted_{name}.txt").read_text(encoding="utf-8").split("\n")
    rows = [[part.strip() for part in line.replace("\\|", "¦").split("|", 2)] for line in lines if line.strip()]
    return [(group, name, text.replace("\\n", "\n").replace("¦", "|")) for group, name, text in rows]


def planted(kind: tuple[str, str, str], seed: int) -> Planted:
    """A text of this kind."""
    group, name, form = kind
    text = filled(form, random.Random(f"{group} {name} {seed}"))
    secrets = tuple(re.findall(r"«(.*?)»", text, re.DOTALL))
    assert secrets, name
    return Planted(name, group, re.sub("[«»]", "", text), secrets)


def leaks(row: Planted, output: str) -> bool:
    """Whether a secret, or the longer half of it, is in the output, with spaces and line breaks or without."""
    bare = re.sub(r"\s", "", output)
    for secret in row.secrets:
        small = re.sub(r"\s", "", secret)
        half = (len(small) + 1) // 2
        parts = [small] if len(small) < 8 else [small[:half], small[-half:]]
        if any(part in bare for part in parts):
            return True
    return False
