"""Masking of secrets and personal data: 500 planted ones leave no trace, and harmless texts stay as they are."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import environments
from addons.production.traces.build import Task
from addons.production.traces.privacy import Known, Privacy
from addons.production.traces.records import hashed
from addons.production.traces.sources import Source, ingest
from steps.core.masking import MASK
from steps.core.params import Scenarios
from tests.support import clean
from tests.support.planted import kinds, leaks, planted

PLANTED = [json.loads(line) for line in (Path(__file__).parent / "planted.jsonl").read_text().splitlines()]
PLACES = (
    "user",
    "answer",
    "argument",
    "observation",
    "comment",
    "correction",
    "metadata",
    "call id",
    "tool name",
    "reasoning",
)


def planted_in(place: str, text: str, number: int) -> dict[str, Any]:
    """A conversation with a text in one place, as a row of OpenAI's JSON lines."""

    def here(name: str) -> str:
        return text if name == place else f"nothing here {number}"

    call = {
        "id": text if place == "call id" else "c1",
        "type": "function",
        "function": {
            "name": text if place == "tool name" else "look",
            "arguments": json.dumps({"q": here("argument")}),
        },
    }
    messages = [
        {"role": "user", "content": here("user")},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": here("reasoning")},
        {"role": "tool", "tool_call_id": call["id"], "content": here("observation")},
        {"role": "assistant", "content": here("answer")},
    ]
    tools = [{"type": "function", "function": {"name": "look", "description": "looks"}}]
    feedback = {"score": 0, "comment": here("comment"), "correction": here("correction") + "!"}
    metadata = {"note": here("metadata")}
    return {"id": f"chat {number}", "messages": messages, "tools": tools, "feedback": feedback, "metadata": metadata}


def test_no_planted_secret_is_in_any_output(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = [planted_in(rng.choice(PLACES), row["text"], number) for number, row in enumerate(PLANTED)]
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = environments.load("email_search")
    task = Task(env, "email_search", env.load(Path("tasks_data/email_search")), [], [], Scenarios())
    done = ingest(tmp_path, tmp_path / "out", [Source("openai", str(source))], task, {}, True, 0.3)
    assert (done.conversations, len(done.sets.preferences)) == (500, 500), "every conversation is used"
    everything = "\n".join(path.read_text(encoding="utf-8") for path in sorted((tmp_path / "out").iterdir()))
    left = [row for row in PLANTED if row["value"] in everything or json.dumps(row["value"])[1:-1] in everything]
    assert left == []


def test_a_masked_text_keeps_no_part_of_a_number() -> None:
    privacy = Privacy()
    for row in PLANTED:
        if row["kind"] in ("credit_card_number", "iban", "ssn", "email", "ipv4_public", "mac_address"):
            masked = privacy.text(row["text"])
            assert row["value"][-4:] not in masked, (row, masked)


HARMLESS = (
    "The budget for Falcon is 4512 dollars. Call me on extension 512 if anything is unclear.",
    "2001-01-31 | Maria Lopez | Falcon budget | m101",
    "lunch at 10:30:15 on 01/02/2001 with 10 people in Room 101",
    "version 10.2.3, C512, 3.14159, 1,234,567 rows, 2001-2002, f(x) = 2 * x, 12-14-16",
    "account for the 2001 budget; policy 2001 says so; the pin is red",
    "def test(a: int) -> str: return names[0]  # 127.0.0.1:8000",
    '{"id": "m101", "name": "search_emails", "max_tokens": 4096, "seed": 20010314}',
    "[email] called [phone] about [number]",
)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_stay(text: str) -> None:
    assert Privacy().text(text) == text


@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_tasks_own_data_stay(step: int) -> None:
    privacy, changed = Privacy(), []
    for path in sorted(Path("tasks_data").glob("*/*.json*")):
        if "tokenizer" not in path.name and "policy" not in path.as_posix():
            lines = path.read_text(encoding="utf-8").splitlines()[::step]
            changed += [(path.name, line[:80]) for line in lines if privacy.text(line) != line]
    assert changed == []


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200), st.sampled_from(PLANTED))
def test_masking_twice_is_masking_once(text: str, row: dict[str, Any]) -> None:
    privacy = Privacy()
    once = privacy.text(f"{text} {row['text']}")
    assert privacy.text(once) == once


