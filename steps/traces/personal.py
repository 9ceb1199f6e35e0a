"""Finds personal data in a text by its form: each kind has patterns, and a check where a form alone would hit harmless
numbers.

Check digits (Luhn for cards, mod 97 for IBANs) and `ipaddress` decide for the kinds that have them. What a word announces
("passport no.", "born on", "my name is") counts only behind that word. Kinds are tried in the order of PATTERNS, on what
is left of the text.
"""

from __future__ import annotations

import ipaddress
import re

DATE = (
    r"(?:\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}-\d{2}-\d{2}"
    r"|\d{1,2}(?:st|nd|rd|th)?\.? [A-Z][a-z]{2,9}\.?,? \d{4}|[A-Z][a-z]{2,9}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4})"
)
STREETS = (
    "Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Way|Place|Pl|Square|Sq|Terrace|Parkway|Pkwy"
    "|Close|Crescent"
)
DOCUMENTS = (
    r"passports?|driver'?s?['’]? licen[cs]e|driving licen[cs]e|national (?:id|identity|insurance)|identity card|id card"
    r"|tax id|ssn|social security|health insurance|nhs|medical record|mrn|aadhaar|cpf|dni|nif|pesel|steuer-?id|bank account"
    r"|routing|sort code"
)
OTHERS = (  # words that mean more than a document: they count only with "number", "id" or a colon
    r"tax|tin|insurance|patient|account|policy|member(?:ship)?|customer|licen[cs]e plate|plate|vin|imei|pin"
)
NUMBERED = r"(?:[ ._-]?(?:id|no|nr|num|number|code|card))?\b\.?"
SURELY_NUMBERED = r"(?:[ ._-]?(?:id|no|nr|num|number|code)\b\.?|(?=\s?(?:is|:|=|#)))"
BEHIND = r"(?:\s?(?:is|was|:|=|#|->)){0,2}\s{0,2}[\"'#]?"
NUMBER = r"(?P<value>(?=[A-Z]{0,6}\d|[A-Z]{1,2} \d)[A-Z0-9](?:[A-Z0-9]|[ /-](?=[A-Z]{0,3}\d)){3,24})(?![\w])"
CALLED = (
    r"\b(?:tel(?:ephone)?|phone|mobile|cell(?:phone)?|fax|whatsapp|handy|(?:call|reach) (?:me|us|him|her) (?:at|on))"
    r"(?: (?:no|nr|number)\b)?\.?(?:\s?(?:is|:|=|#)){0,2}\s{0,2}"
)
LIVES = (  # what announces an address
    r"\b(?i:address(?: is|:)|i(?:'m| am)? liv(?:e|ing) (?:at|in)|wohne in|j'habite(?: au)?|vivo en|abito in"
    r"|(?:send|ship|deliver|mail|post) (?:it|this|them|the \w+) to)\s{1,2}"
)
HOUSED = (  # with the number of a house, to the end of the clause
    r"(?P<value>(?=[^\n;!?\"]{0,60}\d)(?:[A-ZÀ-Þ\d]|[a-zà-þ]{2,10}\.? (?=[A-ZÀ-Þ]))(?:[^\n;!?\".]|\.(?=\S| \w)){3,80}?)"
    r"(?=\.?\s*(?:$|[\n;!?\"]|, (?:please|bitte|thanks)|\. ))"
)
MINE = r"\b(?i:(?:my|home|postal|street) address is|i live at)\s"
NAME_IS = r"\b(?i:my (?:full )?name is|my name's|the name is|ich heiße|je m'appelle|me llamo)\s"
LABEL = r"[\w-]{1,63}"  # of a host's name


