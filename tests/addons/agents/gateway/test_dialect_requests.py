"""What each dialect makes of a request, and what it refuses with which field."""

from __future__ import annotations

from typing import Any

import pytest

from addons.agents.gateway import chat, completions, messages, responses
from addons.agents.gateway.types import BadRequest, Choice, Reply, Request

ASK = [{"role": "user", "content": "Where?"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "search", "description": "", "parameters": {"type": "object"}},
}
FLAT = {"type": "function", "name": "search", "parameters": {"type": "object"}}
BLOCK = {"name": "search", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"a": 1}'}}


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": ASK} | fields


def least(dialect: Any) -> dict[str, Any]:
    """The smallest body of a dialect."""
    if dialect is completions:
        return {"prompt": "Where?"}
    if dialect is responses:
        return {"input": "Where?"}
    return {"messages": ASK} if dialect is chat else {"messages": ASK, "max_tokens": 9}


def test_chat_reads_every_field() -> None:
    parts = [{"type": "text", "text": "Two"}, {"type": "text", "text": "lines"}]
    history = [
        {"role": "developer", "content": "Be short."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALLED], "reasoning_content": "Hm.", "refusal": None},
        {"role": "tool", "content": parts, "tool_call_id": "c1"},
    ]
    request = chat.parse(
        asked(
            messages=history,
            tools=[TOOL | {"function": TOOL["function"] | {"strict": True}}],
            tool_choice={"type": "function", "function": {"name": "search"}},
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
            n=2.0,
            max_tokens=5,
            max_completion_tokens=7,
            stop="\n",
            seed=-1,
            logprobs=True,
            temperature=0.2,
            logit_bias={},
            top_p=None,
            user="u",
            store=False,
            metadata={},
            parallel_tool_calls=True,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    function = {"name": "search", "arguments": {"a": 1}}
    assert request == Request(
        messages=(
            {"role": "system", "content": "Be short.\n\nBe kind."},
            {"role": "user", "content": "Two\nlines"},
            {
                "role": "assistant",
                "content": "",
                "reasoning": "Hm.",
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "Two\nlines", "tool_call_id": "c1", "name": "search"},
        ),
        tools=(TOOL,),
        tool_choice="search",
        n=2,
        max_tokens=7,
        stop=("\n",),
        seed=-1,
        schema=SCHEMA,
        top_logprobs=0,
        ignored=("temperature", "logit_bias"),
    )


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('{"a": 1, "b": "é"}', None),
        ('{"a":1,"b":"é"}', '{"a":1,"b":"é"}'),
        ('{"a": 1, "b": "\\u00e9"}', '{"a": 1, "b": "\\u00e9"}'),
    ],
)
def test_arguments_that_the_client_wrote_anew_are_kept_as_it_wrote_them(written: str, kept: str | None) -> None:
    call = CALLED | {"function": {"name": "search", "arguments": written}}
    item = {"type": "function_call", "call_id": "c1", "name": "search", "arguments": written}
    for request in (
        chat.parse(asked(messages=[{"role": "assistant", "tool_calls": [call]}])),
        responses.parse({"input": [item]}),
    ):
        function = request.messages[0]["tool_calls"][0]["function"]
        assert function["arguments"] == {"a": 1, "b": "é"}
        assert function.get("written") == kept


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", "a"), (["a"], "a"), ([1, 2], (1, 2)), ([[0]], (0,)), ("\0", "\0"), ([2**31 - 1], (2**31 - 1,))],
)
def test_completions_read_one_prompt(prompt: Any, read: Any) -> None:
    request = completions.parse({"prompt": prompt, "logprobs": 0, "seed": 3, "stop": ["a", "b"], "max_tokens": 2})
    assert request == Request(prompt=read, top_logprobs=0, seed=3, stop=("a", "b"), max_tokens=2)


