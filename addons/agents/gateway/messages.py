"""Anthropic's messages: a request's body to a `Request`, and a `Reply` to JSON or to a stream.

Left out: documents, and an assistant's turn begun by the client. Tools that Anthropic hosts or defines are not
shown to the policy. A tool result's `is_error` is not shown to the policy: the result's own words say it. Reasoning is
shown as a block `thinking` where the request asks for it; its signature is a hash of the words, and nothing checks it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from addons.agents.gateway import events as sse
from addons.agents.gateway import fields as read
from addons.agents.gateway.types import BadRequest, Choice, Reply, Request, ToolChoice, assistant
from environments.base import Message
from environments.kit.pictures import with_pictures
from steps.policy.rendering import with_one_system

REFUSED = {
    "mcp_servers": "the gateway connects to no MCP servers; connect to them yourself and describe their tools in tools",
    "container": "the gateway runs no containers",
}
KNOWN = set("messages system tools tool_choice max_tokens stop_sequences output_config output_format thinking".split())
TEXT = ("text",)
KINDS = {401: "authentication_error", 413: "request_too_large"}  # of errors, by status


def parse(body: Any) -> Request:
    """A request's body. BadRequest names the field that is wrong and the reason."""
    fields = read.checked(body, REFUSED)
    if "max_tokens" not in fields:
        raise BadRequest("max_tokens is missing", "max_tokens")
    tools, left_out = read.tools(fields.get("tools", []), _tool)
    choice = read.mapping(fields.get("tool_choice", {"type": "auto"}), "tool_choice")
    _thinks(fields)
    return Request(
        messages=_messages(fields),
        tools=tools,
        tool_choice=_tool_choice(choice, tools),
        max_tokens=read.limit(fields, "max_tokens"),
        stop=read.stops(fields, "stop_sequences"),
        schema=_schema(fields),
        one_call=read.boolean(
            choice.get("disable_parallel_tool_use") or False, "tool_choice.disable_parallel_tool_use"
        ),
        ignored=(*read.ignored(fields, KNOWN), *left_out),
    )


