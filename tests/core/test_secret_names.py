"""What a name beside, above or around a value makes a secret, in data and in JSON within a text; and what stays readable."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from addons.production.traces.privacy import Privacy
from steps.core.masking import masked

K = "S3cr3t-kex3y3Zq"
BESIDE: list[Any] = [
    {"env": [{"name": "DB_PASSWORD", "value": K}]},
    {"Value": K, "Name": "DB_PASSWORD"},
    {"key": "password", "value": {"old": [K]}},
    {"label": "Password", "value": K},
    {"element": "Password field", "text": K},
    {"element": "Your password: (required)", "text": K},
    {"name": "api_key", "type": "string", "default": K},
    {"headers": [["X-Api-Key", K]]},
    {"headers": ["Host", "a", "Authorization", f"Zq9 {K}"]},
]
AROUND: list[Any] = [
    {"passwords": {"bob": K}},
    {"secrets": {"stripe": K}},
    {"secrets": [[K]]},
    {"tokens": {"bot": K, "count": 5}},
    {"api_keys": {"x": {"v": K}}},
    {"cookies": {"sid": K}},
    {"token": {"a": {"b": [K]}}},
]
SCHEMAS: list[Any] = [
    {"password": {"type": "string", "value": K}},
    {"password": {"enum": [K]}},
    {"password": {"const": K}},
    {"api_key": {"type": "string", "default": K}},
    {"password": {"type": "object", "properties": {"x": {"type": "string", "examples": [K]}}}},
    {"credentials": {"anyOf": [{"type": "string", "default": K}, {"type": "null"}]}},
]
STAYS: list[Any] = [
    {"name": "token", "value": 5, "key": "value"},
    {"name": "reset_password", "content": "A mail was sent to your address"},
    {"label": "Reset password button", "text": "ok"},
    {"name": "password", "type": "string", "required": True, "description": "at least 8 characters"},
    {"tokens": {"prompt": 5, "model": "gpt"}, "max_tokens": {"value": "64"}},
    {"tokens": ["Hello", "there"], "pass": {"count": "12345678"}},
    {"token": {"expires": "2024-01-01T00:00:00Z", "url": "https://api.example.com/oauth2/token", "in": "/etc/oauth2"}},
    {"columns": ["email", "password", "address_line_two"]},
    {
        "password": {
            "type": "string",
            "title": "Yours",
            "description": "of 8 signs",
            "minLength": 8,
            "pattern": "^.{8}",
        },
        "credentials": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    },
]


@pytest.mark.parametrize("value", BESIDE + AROUND + SCHEMAS, ids=json.dumps)
def test_a_named_secret_is_gone_from_data(value: Any) -> None:
    for shown in (masked(value), Privacy().value(value)):
        assert K not in repr(shown)
        assert repr(shown).count("[masked]") == 1


@pytest.mark.parametrize("value", AROUND + SCHEMAS, ids=json.dumps)
def test_a_named_secret_is_gone_from_json_in_a_text(value: Any) -> None:
    for text in (json.dumps(value), json.dumps([json.dumps(value, indent=2)]), f"it was {value!r} then"):
        assert K not in masked(text)
    assert K not in json.dumps(json.loads(masked(json.dumps(value))))


@pytest.mark.parametrize("value", STAYS, ids=json.dumps)
def test_what_no_name_makes_a_secret_stays(value: Any) -> None:
    assert masked(value) == Privacy().value(value) == value
    assert masked(json.dumps(value)) == json.dumps(value)
    assert masked(json.dumps(value, indent=2)) == json.dumps(value, indent=2)


@pytest.mark.parametrize("part", ['"token": {', '"token": {"a": "b", ', '"token": {}, ', '{"name": "password", '])
def test_no_text_of_names_takes_long(part: str) -> None:
    began = time.process_time()
    masked(part * 20_000)
    assert time.process_time() - began < 2