def test_responses_put_the_items_of_a_turn_together() -> None:
    def called(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": "search", "arguments": "{}"}

    def output(name: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": name, "output": [{"type": "input_text", "text": name}]}

    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    words = {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "So."}, {"type": "output_text", "text": "!"}],
    }
    given = [
        ASK[0],
        reasoning,
        words,
        called("c1"),
        called("c2"),
        output("c1"),
        output("c2"),
        called("c3"),
        output("c3"),
    ]
    turns = responses.parse({"input": [*given, words, words, reasoning, called("c4")]}).messages
    assert [message["role"] for message in turns] == [
        "user",
        "assistant",
        *["tool"] * 2,
        "assistant",
        "tool",
        *["assistant"] * 3,
    ]
    first, third, fourth, last = (turns[place] for place in (1, 4, 6, 8))
    assert (first["content"], first["reasoning"]) == ("So.\n!", "Hm.")
    assert [call["id"] for call in first["tool_calls"]] == ["c1", "c2"]
    assert [call["id"] for call in third["tool_calls"]] == ["c3"]
    assert fourth == {"role": "assistant", "content": "So.\n!"}
    assert (last["content"], last["reasoning"], len(last["tool_calls"])) == ("", "Hm.", 1)


def test_responses_read_every_field() -> None:
    request = responses.parse(
        {
            "input": [{"role": "developer", "content": "Be kind."}, *ASK],
            "instructions": "Be short.",
            "tools": [FLAT],
            "tool_choice": "required",
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"},
            "include": ["message.output_text.logprobs"],
            "reasoning": {"effort": "low"},
            "max_output_tokens": 9,
            "temperature": 1,
            "truncation": "auto",
            "background": False,
            "store": False,
        }
    )
    assert request == Request(
        messages=({"role": "system", "content": "Be short.\n\nBe kind."}, *ASK),
        tools=(TOOL,),
        tool_choice="required",
        max_tokens=9,
        schema=SCHEMA,
        top_logprobs=0,
        ignored=("temperature", "reasoning", "text.verbosity", "truncation"),
    )