def form(*parts: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile("".join(parts), flags)


# (kind, pattern). The group `value`, where there is one, is what is masked.
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("email", form(rf"[\w.%+'-]{{1,64}}@{LABEL}(?:\.{LABEL}){{0,8}}\.[^\W\d_]{{2,24}}\b")),
    (
        "email",
        form(
            rf"\b[\w.%+-]{{1,64}}\s?[\[(]\s?at\s?[\])]\s?{LABEL}",
            r"(?:\s?(?:\.|[\[(]\s?dot\s?[\])])\s?[\w-]{2,63}){1,5}",
            flags=re.IGNORECASE,
        ),
    ),
    ("wallet", form(r"\b(?:0x[0-9a-fA-F]{40}|bc1[a-z0-9]{25,60}|[13][a-km-zA-HJ-NP-Z1-9]{25,34})\b")),
    ("mac address", form(r"\b[0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){4}\b")),
    ("ip address", form(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")),
    ("ip address", form(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")),
    ("iban", form(r"\b[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]{4}){2,7}(?:[ -]?[A-Za-z0-9]{1,3})?\b")),
    ("card", form(r"(?<![\w.])(?:1800|2131|[2-6]\d{3})(?:[ -]?\d){8,15}(?![\w]|\.\d)")),
    (
        "birth date",
        form(
            r"\b(?:born(?: on)?|date of birth|birth ?date|birthday|dob|d\.o\.b\.)\W{1,4}(?:is |was |on )?",
            rf"(?P<value>{DATE})",
            flags=re.IGNORECASE,
        ),
    ),
    ("number", form(rf"\b(?:{DOCUMENTS}){NUMBERED}{BEHIND}{NUMBER}", flags=re.IGNORECASE)),
    ("number", form(rf"\b(?:{OTHERS}){SURELY_NUMBERED}{BEHIND}{NUMBER}", flags=re.IGNORECASE)),
    ("number", form(r"(?<![\w-])(?!000|666|9\d\d)\d{3}([- ])(?!00)\d{2}\1(?!0000)\d{4}(?![\w-])")),
    ("number", form(r"\b[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]\b")),
    ("phone", form(r"(?<![\w+])(?:\+\d|00[1-9])(?:[ ()./-]{0,2}\d){6,14}(?![\w])")),
    (
        "phone",
        form(
            r"(?<![\w.-])(?:1[-. ])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}([-. ]))",
            r"\d{3}(?(1)\1|[-. ]?)\d{4}(?![\w-])",
        ),
    ),
    ("phone", form(rf"(?<![\w./-])(?!{DATE})\(?0\d{{1,4}}\)?(?:[ /-]\d{{2,8}}){{1,4}}(?![\w/]|\.\d)")),
    ("phone", form(CALLED, r"(?P<value>\(?\d(?:[ ().-]{0,2}\d){5,14})(?![\w])", flags=re.IGNORECASE)),
    (
        "address",
        form(
            rf"\b\d{{1,5}}[A-Za-z]?,? (?:[A-Z][\w'’.-]{{0,30}} ){{1,4}}(?:{STREETS})\b\.?",
            r"(?:,? (?:Apt|Apartment|Suite|Unit|Flat|#)\.? ?\w{1,6})?",
        ),
    ),
    (
        "address",
        form(r"\b[A-ZÄÖÜ][\wäöüß-]{1,40}(?:straße|strasse|str\.|weg|platz|allee|gasse)\s\d{1,4}\s?[a-z]?\b"),
    ),
    (
        "address",
        form(
            r"\b\d{1,4},? (?:rue|avenue|boulevard|place|chemin|via|calle|piazza) ",
            r"(?:(?:de|des|du|la|le|les|del|della) )*[A-ZÀ-Þ][\w'’-]{1,30}(?: [A-ZÀ-Þ][\w'’-]{1,30}){0,2}",
        ),
    ),
    ("address", form(r"\bP\.? ?O\.? Box \d{1,7}\b", flags=re.IGNORECASE)),
    ("address", form(LIVES, HOUSED, flags=re.MULTILINE)),
    ("address", form(MINE, r"(?P<value>[A-ZÀ-Þ][\w'’-]{1,30}(?: (?:d[eaiou]s? )?[A-ZÀ-Þ][\w'’-]{1,30}){1,4})")),
    ("coordinates", form(r"(?<![\w.])-?\d{1,2}\.\d{4,}\s?,\s?-?\d{1,3}\.\d{4,}(?![\w.])")),
    ("name", form(NAME_IS, r"(?P<value>[^\W\d_][\w'’-]{1,30}(?:\s[A-ZÀ-Þ][\w'’.-]{0,30}){0,3})")),
)
# Fields whose value is personal whatever it looks like, and the kind that is written in its place.
FIELDS = {
    "email": r"e?mail|email_?address|recipient_email|user_email",
    "phone": r"(?:tele)?phone(?:_?number)?|mobile|cell|fax|tel",
    "address": r"(?:home|street|postal|billing|shipping|mailing)_?address|street|address_line_?\d",
    "name": r"(?:first|last|middle|full|family|given|maiden|customer|patient)_?name|surname",
    "birth date": r"dob|birth_?date|date_of_birth|birthday",
    "number": r"ssn|social_security(?:_number)?|passport(?:_?(?:no|number))?|national_id|tax_id|iban|account_number"
    r"|card_?number|credit_card|cvv|cvc|driver_?licen[cs]e|license_plate",
}
KEYS = {kind: re.compile(pattern) for kind, pattern in FIELDS.items()}
IN_JSON = form(
    rf"(?P<key>[\"'](?i:{'|'.join(FIELDS.values())})\\*[\"']\s?:\s?\\*)(?P<quote>[\"'])",
    r"(?P<value>(?:(?!(?P=quote))[^\\\n]){1,200})",
)
# Without any of these a text holds nothing of the kinds above, but for fields in JSON.
SIGNS = re.compile(r"[\d@]|\b(?i:at|name|heiße|appelle|llamo)\b")
SEPARATED = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\s-]")


def without(text: str) -> str:
    """The text with each piece of personal data as its kind in brackets."""
    text = IN_JSON.sub(_in_json, text)
    if not SIGNS.search(text):
        return text
    for kind, pattern in PATTERNS:
        text = pattern.sub(lambda match, kind=kind: _masked(kind, match), text)  # type: ignore[misc]
    return text


def kind_of(name: str) -> str:
    """The kind of personal data that a field of this name holds; empty for other names."""
    small = SEPARATED.sub("_", name).lower() if name else ""
    return next((kind for kind, pattern in KEYS.items() if pattern.fullmatch(small)), "") if small else ""


def _in_json(match: re.Match[str]) -> str:
    name = match["key"].strip("\"'\\: ").strip("\"'\\")
    if match["value"].startswith("["):
        return match[0]
    return f"{match['key']}{match['quote']}[{kind_of(name) or 'personal'}]"


def _masked(kind: str, match: re.Match[str]) -> str:
    """What stands in the place of a match: the kind in brackets, or the text itself where it turns out to be harmless."""
    whole, value = match[0], match.groupdict().get("value") or match[0]
    if value.startswith("[") or not _is(kind, value):
        return whole
    start = match.start("value") - match.start() if "value" in match.re.groupindex else 0
    return f"{whole[:start]}[{kind}]{whole[start + len(value) :]}"


def _is(kind: str, text: str) -> bool:
    """Whether a text with the form of this kind is of it."""
    if kind == "ip address":
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return not (address.is_loopback or address.is_unspecified)
    digits = [int(sign) for sign in text if sign.isdecimal()]
    if kind == "card":
        weighed = [digit if place % 2 == 0 else sum(divmod(2 * digit, 10)) for place, digit in enumerate(digits[::-1])]
        return 12 <= len(digits) <= 19 and sum(weighed) % 10 == 0
    if kind == "iban":
        plain = re.sub(r"[ -]", "", text).upper()
        number = "".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])
        return 15 <= len(plain) <= 34 and int(number) % 97 == 1
    if kind == "phone":
        return len(set(digits)) > 1 and (len(digits) >= 9 or not text.startswith("0"))
    return True
