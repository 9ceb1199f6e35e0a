"""Writes tests/addons/production/traces/planted.jsonl: 500 secrets and personal data in sentences, none of them real.

    python -m tests.support.planted_data                # seed 7
    python -m tests.support.planted_data 8 other.jsonl

It needs the package faker, in an environment of its own. Personal data are Faker's, of ten locales, so that
addons/production/traces/personal.py is tested on forms that its author did not write. Faker has no secrets of the
services that addons/masking/ knows: those are random letters in the documented forms.
"""

from __future__ import annotations

import base64
import json
import random
import string
import sys
import uuid
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent.parent / "traces" / "planted.jsonl"
LOCALES = ("en_US", "en_GB", "de_DE", "fr_FR", "es_ES", "it_IT", "nl_NL", "pt_BR", "pl_PL", "sv_SE")
KINDS: dict[str, tuple[str, ...]] = {
    "email": ("Please write to {} about it.", "my mail is {}", "From: {}\nTo: support", '{{"contact": "{}"}}'),
    "phone_number": ("You can call me at {}.", "my phone number is {}", "Tel. {}", "phone: {}, mornings only"),
    "msisdn_plus": ("Ring {} after nine.", "Her number: {}", "{}", "WhatsApp {}"),
    "credit_card_number": ("I paid with {}.", "card {} expires 04/29", '{{"payment": "{}"}}', "Charge {} again please"),
    "iban": ("My IBAN is {}.", "transfer it to {}", "Konto: {}", "{}"),
    "ipv4_public": ("It came from {}.", "host {} is down", "ssh root@{}", "IP={}"),
    "ipv6": ("It came from {}.", "host {} is down", "ping {}", "addr {}"),
    "mac_address": ("My router is {}.", "device {} is offline", "MAC {}", "wifi {}"),
    "ssn": ("My SSN is {}.", "social security number: {}", "ssn={}", "Social security no. {}"),
    "passport_number": ("Passport number {}.", "my passport is {}", "passport no: {}", "Passport: {}"),
    "date_of_birth": ("I was born on {}.", "date of birth: {}", "DOB: {}", "birthday is {}"),
    "street_address": ("I live at {}.", "Send it to {}, please.", "Address: {}", "my address is {}"),
    "name": ("my name is {}.", "My name is {}", '{{"full_name": "{}"}}', '{{"customer_name": "{}"}}'),
}
SECRETS = 110


def secret(rng: random.Random) -> tuple[str, str]:
    """(sentence, the secret in it)."""

    def letters(count: int, signs: str = string.ascii_letters + string.digits) -> str:
        return "".join(rng.choices(signs, k=count - 1)) + rng.choice(string.digits)

    def encoded(count: int) -> str:
        return base64.urlsafe_b64encode(rng.randbytes(count)).decode().rstrip("=")

    upper = string.ascii_uppercase + string.digits
    token = f"eyJ{encoded(20)}.{encoded(30)}.{encoded(24)}"
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{encoded(90)}\n-----END RSA PRIVATE KEY-----"
    forms = (
        ("use my key {}", f"sk-{letters(40)}"),
        ("OPENAI_API_KEY={}", f"sk-proj-{letters(44)}"),
        ("token {} works", f"ghp_{letters(36)}"),
        ("aws: {}", f"AKIA{letters(16, upper)}"),
        ("aws_secret_access_key = {}", letters(40)),
        ("slack {}", f"xoxb-{letters(12, string.digits)}-{letters(24)}"),
        ("Authorization: Bearer {}", token),
        ("the key is {}", f"AIza{letters(35)}"),
        ("password: {}", letters(14)),
        ("postgres://app:{}@db.internal/app", letters(16)),
        ("{}", key),
        ('{{"client_secret": "{}"}}', letters(32)),
        ("stripe {}", f"sk_live_{letters(24)}"),
        ("hf: {}", f"hf_{letters(34)}"),
    )
    form, value = rng.choice(forms)
    return form.format(value), value


def main(seed: int = 7, path: Path = PATH) -> None:
    import faker  # pyrefly: ignore[missing-import]

    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for _ in range(SECRETS):
        text, value = secret(rng)
        rows.append({"kind": "secret", "locale": "", "value": value, "text": text})
    fakes = {locale: faker.Faker(locale) for locale in LOCALES}
    for place, made in enumerate(fakes.values()):
        made.seed_instance(100 * seed + place)
    number = 0
    while len(rows) < 500:
        kind = list(KINDS)[number % len(KINDS)]
        locale = LOCALES[number // len(KINDS) % len(LOCALES)]
        made = fakes["en_US" if kind in ("ssn", "passport_number") else locale]
        if kind == "msisdn_plus":
            value = f"+{made.msisdn()}"
        elif kind == "date_of_birth":
            value = made.date_of_birth().strftime(
                rng.choice(("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d %B %Y", "%B %d, %Y"))
            )
        elif kind == "street_address":
            value = made.street_address().replace("\n", ", ")
        else:
            value = str(getattr(made, kind)())
        text = rng.choice(KINDS[kind]).format(value)
        rows.append({"kind": kind, "locale": locale, "value": value, "text": text})
        number += 1
    for row in rows:
        row["mark"] = uuid.UUID(int=rng.getrandbits(128)).hex[:8]  # of the conversation that it is planted in
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given else 7, Path(given[1]) if given[1:] else PATH)