def test_messages_read_every_field() -> None:
    image_free = [
        {"type": "text", "text": "Two", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "lines"},
    ]
    used = {"type": "tool_use", "id": "c1", "name": "search", "input": {"a": 1}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    result = {"type": "tool_result", "tool_use_id": "c1", "is_error": True}
    history = [
        {"role": "user", "content": image_free},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "So."}, used]},
        {"role": "user", "content": [{"type": "text", "text": "Wait."}, result, *image_free]},
    ]
    request = messages.parse(
        {
            "messages": history,
            "system": image_free,
            "tools": [BLOCK],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "stop_sequences": ["a", "b"],
            "max_tokens": 9,
            "top_k": 5,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"},
        }
    )
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": {"a": 1}}}
    assert request == Request(
        messages=(
            {"role": "system", "content": "Two\nlines"},
            {"role": "user", "content": "Two\nlines"},
            {"role": "assistant", "content": "So.", "reasoning": "Hm.", "tool_calls": [call]},
            {"role": "user", "content": "Wait."},
            {"role": "tool", "content": "", "tool_call_id": "c1", "name": "search"},
            {"role": "user", "content": "Two\nlines"},
        ),
        tools=(TOOL,),
        tool_choice="required",
        max_tokens=9,
        stop=("a", "b"),
        schema=SCHEMA,
        one_call=True,
        ignored=("top_k", "output_config.effort"),
    )


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [
        (chat, {"messages": []}, "messages"),
        (chat, {"messages": "Where?"}, "messages"),
        (chat, {"messages": [{"role": "narrator", "content": "a"}]}, "messages[0].role"),
        (chat, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            chat,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].image_url",
        ),
        (chat, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
        (chat, {"messages": [{"role": "user", "content": [{"type": []}]}]}, "messages[0].content[0].type"),
        (chat, {"messages": [{"role": "tool", "content": "a", "tool_call_id": "c1"}]}, "messages[0].tool_call_id"),
        (chat, {"messages": [{"role": "assistant", "function_call": {"name": "a"}}]}, "messages[0].function_call"),
        (
            chat,
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c1"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        (chat, {"functions": [{"name": "a"}]}, "functions"),
        (chat, {"tools": [{"custom": {}}]}, "tools[0].type"),
        (chat, {"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (chat, {"tools": [TOOL, TOOL]}, "tools[1].name"),
        (chat, {"tools": [{"type": "function", "function": {"name": "none"}}]}, "tools[0].function.name"),
        (chat, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (chat, {"tool_choice": "required"}, "tool_choice"),
        (chat, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        (chat, {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        (chat, {"response_format": {"type": "grammar"}}, "response_format.type"),
        (chat, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (chat, {"n": 0}, "n"),
        (chat, {"n": True}, "n"),
        (chat, {"n": 2.5}, "n"),
        (chat, {"max_tokens": 0}, "max_tokens"),
        (chat, {"seed": 2**63}, "seed"),
        (chat, {"seed": 10**5000}, "seed"),
        (chat, {"stop": ["a"] * 17}, "stop"),
        (chat, {"stop": ""}, "stop"),
        (chat, {"top_logprobs": 2}, "top_logprobs"),
        (chat, {"modalities": ["text", "audio"]}, "modalities"),
        (chat, {"guided_regex": "a*"}, "guided_regex"),
        (chat, {"user": float("nan")}, "user"),
        (chat, {"user": "\ud800"}, "user"),
        (chat, {"stream": "yes"}, "stream"),
        (chat, {"model": 3}, "model"),
        (completions, {"prompt": ["a", "b"]}, "prompt"),
        (completions, {"prompt": [[1], [2]]}, "prompt"),
        (completions, {"prompt": []}, "prompt"),
        (completions, {"prompt": [1, True]}, "prompt[1]"),
        (completions, {"prompt": [-1]}, "prompt[0]"),
        (completions, {"prompt": None}, "prompt"),
        (completions, {"echo": True}, "echo"),
        (completions, {"suffix": "a"}, "suffix"),
        (completions, {"logprobs": True}, "logprobs"),
        (responses, {"input": []}, "input"),
        (responses, {"input": None}, "input"),
        (responses, {"input": [{"type": "item_reference", "id": "a"}]}, "input[0].id"),
        (responses, {"input": [{"type": "web_search_call"}]}, "input[0].type"),
        (responses, {"input": [{"type": "function_call_output", "call_id": "a", "output": ""}]}, "input[0].call_id"),
        (responses, {"input": [{"type": "reasoning", "content": [{"type": "other"}]}]}, "input[0].content[0].type"),
        (responses, {"tools": [{"type": 3}]}, "tools[0].type"),
        (responses, {"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools"),
        (
            responses,
            {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "b"}]}]},
            "tools[0].tools[0].type",
        ),
        (responses, {"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        (responses, {"background": True}, "background"),
        (responses, {"previous_response_id": "resp_1"}, "previous_response_id"),
        (responses, {"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (messages, {"max_tokens": None}, "max_tokens"),
        (messages, {"messages": [*ASK, {"role": "assistant", "content": "I"}]}, "messages"),
        (messages, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
        (messages, {"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        (messages, {"tools": [{"type": [], "name": "web_search"}]}, "tools[0].type"),
        (messages, {"output_format": {"type": "text"}}, "output_format.type"),
        (messages, {"tools": [{"name": "search"}]}, "tools[0].input_schema"),
        (messages, {"tool_choice": {"type": "tool", "name": "search"}}, "tool_choice.name"),
        (messages, {"thinking": {"type": "maybe"}}, "thinking.type"),
        (messages, {"mcp_servers": [{}]}, "mcp_servers"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_field(dialect: Any, fields: dict[str, Any], param: str) -> None:
    dialect.parse(least(dialect))  # without the field it is taken
    with pytest.raises(BadRequest) as caught:
        dialect.parse(least(dialect) | fields)
    assert caught.value.param == param
    assert param.partition("[")[0] in caught.value.message
    assert set(dialect.error(caught.value, 400)) <= {"type", "error"}


@pytest.mark.parametrize(
    ("dialect", "fields", "ignored"),
    [
        (
            chat,
            {"tools": [TOOL, {"type": "custom", "custom": {}}, {"type": "web_search"}]},
            "tools[1] (custom), tools[2] (web_search)",
        ),
        (messages, {"tools": [BLOCK, {"type": "bash_20250124", "name": "bash"}]}, "tools[1] (bash_20250124)"),
        (
            messages,
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
            "context_management",
        ),
        (responses, {"context_management": [{"type": "compaction"}], "safety_identifier": "me"}, "context_management"),
        (responses, {"tools": [{"type": "web_search", "external_web_access": False}]}, "tools[0] (web_search)"),
        (chat, {"user": "me", "metadata": {"a": "b"}, "store": True, "prompt_cache_key": "k"}, ""),
        (chat, {"something_new": 1, "of_no_value": None, "or_empty": []}, "something_new"),
        (completions, {"user": "me", "something\nnew": 1}, "something?new"),
    ],
)
def test_what_changes_nothing_here_is_named_and_answered(dialect: Any, fields: dict[str, Any], ignored: str) -> None:
    assert ", ".join(dialect.parse(least(dialect) | fields).ignored) == ignored


def test_functions_of_a_namespace_are_tools_and_their_calls_come_back_under_it() -> None:
    def function(name: str) -> dict[str, Any]:
        return {"type": "function", "name": name, "description": "", "parameters": {"type": "object"}}

    spaces = [
        {"type": "namespace", "name": space, "tools": [function("ask"), function("tell")]} for space in ("a", "b")
    ]
    body = {"input": "?", "tools": [function("ask"), *spaces]}
    request = responses.parse(body)
    names = [tool["function"]["name"] for tool in request.tools]
    assert names == ["ask", "a.ask", "tell", "b.ask", "b.tell"]
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": {}}} for name in names]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    output = responses.render(Reply("r", 0, "policy", (Choice(message, "", "tool_calls"),), 1), body)["output"]
    assert [(item.get("namespace"), item["name"]) for item in output] == [
        (None, "ask"),
        ("a", "ask"),
        ("a", "tell"),
        ("b", "ask"),
        ("b", "tell"),
    ]
    again = responses.parse(body | {"input": output}).messages[0]["tool_calls"]
    assert [call["function"]["name"] for call in again] == names


def test_an_item_is_found_by_its_reference() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": {"a": 1}}}
    message = {"role": "assistant", "content": "Hm.", "tool_calls": [call]}
    body: dict[str, Any] = {"input": "?", "tools": []}
    recorded = responses.Recorded([(body, Reply("r", 0, "policy", (Choice(message, "", "tool_calls"),), 1))])
    given = [{"type": "item_reference", "id": name} for name in ("msg_r", "fc_r_0")]
    answered = {"type": "function_call_output", "call_id": "c1", "output": "found"}
    request = responses.parse({"input": [{"role": "user", "content": "?"}, *given, answered]}, recorded)
    assert request.messages[1] == message
    assert request.messages[2]["content"] == "found"


@pytest.mark.parametrize(
    "arguments", ["{", "[]", "3", "null", '{"a": NaN}', '{"a": "\\ud800"}', '{"a": "\\u0000"}', "[" * 9000]
)
def test_arguments_that_are_no_plain_object_are_refused(arguments: str) -> None:
    call = CALLED | {"function": {"name": "search", "arguments": arguments}}
    with pytest.raises(BadRequest, match="arguments"):
        chat.parse(asked(messages=[{"role": "assistant", "tool_calls": [call]}]))


@pytest.mark.parametrize(
    ("arguments", "expected"), [("", {}), (None, {}), ({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1})]
)
def test_arguments_as_clients_write_them(arguments: Any, expected: dict[str, Any]) -> None:
    """A tool without parameters is called with an empty text by some, and an object is no text with others."""
    call = CALLED | {"function": {"name": "search", "arguments": arguments}}
    request = chat.parse(asked(messages=[{"role": "assistant", "tool_calls": [call]}]))
    assert request.messages[-1]["tool_calls"][0]["function"]["arguments"] == expected