def test_a_fields_name_counts_where_its_value_has_the_form_and_types_stay() -> None:
    given_value = {
        "customer": {"fullName": "x y", "Phone-Number": 4915112345, "tags": ["a"]},
        "max": 3,
        "email": "",
        "dob": "1 May 1980",
        "password": "correct horse",
        "pwd": 12345,
        "credentials": {"user": "me", "tries": 3, "open": True},
    }
    masked = Privacy().value(given_value)
    assert masked == {
        "customer": {"fullName": "[name]", "Phone-Number": 1000000000, "tags": ["a"]},
        "max": 3,
        "email": "",
        "dob": "[birth date]",
        "password": MASK,
        "pwd": 10000,
        "credentials": {"user": MASK, "tries": 1, "open": True},
    }
    assert Privacy().value(masked) == masked
    harmless = {
        "cell": "B7",
        "phone": "kitchen",
        "email": "home",
        "street": "yes",
        "version": "10.2.3.4",
        "mobile": True,
    }
    harmless |= {
        "tel": 0,
        "fax": 12,
        "name": "readme.txt",
        "dob": "?",
        "order": "4155552671",
        "tags": {"name": {"first": 1}},
    }
    assert Privacy().value(harmless) == harmless


def test_a_tools_definition_stays_but_for_keys_of_services() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "password": {"type": "string", "description": "your password is never kept, e.g. hunter22x"},
            "email": {"type": "string", "enum": ["home@lamp.io", "work"], "default": "jo@lamp.io"},
            "credentials": {"type": ["object", "null"], "properties": {"token": {"$ref": "#/$defs/token"}}},
            "api_key": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["password", "api_key"],
    }
    tool = {
        "type": "function",
        "function": {"name": "log_in", "description": "Call +49 30 1234567", "parameters": parameters},
    }
    privacy = Privacy()
    assert privacy.tool(tool) == tool
    key = "sk-" + "ant-api03-Zx9Kq2Lm8Np4Rt6Vw1Yb3Cd5"
    told = {"type": "function", "function": {"name": "a", "description": f"send {key} along"}}
    assert key not in json.dumps(privacy.tool(told))


def test_ids_and_names_of_tools_are_the_same_hash_at_the_call_and_at_its_result() -> None:
    privacy, name = Privacy(), "write_to_jo.miller@lamp.io"
    call = {"id": "jo.miller@lamp.io", "type": "function", "function": {"name": name, "arguments": {}}}
    asked = privacy.message({"role": "assistant", "content": "", "tool_calls": [call]})["tool_calls"][0]
    answer = privacy.message({"role": "tool", "tool_call_id": call["id"], "name": name, "content": "ok"})
    defined = privacy.tool({"type": "function", "function": {"name": name}})
    assert (answer["tool_call_id"], answer["name"]) == (asked["id"], asked["function"]["name"])
    assert defined["function"]["name"] == answer["name"]
    assert "miller" not in json.dumps([asked, answer, defined])
    for kept in ("c1", "call_9aF3xYz01", "a1B2c3D4e", "chatcmpl-tool-0f1e2d3c4b5a69788796a5b4c3d2e1f0"):
        assert privacy.id(kept) == kept


@pytest.mark.parametrize("name", ["first", "second"])
def test_planted_kinds_are_found(name: str) -> None:
    privacy, rows = Privacy(), [planted(kind, 1) for kind in kinds(name)]
    missed = [(row.group, row.name) for row in rows if leaks(row, privacy.text(row.text))]
    assert len(missed) <= 0.03 * len(rows), missed
    for group in {row.group for row in rows}:
        count = sum(row.group == group for row in rows)
        assert sum(each == group for each, _ in missed) <= 0.15 * count, (group, missed)


def test_clean_texts_stay() -> None:
    privacy, texts = Privacy(), clean.made(800)
    changed = [text for _, text in texts if privacy.text(text) != text]
    assert len(changed) <= 0.01 * len(texts), changed[:3]


def test_what_was_masked_lately_is_known_within_a_bound_of_bytes() -> None:
    asked: list[str] = []
    known = Known(most=4000)

    def mask(text: str) -> str:
        asked.append(text)
        return text.replace("a", "[a]")

    assert [known(text, mask) for text in ("abc", "abc", "xyz", "xyz")] == ["[a]bc", "[a]bc", "xyz", "xyz"]
    assert asked == ["abc", "xyz"]
    for number in range(100):
        known(f"a{number}", mask)
    assert known.size <= 4000
    assert known("abc", mask) == "[a]bc"
    assert asked.count("abc") == 2, "it was forgotten"


def test_ids_of_conversations_are_hashes(tmp_path: Path) -> None:
    assert hashed("jane@example.com") == hashed("jane@example.com") != hashed("john@example.com")
    assert len(hashed("jane@example.com")) == 16
