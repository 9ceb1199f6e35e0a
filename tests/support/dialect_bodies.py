"""A full request of each dialect, and ways to put another value at any place in it."""

from __future__ import annotations

from typing import Any

from addons.agents.gateway import chat, completions, messages, responses

ASK = [{"role": "user", "content": "Where?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "search", "description": "a", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
CALLED = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"a": 1}'}}
USED = {"type": "tool_use", "id": "c1", "name": "search", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "b"}
FULL: dict[Any, dict[str, Any]] = {
    chat: {
        "model": "policy",
        "messages": [
            *ASK,
            {"role": "assistant", "content": "a", "tool_calls": [CALLED]},
            {"role": "tool", "content": [{"type": "text", "text": "b"}], "tool_call_id": "c1"},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "search"}},
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        "n": 2,
        "stop": ["a"],
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 1,
        "max_tokens": 2,
        "stream_options": {"include_usage": True},
    },
    completions: {"prompt": [[1, 2]], "n": 1, "logprobs": 1, "stop": "a", "seed": 1, "max_tokens": 2, "stream": True},
    responses: {
        "input": [
            *ASK,
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a"}]},
        ],
        "instructions": "a",
        "tools": [{"type": "function"} | FUNCTION],
        "tool_choice": {"type": "function", "name": "search"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        "include": ["message.output_text.logprobs"],
        "metadata": {"a": "b"},
    },
    messages: {
        "system": [{"type": "text", "text": "a"}],
        "messages": [*ASK, {"role": "assistant", "content": [USED]}, {"role": "user", "content": [RESULT]}],
        "max_tokens": 3,
        "tools": [{"name": "search", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "search"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stop_sequences": ["a"],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within a value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in parts for place in places(part, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """A copy with another value at a path."""
    if not path:
        return other
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy
