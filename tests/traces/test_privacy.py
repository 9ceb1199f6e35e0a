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
from steps.core.params import Scenarios
from steps.traces.build import Task
from steps.traces.privacy import Privacy
from steps.traces.records import hashed
from steps.traces.sources import Source, ingest

PLANTED = [json.loads(line) for line in (Path(__file__).parent / "planted.jsonl").read_text().splitlines()]
PLACES = ("user", "answer", "argument", "observation", "comment", "correction", "metadata", "tool", "reasoning")


def planted_in(place: str, text: str, number: int) -> dict[str, Any]:
    """A conversation with a text in one place, as a row of OpenAI's JSON lines."""

    def here(name: str) -> str:
        return text if name == place else f"nothing here {number}"

    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": json.dumps({"q": here("argument")})},
    }
    messages = [
        {"role": "user", "content": here("user")},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": here("reasoning")},
        {"role": "tool", "tool_call_id": "c1", "content": here("observation")},
        {"role": "assistant", "content": here("answer")},
    ]
    tools = [{"type": "function", "function": {"name": "look", "description": here("tool")}}]
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


def test_the_tasks_own_data_stay() -> None:
    privacy, changed = Privacy(), []
    for path in sorted(Path("tasks_data").glob("*/*.json*")):
        if "tokenizer" not in path.name and "policy" not in path.as_posix():
            lines = path.read_text(encoding="utf-8").splitlines()[::4]
            changed += [(path.name, line[:80]) for line in lines if privacy.text(line) != line]
    assert changed == []


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200), st.sampled_from(PLANTED))
def test_masking_twice_is_masking_once(text: str, row: dict[str, Any]) -> None:
    privacy = Privacy()
    once = privacy.text(f"{text} {row['text']}")
    assert privacy.text(once) == once


def test_fields_that_name_personal_data_are_masked_whole() -> None:
    given_value = {
        "customer": {"fullName": "x y", "Phone-Number": 12345, "tags": ["a"]},
        "max": 3,
        "email": "",
        "dob": "?",
    }
    masked = Privacy().value(given_value)
    expected = {
        "customer": {"fullName": "[name]", "Phone-Number": "[phone]", "tags": ["a"]},
        "max": 3,
        "email": "",
        "dob": "[birth date]",
    }
    assert masked == expected


def test_ids_of_conversations_are_hashes(tmp_path: Path) -> None:
    assert hashed("jane@example.com") == hashed("jane@example.com") != hashed("john@example.com")
    assert len(hashed("jane@example.com")) == 16
