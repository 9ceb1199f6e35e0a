"""One entry of a producer's list of messages, in whatever dialect, as messages of one form.

Read are messages and parts of OpenAI's chat completions and Responses, Anthropic's, Gemini's, Bedrock's, Vercel's AI SDK,
LangChain's and OpenTelemetry's. Content is a text, and the arguments of calls are objects. Parts of a text are joined by a
line break, as vLLM does. What this form cannot keep (an image, sound, an unknown kind of part, half a character) is a
ValueError with its reason, and its conversation is quarantined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from environments.base import Message
from steps.core.message_marks import ENDS, WEIGHTS
from steps.core.outside_json import DECODER

ROLES = {"developer": "system", "human": "user", "ai": "assistant", "model": "assistant", "gpt": "assistant"}
ROLES |= {"function": "tool"} | {role: role for role in ("system", "user", "assistant", "tool")}
TEXTS = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
REASONING = ("reasoning", "thinking")
CALLS = ("tool_call", "tool_use", "function_call", "custom_tool_call")
RESULTS = ("tool_call_response", "tool_result", "function_call_output", "custom_tool_call_output")
KINDS = frozenset((*TEXTS, *REASONING, *CALLS, *RESULTS))
BARE = {  # the key of a part that has no type: Gemini's and Bedrock's
    "text": "text",
    "functionCall": "function_call",
    "function_call": "function_call",
    "functionResponse": "tool_result",
    "function_response": "tool_result",
    "toolUse": "tool_use",
    "toolResult": "tool_result",
    "reasoningContent": "reasoning",
}
BESIDE_BARE = {"thought", "thoughtSignature", "thought_signature", "partMetadata", "part_metadata", *BARE}
OF_PART = {*"text thinking signature cache_control citations response result output is_error caller".split(), *BARE}
NAMES_OF_CALLS = ("call_id", "id", "tool_call_id", "tool_use_id", "toolCallId", "toolUseId")
ATTACHED = ("images", "audio", "video", "files", "attachments", "experimental_attachments")
OWN_FIELDS = """role content parts name type id tool_calls toolCalls tool_call_id toolCallId tool_use_id toolUseId call_id
    reasoning reasoning_content thinking refusal function_call invalid_tool_calls additional_kwargs lc kwargs data from value
    arguments input output summary encrypted_content status annotations response_metadata usage_metadata example phase"""
FIELDS = frozenset((*OWN_FIELDS.split(), *ATTACHED, *WEIGHTS, *ENDS))  # what a message may have, read or without words
BEGUN = re.compile(r"""\s*(\[\s*)+\{\s*["']|\s*\{\s*["'](type|text|role|messages|content|parts|choices|lc)["']\s*:""")


def decoded(value: Any) -> Any:
    """The value of a JSON text that holds a list or an object; anything else, and what has no value there, as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return DECODER.decode(value)
    except ValueError:
        return value


def whole(value: Any) -> Any:
    """The same for a field that holds messages. ValueError for JSON that is cut off, which would be taken for words."""
    made = decoded(value)
    if isinstance(made, str) and is_cut_off(made):
        raise ValueError("messages whose JSON is cut off, or is no JSON")
    return made


def is_cut_off(text: str) -> bool:
    """Whether a text begins as JSON with messages or parts and is none. Words that follow whole JSON are words."""
    if not BEGUN.match(text):
        return False
    try:
        DECODER.raw_decode(text.lstrip())
    except ValueError:
        return True
    return False


def unpacked(content: Any, role: str) -> Any:
    """The parts in a text that a producer wrote as JSON because its attributes hold no lists; any other text as it is.
    ValueError where such a text is cut off."""
    made = decoded(content)
    if isinstance(made, str):
        if role != "tool" and is_cut_off(made):
            raise ValueError("content whose JSON is cut off, or is no JSON")
        return made
    parts = made if isinstance(made, list) else [made]
    kinds = [kind_of(part) if isinstance(part, Mapping) else "" for part in parts]
    if role == "tool":  # whose words often are JSON
        return made if isinstance(made, list) and kinds and all(kind in KINDS for kind in kinds) else content
    if isinstance(made, Mapping):  # a model's own JSON may have a field "text", beside others
        return made if kinds[0] in KINDS and made.keys() <= FIELDS | OF_PART else content
    return made if kinds and all(kinds) else content


def kind_of(part: Any) -> str:
    """The kind of a part; empty where it names none, and where one without a type has other fields than parts have."""
    if isinstance(part, str):
        return "text"
    if not isinstance(part, Mapping):
        raise ValueError(f"a part that is no object but a {type(part).__name__}")
    if isinstance(kind := part.get("type"), str):
        return kind.replace("-", "_")
    if part.get("thought") is True:
        return "reasoning"
    is_bare = {name for name, value in part.items() if value is not None} <= BESIDE_BARE
    return next((kind for name, kind in BARE.items() if is_bare and part.get(name) is not None), "")


def role_of(fields: Mapping[str, Any]) -> str:
    """The role of a message. ValueError where there is none."""
    named = fields.get("role") or fields.get("type")
    if named in ("constructor", None, "") and isinstance(fields.get("id"), list) and fields["id"]:
        named = fields["id"][-1]
    word = str(named or "").lower().removesuffix("chunk")
    role = ROLES.get(word) or ROLES.get(word.removesuffix("message"))
    if role is None:
        raise ValueError(f"a message with the role {str(named)[:40]!r}")
    return role


def with_names(messages: list[Message]) -> list[Message]:
    """The messages, with the tool's name at each tool message that names its call."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ()) if call.get("id")}
        if message["role"] == "tool" and not message.get("name") and message.get("tool_call_id") in names:
            message["name"] = names[message["tool_call_id"]]
    return messages


def messages_in(fields: Any, packed: bool) -> list[Message]:
    """The message in one entry; several where results of tools stand in it as parts. `packed`: a text may hold parts as
    JSON."""
    if isinstance(fields, list) and len(fields) == 2 and all(isinstance(each, str) for each in fields):
        fields = {"role": fields[0], "content": fields[1]}  # LangChain's short form
    if not isinstance(fields, Mapping):
        raise ValueError(f"a message must be an object, not a {type(fields).__name__}")
    fields = unwrapped(fields)
    role = role_of(fields)
    content = fields["parts"] if isinstance(fields.get("parts"), list) else fields.get("content")
    if content is None and isinstance(fields.get("refusal"), str):
        content = fields["refusal"]
    if packed and isinstance(content, str):
        content = unpacked(content, role)
    if content is not None and not isinstance(content, (str, list, Mapping)):
        raise ValueError(f"content that is no text but a {type(content).__name__}")
    if attached := next((name for name in ATTACHED if fields.get(name)), None):
        raise ValueError(f"a message with {attached}, which are no text")
    draft = _Draft(role)
    for name in ("reasoning", "reasoning_content", "thinking"):
        draft.think(fields.get(name))
    more = fields.get("additional_kwargs")
    draft.think(more.get("reasoning_content") if isinstance(more, Mapping) else None)
    for part in [content] if isinstance(content, (str, Mapping)) else content or ():
        draft.take(part)
    # Producers write a call as a part and in a field of the message: it is the same.
    draft.calls += [call for call in _calls(fields) if not call.get("id") or call not in draft.calls]
    return draft.done(fields, has_content=content not in (None, []))


class _Draft:
    """The messages that parts become, in the order of the parts."""

    def __init__(self, role: str) -> None:
        self.role, self.made = role, list[Message]()
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def think(self, text: Any) -> None:
        if isinstance(text, str) and text and text not in self.reasoning:
            self.reasoning.append(text)

    def take(self, part: Any) -> None:
        kind = kind_of(part)
        if kind in TEXTS:
            self.texts.append(text_of(part))
        elif kind in REASONING:
            self.think(thought_in(part))
        elif kind in CALLS:
            inner = _inner(part, "functionCall", "function_call", "toolUse")
            name = first_of(inner, "name", "toolName")
            self.calls.append(call_of(first_of(inner, *NAMES_OF_CALLS), name, _arguments(inner)))
        elif kind in RESULTS:
            self.flush()
            self.made.append(result_in(part))
        else:
            raise ValueError(f"a part of the type {kind[:40]!r}, which is no text" if kind else "a part without a type")

    def flush(self) -> None:
        if self.texts or self.calls:
            self.made.append(self._message())
        self.texts, self.reasoning, self.calls = [], [], []

    def _message(self) -> Message:
        if self.calls and self.role != "assistant":
            raise ValueError(f"a call in a message of the role {self.role}")
        message: Message = {"role": self.role, "content": "\n".join(self.texts)}
        if self.calls:
            message["tool_calls"] = self.calls
        if self.role == "assistant" and self.reasoning:
            message["reasoning"] = "\n".join(self.reasoning)
        return message

    def done(self, fields: Mapping[str, Any], has_content: bool) -> list[Message]:
        if self.made:
            if self.role != "tool":
                self.flush()
            return [writable(message) for message in self.made]
        message = self._message()
        if self.role == "tool":
            named = {"tool_call_id": first_of(fields, *NAMES_OF_CALLS[2:], "id"), "name": fields.get("name")}
            message |= {name: str(value) for name, value in named.items() if value}
        if self.role == "user" and not self.texts and not has_content:
            raise ValueError("a message of the user without words")
        return [writable(message)]


def writable(value: Any) -> Any:
    """The value itself. ValueError for what no file with JSON in UTF-8 can hold."""
    is_flat = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    try:
        ("".join(value.values()) if is_flat else json.dumps(value, ensure_ascii=False, allow_nan=False)).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("half a character in a text (a lone surrogate), which cannot be written") from None
    except ValueError:
        raise ValueError("a number that is infinite or none, which cannot be written") from None
    return value


def text_of(part: Any) -> str:
    value = part if isinstance(part, str) else first_of(part, "text", "content", "refusal")
    if isinstance(value, Mapping):  # an object with the text and notes to it
        value = value.get("value")
    if not isinstance(value, str):
        raise ValueError("a part without its text")
    return value


def thought_in(part: Mapping[str, Any]) -> str:
    """The words of a part of reasoning; empty where they are encrypted."""
    inner = first_of(part, "reasoningContent", "content", "text", "thinking", "summary", "reasoning")
    if isinstance(inner, Mapping):
        inner = first_of(inner, "reasoningText", "text")
        inner = inner.get("text") if isinstance(inner, Mapping) else inner
    if isinstance(inner, list):
        inner = "\n".join(text_of(each) for each in inner) or "\n".join(map(text_of, part.get("summary") or ()))
    return inner if isinstance(inner, str) else ""


def result_in(part: Mapping[str, Any]) -> Message:
    """The message of a tool, from a part with its result."""
    inner = _inner(part, "functionResponse", "function_response", "toolResult")
    name = next((name for name in ("response", "result", "content", "output") if inner.get(name) is not None), "")
    value, are_parts = inner.get(name), name in ("content", "output")
    if isinstance(value, Mapping) and isinstance(value.get("type"), str) and "value" in value:  # Vercel's
        value, are_parts = value["value"], value["type"] == "content"
    if isinstance(value, list) and value and (are_parts or all(_is_text(each) for each in value)):
        value = "\n".join(_shown(each) for each in value)
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    named = {"tool_call_id": first_of(inner, *NAMES_OF_CALLS), "name": first_of(inner, "name", "toolName")}
    return {"role": "tool", "content": text} | {name: str(each) for name, each in named.items() if each}


def _shown(part: Any) -> str:
    """The words of a part of a result. ValueError for one that is no text."""
    if isinstance(part, Mapping) and part.keys() == {"json"}:  # Bedrock's
        return json.dumps(part["json"], ensure_ascii=False)
    if (kind := kind_of(part)) not in TEXTS:
        raise ValueError(f"a result with a part of the type {kind[:40]!r}, which is no text")
    return text_of(part)


def call_of(name_of_call: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call. Arguments that are no JSON object stay the text that the model wrote."""
    if not isinstance(name, str) or not name:
        raise ValueError("a call without the tool's name")
    given = decoded(arguments)
    value = dict(given) if isinstance(given, Mapping) else given if isinstance(given, str) else json.dumps(given)
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": value}}
    return ({"id": str(name_of_call)} if name_of_call else {}) | made


def unwrapped(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without what LangChain wraps around it, by the names that are usual."""
    if "from" in fields and "value" in fields and "role" not in fields:  # ShareGPT's
        return {"role": fields["from"], "content": fields["value"]}
    if fields.get("lc") and isinstance(fields.get("kwargs"), Mapping):
        return {"id": fields.get("id"), **fields["kwargs"]} if "type" not in fields["kwargs"] else fields["kwargs"]
    if isinstance(fields.get("data"), Mapping) and isinstance(fields.get("type"), str):
        return {"type": fields["type"], **fields["data"]}
    return fields


def _calls(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls in the fields of a message: OpenAI's, LangChain's, Vercel's, and OpenAI's old single one."""
    more = fields.get("additional_kwargs")
    more = more if isinstance(more, Mapping) else {}
    given = whole(fields.get("tool_calls") or fields.get("toolCalls") or more.get("tool_calls")) or []
    if not isinstance(given, list):
        raise ValueError(f"tool_calls must be a list, not a {type(given).__name__}")
    calls = []
    for call in (*given, *(fields.get("invalid_tool_calls") or ())):  # of which LangChain could not parse the arguments
        function = (call.get("function") or call.get("custom")) if isinstance(call, Mapping) else None
        entry = function if isinstance(function, Mapping) else call
        if not isinstance(entry, Mapping):
            raise ValueError("a call without its function")
        calls.append(call_of(first_of(call, *NAMES_OF_CALLS), first_of(entry, "name", "toolName"), _arguments(entry)))
    if isinstance(old := fields.get("function_call") or more.get("function_call"), Mapping):
        calls.append(call_of(None, old.get("name"), _arguments(old)))
    return calls


def _arguments(entry: Mapping[str, Any]) -> Any:
    value = first_of(entry, "arguments", "args", "partial_json", "input")  # LangChain streams parts with partial_json
    return {} if value is None else value


def _inner(part: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((part[name] for name in names if isinstance(part.get(name), Mapping)), part)


def first_of(fields: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that is there."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and kind_of(part) in TEXTS and isinstance(first_of(part, "text", "content"), str)
