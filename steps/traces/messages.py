"""Messages of other producers in one form: {"role", "content", "tool_calls"?, "tool_call_id"?, "name"?, "reasoning"?}.

Read are OpenAI's chat messages, LangChain's, and the parts of OpenTelemetry's GenAI conventions. Content is a text, and the
arguments of calls are objects. Parts of a text are joined by a line break, as vLLM does. A message that holds what this form
cannot keep (an image, sound, an unknown kind of part) is a ValueError with its reason, and its conversation is quarantined.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from environments.base import Message

ROLES = {"developer": "system", "human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
ROLES |= {role: role for role in ("system", "user", "assistant", "tool")}
TEXTS = ("text", "input_text", "output_text", "refusal")
REASONING = ("reasoning", "thinking")
CALLS = ("tool_call", "tool_use", "function_call")
RESULTS = ("tool_call_response", "tool_result", "function_call_output")


def conversation_of(value: Any) -> list[Message]:
    """The messages in a producer's field: a list of messages, a message, {"messages": [...]}, {"choices": [...]}, JSON text
    of these, or a plain text of the user. ValueError where it is none of them."""
    value = decoded(value)
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if isinstance(value, Mapping):
        if isinstance(value.get("messages"), Sequence):
            return conversation_of(value["messages"])
        if isinstance(value.get("choices"), Sequence) and value["choices"]:
            return conversation_of([value["choices"][0].get("message")])
        value = [value]
    if not isinstance(value, list):
        raise ValueError(f"no messages but a {type(value).__name__}")
    if len(value) == 1 and isinstance(value[0], list):  # LangChain's batches
        value = value[0]
    messages = [message for each in value for message in _messages(each)]
    return with_names(messages)


def answer_of(value: Any) -> list[Message]:
    """The messages of a model's output; a plain text is the assistant's."""
    value = decoded(value)
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    if isinstance(value, Mapping) and not value.keys() & {"role", "type", "messages", "choices"}:
        value = {"role": "assistant", **value}
    return conversation_of(value)


def tools_of(value: Any) -> tuple[dict[str, Any], ...]:
    """Definitions of tools, as OpenAI's chat completions have them; what is none is left out."""
    listed = decoded(value)
    made = []
    for tool in listed if isinstance(listed, list) else ():
        tool = decoded(tool)
        if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping):
            made.append({"type": "function", "function": dict(tool["function"])})
        elif isinstance(tool, Mapping) and isinstance(tool.get("name"), str):
            names = ("name", "description", "parameters")
            function = {name: tool[name] for name in names if tool.get(name) is not None}
            if isinstance(schema := tool.get("input_schema"), Mapping):
                function["parameters"] = dict(schema)
            made.append({"type": "function", "function": function})
    return tuple(made)


def decoded(value: Any) -> Any:
    """The value of a JSON text that holds a list or an object; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def with_names(messages: list[Message]) -> list[Message]:
    """The messages, with the tool's name at each tool message that names its call."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ()) if call.get("id")}
        if message["role"] == "tool" and not message.get("name") and message.get("tool_call_id") in names:
            message["name"] = names[message["tool_call_id"]]
    return messages


def _messages(fields: Any) -> list[Message]:
    """The message in one entry; several where results of tools stand in it as parts."""
    if not isinstance(fields, Mapping):
        raise ValueError(f"a message must be an object, not a {type(fields).__name__}")
    if fields.get("lc") and isinstance(fields.get("kwargs"), Mapping):  # LangChain's serialised objects
        fields = fields["kwargs"]
    role = ROLES.get(str(fields.get("role") or fields.get("type") or "").lower())
    if role is None:
        raise ValueError(f"a message with the role {str(fields.get('role') or fields.get('type'))[:40]!r}")
    content = fields["parts"] if isinstance(fields.get("parts"), list) else fields.get("content")
    parts = content if isinstance(content, list) else [content] if isinstance(content, Mapping) else []
    texts = [content] if isinstance(content, str) else []
    reasoning = [
        text for name in ("reasoning", "reasoning_content") if isinstance(text := fields.get(name), str) and text
    ]
    calls, results = _calls(fields), []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind in TEXTS:
            texts.append(_text(part))
        elif kind in REASONING:
            reasoning.append(str(part.get("content") or part.get("text") or part.get("thinking") or ""))
        elif kind in CALLS:
            calls.append(_call(part.get("id") or part.get("call_id"), part.get("name"), _arguments(part)))
        elif kind in RESULTS:
            results.append(_result(part))
        else:
            raise ValueError(f"a part of the type {str(kind)[:40]!r}, which is no text")
    if results:
        words = [{"role": role, "content": "\n".join(texts)}] if texts and role != "tool" else []
        return [*results, *words]
    message: Message = {"role": role, "content": "\n".join(texts)}
    if role == "tool":
        named = {"tool_call_id": fields.get("tool_call_id") or fields.get("id"), "name": fields.get("name")}
        message |= {name: str(value) for name, value in named.items() if value}
    if role == "assistant" and calls:
        message["tool_calls"] = calls
    if role == "assistant" and reasoning:
        message["reasoning"] = reasoning[0]
    if role == "user" and not texts and not parts:
        raise ValueError("a message of the user without words")
    return [message]


def _text(part: Any) -> str:
    value = part if isinstance(part, str) else part.get("text", part.get("content", part.get("refusal")))
    if not isinstance(value, str):
        raise ValueError("a part without its text")
    return value


def _result(part: Mapping[str, Any]) -> Message:
    """The message of a tool, from a part of OpenTelemetry's or Anthropic's."""
    values = (part[name] for name in ("response", "result", "content", "output") if part.get(name) is not None)
    value = next(values, "")
    if isinstance(value, list) and all(isinstance(each, Mapping) and each.get("type") == "text" for each in value):
        value = "\n".join(str(each.get("text", "")) for each in value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    name = part.get("id") or part.get("tool_use_id") or part.get("call_id")
    return {"role": "tool", "content": text} | ({"tool_call_id": str(name)} if name else {})


def _calls(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls in the fields of a message: OpenAI's, LangChain's, and OpenAI's old single one."""
    more = fields.get("additional_kwargs")
    given = decoded(fields.get("tool_calls")) or (more.get("tool_calls") if isinstance(more, Mapping) else None) or []
    if not isinstance(given, list):
        raise ValueError(f"tool_calls must be a list, not a {type(given).__name__}")
    calls = []
    for call in given:
        function = call.get("function") if isinstance(call, Mapping) else None
        entry = function if isinstance(function, Mapping) else call
        if not isinstance(entry, Mapping):
            raise ValueError("a call without its function")
        calls.append(_call(call.get("id"), entry.get("name"), _arguments(entry)))
    if isinstance(old := fields.get("function_call"), Mapping):
        calls.append(_call(None, old.get("name"), _arguments(old)))
    return calls


def _arguments(entry: Mapping[str, Any]) -> Any:
    return next((entry[name] for name in ("arguments", "args", "input") if entry.get(name) is not None), {})


def _call(name_of_call: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call. Arguments that are no JSON object stay the text that the model wrote."""
    if not isinstance(name, str) or not name:
        raise ValueError("a call without the tool's name")
    given = decoded(arguments)
    value = dict(given) if isinstance(given, Mapping) else given if isinstance(given, str) else json.dumps(given)
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": value}}
    return ({"id": str(name_of_call)} if name_of_call else {}) | made
