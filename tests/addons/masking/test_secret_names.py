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
    {"type": "token", "label": "Password", "value": f"one {K}"},
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
TEXTS = [
    "- name: DB_PASSWORD\n  value: {}",
    '- name: "DB_PASSWORD"\n      value: "{}"',
    '<add key="ApiKey" value="{}"/>',
    '<input type="password" name="pw" value="{}">',
    '<string name="api_secret">{}</string>',
    "<key>password</key>\n<string>{}</string>",
    "<b>Password:</b> {}",
    "- **Password:** {}",
    "**Password:** `{}`, then",
    "`DB_PASSWORD`: `{}`",
    "| DB_PASSWORD | {} |",
    "Password → {}",
    "ENV DB_PASSWORD {}",
    "set -gx API_KEY {}",
    "user bob / pass {}",
    "db:\n  password: |\n    {}",
    'password = (\n  "{}"\n)',
    'password<-"{}"',
    "bob:{}@host",
    'IDENTIFIED BY "{}"',
    'localStorage.setItem("token", "{}")',
]
READABLE = [
    "password: `str` and `api_key`: `None`, the `token`: `word`",
    "| password | string | yours |\n| token | integer | of 2024 |\n| api_key | sha256 | v1beta1 |",
    "echo $password | base64; password:*** user=bob123",
    "Enter the password\nDefault: none\nand 'token', value = 5",
    '{"name": "reset_password", "content": "A mail was sent at 10"}',
    '["password", "password2", "address_line_1"]',
    "ratio 4:3@60, image:v1.2@sha256:0a1b2c3d, npm:left-pad1@1.3.0 and cc:ann@example.com",
    "It is identified by 'Falcon 2'; users / pass rates, login, pass through",
    '<label for="password">Your new password</label><td>token</td><td>integer</td>',
    '"credentials": {"title": "Yours", "pattern": "[0-9]{12}", "type": ["object", "null"]}',
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


@pytest.mark.parametrize("text", TEXTS)
def test_a_named_secret_is_gone_from_a_text(text: str) -> None:
    assert masked(text.format(K)) == text.format("[masked]")
    assert K not in masked(json.dumps({"a": text.format(K)}))


@pytest.mark.parametrize("value", BESIDE[:1] + BESIDE[3:5] + BESIDE[6:8], ids=json.dumps)
def test_a_secret_beside_its_name_is_gone_from_json_in_a_text(value: Any) -> None:
    for text in (json.dumps(value), json.dumps([json.dumps(value, indent=2)]), repr(value)):
        assert K not in masked(text)


@pytest.mark.parametrize("text", READABLE)
def test_what_looks_like_a_named_secret_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    "part",
    [
        '"token": {',
        '"token": {"a": "b", ',
        '"token": {}, ',
        '{"name": "password", ',
        "name: password\n  ",
        "password:** ",
        "password | ",
        "password</b>",
        "password\\v ",
        "a:b1C2d3@",
        "token aaaaaa.",
        "IDENTIFIED BY ",
    ],
)
def test_no_text_of_names_takes_long(part: str) -> None:
    began = time.process_time()
    masked(part * 20_000)
    assert time.process_time() - began < 2