def _messages(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    messages: list[Message] = []
    if system := read.joined(fields.get("system"), "system", TEXT):
        messages.append({"role": "system", "content": system})
    calls: dict[str, str] = {}  # the name of each call's tool by the call's id
    role = ""
    for given, path in read.messages(fields):
        role = read.member(given.get("role"), f"{path}.role", ("user", "assistant", "system"))
        content = read.content(given.get("content"), f"{path}.content", "blocks")
        if role == "assistant":
            messages.append(_assistant(content, f"{path}.content"))
            calls |= {call["id"]: call["function"]["name"] for call in messages[-1].get("tool_calls", ())}
        elif role == "system":
            messages.append({"role": "system", "content": read.joined(content, f"{path}.content", TEXT)})
        else:
            messages += _user(content, f"{path}.content", calls)
    if role == "assistant":
        reason = "messages must not end with the assistant's: its turns are sampled from their beginning"
        raise BadRequest(reason, "messages")
    return with_one_system(messages)


def _user(content: Any, path: str, calls: Mapping[str, str]) -> Iterator[Message]:
    """A user's message as several: each tool result is a tool's message, and what is around them the user's."""
    if isinstance(content, str):
        yield {"role": "user", "content": content}
        return
    texts: list[Any] = []
    for block, where in read.objects(content, path):
        if block.get("type") != "tool_result":
            texts.append(_picture(block, where) or read.part_of(block, where, TEXT))
            continue
        if texts:
            yield {"role": "user"} | with_pictures(texts)
        texts = []
        answered = read.answered(calls, block.get("tool_use_id"), f"{where}.tool_use_id")
        yield {"role": "tool"} | read.shown(block.get("content"), f"{where}.content", TEXT, _picture) | answered
    if texts or not content:
        yield {"role": "user"} | with_pictures(texts)


def _picture(block: dict[str, Any], path: str) -> tuple[str, str] | None:
    if block.get("type") != "image":
        return None
    source = read.mapping(block.get("source"), f"{path}.source")
    kind = read.member(source.get("type"), f"{path}.source.type", ("base64", "url"))
    name = "data" if kind == "base64" else "url"
    return read.picture(source.get(name), f"{path}.source.{name}", kind == "url")


def _assistant(content: Any, path: str) -> Message:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, reasoning, calls = list[str](), "", []
    for block, where in read.objects(content, path):
        match block.get("type"):
            case "thinking":
                reasoning += read.string(block.get("thinking"), f"{where}.thinking")
            case "tool_use":
                arguments = read.plain_object(block.get("input"), f"{where}.input")
                function = {"name": read.plain(block.get("name"), f"{where}.name"), "arguments": arguments}
                name = read.filled(block.get("id"), f"{where}.id")
                calls.append({"id": name, "type": "function", "function": function})
            case _:
                texts.append(read.part_of(block, where, TEXT))
    return assistant("\n".join(texts), reasoning, calls)


def _tool(fields: dict[str, Any], path: str) -> list[dict[str, Any]]:
    if fields.get("type") is not None and read.filled(fields["type"], f"{path}.type") != "custom":
        return []
    if fields.get("input_schema") is None:
        raise BadRequest(f"{path}.input_schema is missing", f"{path}.input_schema")
    return [read.tool(fields, "input_schema", path)]


def _tool_choice(given: dict[str, Any], tools: tuple[dict[str, Any], ...]) -> ToolChoice:
    name = read.member(given.get("type"), "tool_choice.type", ("auto", "any", "tool", "none"))
    if name != "tool":
        return read.chosen("required" if name == "any" else name, tools, "tool_choice")
    return read.named_tool(given.get("name"), tools, "tool_choice.name", "tool_choice.name")


def _schema(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    path, given = "output_config.format", read.mapping(fields.get("output_config", {}), "output_config").get("format")
    if given is None:
        path, given = "output_format", fields.get("output_format")  # its name before
    if given is None:
        return None
    read.member(read.mapping(given, path).get("type"), f"{path}.type", ("json_schema",))
    return read.plain_object(given.get("schema"), f"{path}.schema")


def _thinks(body: Mapping[str, Any]) -> bool:
    """Whether the client asks to see reasoning. Without asking, clients expect the text in the first block."""
    given = body.get("thinking")
    if given is None:
        return False
    name = read.mapping(given, "thinking").get("type")
    return read.member(name, "thinking.type", ("enabled", "adaptive", "disabled")) != "disabled"


def render(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    """A finished answer as `anthropic.types.Message`."""
    choice = reply.choices[0]
    return _head(reply) | {
        "content": _blocks(choice, body),
        "stop_reason": _stop_reason(choice),
        "stop_sequence": choice.stop,
        "usage": _usage(reply, choice.completion_tokens),
    }


def events(reply: Reply, body: Mapping[str, Any]) -> Iterator[str]:
    """The same answer as a stream from message_start to message_stop. It has no [DONE]."""
    choice = reply.choices[0]
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(reply, 0)}
    yield _event("message_start", message=_head(reply) | empty)
    for index, block in enumerate(_blocks(choice, body)):
        start, deltas = _deltas(block)
        yield _event("content_block_start", index=index, content_block=start)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    delta = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop}
    yield _event("message_delta", delta=delta, usage=_usage(reply, choice.completion_tokens))
    yield _event("message_stop")


def error(problem: BadRequest, status: int) -> dict[str, Any]:
    """An error as Anthropic writes it."""
    name = KINDS.get(status, "invalid_request_error")
    return {"type": "error", "error": {"type": name, "message": problem.message}}


def _head(reply: Reply) -> dict[str, Any]:
    return {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": reply.model}


def _blocks(choice: Choice, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reasoning, words and calls. A text is never empty, because Anthropic's is not; without anything the list is empty."""
    blocks: list[dict[str, Any]] = []
    if (reasoning := choice.message.get("reasoning")) and _thinks(body):
        signature = hashlib.sha256(reasoning.encode()).hexdigest()
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": signature})
    if content := choice.message["content"]:
        blocks.append({"type": "text", "text": content})
    for call in choice.message.get("tool_calls") or ():
        function = call["function"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": function["arguments"]})
    return blocks


def _deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and what is added to it."""
    match block["type"]:
        case "thinking":
            added = [{"type": "thinking_delta", "thinking": piece} for piece in sse.pieces(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [*added, signed]
        case "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in sse.pieces(block["text"])]
        case _:
            parts = sse.pieces(read.written(block["input"]))
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]


def _stop_reason(choice: Choice) -> str:
    if choice.stop is not None:
        return "stop_sequence"
    return {"length": "max_tokens", "tool_calls": "tool_use"}.get(choice.finish_reason, "end_turn")


def _usage(reply: Reply, sampled: int) -> dict[str, int]:
    """Anthropic counts the tokens of the prompt that are read from a cache apart from the others."""
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_read_input_tokens": reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": sampled,
    }


def _event(name: str, **data: Any) -> str:
    return sse.event({"type": name} | data, name)
