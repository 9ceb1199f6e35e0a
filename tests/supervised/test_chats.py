"""Demonstrations in OpenAI's chat format: which lines can be learnt from, and which of their tokens are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import environments
from steps.core.errors import UserError
from steps.policy.chat import Chat
from steps.supervised import chats
from tests.conftest import ROOT

USER, ANSWER = {"role": "user", "content": "2 × 3?"}, {"role": "assistant", "content": "6"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"word": "a"}'}}


def line(*messages: Any, **more: Any) -> str:
    return json.dumps({"messages": list(messages)} | more)


def test_calls_have_arguments_as_tasks_have_them() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    answer = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "found"}]}
    tools = [{"type": "function", "function": {"name": "search"}}]
    read = chats.parse(line(USER, asked, answer, ANSWER, source="trace 7", tools=tools))
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": {"word": "a"}}}
    assert read.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert read.messages[2] == {"role": "tool", "content": "found", "tool_call_id": "call_1"}
    assert (read.source, [tool["function"]["name"] for tool in read.tools or ()]) == ("trace 7", ["search"])
    assert chats.parse(line(USER, ANSWER)).tools is None


ROLE = "a message has another role than system, user, assistant, tool"


def bad_call(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("[]", "it has no list of messages"),
        ('{"messages": 3}', "it has no list of messages"),
        (line(), "the assistant says nothing in it"),
        (line(USER), "the assistant says nothing in it"),
        (line(ANSWER, USER), "it begins with the assistant, so nobody asked"),
        (line(USER, ANSWER, ANSWER), "the assistant has two turns without anything in between"),
        (line({"role": "developer", "content": ""}, ANSWER), ROLE),
        (line(3, ANSWER), ROLE),
        (line({"role": "user", "content": [{"type": "image_url"}]}, ANSWER), "a message's content is no text"),
        (line(USER, {"role": "assistant", "content": " "}), "a turn of the assistant is empty"),
        (line(USER, bad_call(name="a", arguments="[1]")), "a tool call has no name, or arguments that are no JSON object"),
        (line(USER, bad_call(arguments="{}")), "a tool call has no name, or arguments that are no JSON object"),
        (line(USER, ANSWER, tools=["search"]), "its tools are no list of OpenAI's function schemas"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_learnt_from_has_a_reason(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text(f"{line(USER, ANSWER)}\n\n{text}\n{text}\n")
    read, left_out = chats.read_demonstrations(tmp_path / "some.jsonl")
    assert (len(read), left_out) == (1, {reason: [3, 4]})


def test_a_file_that_is_no_text_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read as JSON lines"):
        chats.read_demonstrations(tmp_path / "some.jsonl")


def test_the_assistants_turns_are_learnt_and_nothing_else() -> None:
    from transformers import AutoTokenizer

    env = environments.load("email_search")
    tools = [tool.schema for tool in env.tools().values()]
    chat = Chat(AutoTokenizer.from_pretrained(ROOT / "tasks_data/embedded_policy"), tools)
    search: Any = {"function": {"name": "search_emails", "arguments": {"keywords": ["Falcon"]}}, "type": "function"}
    messages: list[Any] = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": "", "tool_calls": [search]},
        {"role": "tool", "name": "search_emails", "content": "nothing"},
        {"role": "assistant", "content": "Unknown."},
        {"role": "user", "content": "Thanks"},
    ]
    ids, learnt = chats.labelled(chat, messages)
    spoken = chat.tokenizer.decode([token for token, own in zip(ids, learnt, strict=True) if own])
    assert spoken.count("<|im_end|>") == 2
    assert "Falcon" in spoken
    assert "Unknown." in spoken
    assert not any(text in spoken for text in ("When?", "nothing", "Thanks"))
    begun = [*chat.prompt_ids(messages[:1]), *chat.completion_ids(messages[1]), *chat.suffix_ids([messages[2]])]
    assert ids == [*begun, *chat.completion_ids(messages[3])]
    one = chats.Demonstration(messages, None, "")
    kept, left_out = chats.tokens_of([one, one], {chats.key(None): chat}, len(ids))
    assert ([len(row[0]) for row in kept], left_out) == ([len(ids)] * 2, {})
    assert chats.tokens_of([one], {chats.key(None): chat}, len(ids) - 1)[1].total() == 1
