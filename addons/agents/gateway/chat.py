"""OpenAI's chat completions: a request's body to a `Request`, and a `Reply` to JSON or to a stream.

Left out: audio, files, and the legacy `functions`. Hosted and custom tools are not shown to the policy.
`reasoning` stands beside the content of a message, as vLLM writes it; in a request `reasoning_content` is read, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from addons.agents.gateway import events as sse
from addons.agents.gateway import fields as read
from addons.agents.gateway.events import error as error
from addons.agents.gateway.types import BadRequest, Choice, Reply, Request, ToolChoice, assistant
from environments.base import Message
from steps.policy.rendering import with_one_system

REFUSED = {
    "functions": "functions are older than tools; send the same in tools",
    "function_call": "function_call is older than tools; send it as tool_choice",
    "audio": "the policy writes text alone",
    "web_search_options": "the gateway hosts no tools; run the search yourself and describe it in tools",
    "moderation": "the gateway has no moderation",
    "echo": "answers hold what was sampled alone",
    "best_of": "ask for n answers and choose among them",
}
TEXT = ("text",)
KNOWN = {
    *"messages tools tool_choice n max_tokens max_completion_tokens stop seed response_format logprobs".split(),
    *"top_logprobs modalities parallel_tool_calls".split(),
}


def parse(body: Any) -> Request:
    """A request's body. BadRequest names the field that is wrong and the reason."""
    fields = read.checked(body, REFUSED)
    if fields.get("modalities", ["text"]) != ["text"]:
        raise BadRequest('modalities must be ["text"]: the policy writes text alone', "modalities")
    tools, left_out = read.tools(fields.get("tools", []), _tool)
    return Request(
        messages=_messages(fields),
        tools=tools,
        tool_choice=tool_choice(fields.get("tool_choice", "auto"), tools, "function"),
        n=read.integer(fields.get("n", 1), "n", 1, read.MOST_ANSWERS),
        max_tokens=read.limit(fields, "max_completion_tokens", "max_tokens"),
        stop=read.stops(fields, "stop"),
        seed=read.integer(fields["seed"], "seed", -(2**63), 2**63 - 1) if "seed" in fields else None,
        schema=schema(fields.get("response_format"), "response_format", "json_schema"),
        top_logprobs=_top_logprobs(fields),
        one_call=not read.boolean(fields.get("parallel_tool_calls", True), "parallel_tool_calls"),
        ignored=(*read.ignored(fields, KNOWN), *left_out),
    )


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    messages: list[Message] = []
    calls: dict[str, str] = {}  # the name of each call's tool by the call's id
    for fields, path in read.messages(body):
        messages.append(_message(fields, path, calls))
        calls |= {call["id"]: call["function"]["name"] for call in messages[-1].get("tool_calls", ())}
    return with_one_system(messages)


def _message(fields: dict[str, Any], path: str, calls: Mapping[str, str]) -> Message:
    role = read.member(fields.get("role"), f"{path}.role", ("system", "developer", "user", "assistant", "tool"))
    if role == "assistant":
        return _assistant(fields, path)
    content = read.content(fields.get("content"), f"{path}.content")
    if role in ("system", "developer"):
        return {"role": "system", "content": read.joined(content, f"{path}.content", TEXT)}
    shown = read.shown(content, f"{path}.content", TEXT, _picture)
    if role == "tool":
        return {"role": "tool"} | shown | read.answered(calls, fields.get("tool_call_id"), f"{path}.tool_call_id")
    return {"role": role} | shown


def _picture(part: dict[str, Any], path: str) -> tuple[str, str] | None:
    if part.get("type") != "image_url":
        return None
    url = read.mapping(part.get("image_url"), f"{path}.image_url").get("url")
    return read.picture(url, f"{path}.image_url.url")


def _assistant(fields: dict[str, Any], path: str) -> Message:
    for name in ("function_call", "audio"):
        if fields.get(name):
            raise BadRequest(f"{path}.{name} cannot be read; calls stand in tool_calls", f"{path}.{name}")
    if fields.get("prefix"):
        reason = "end the messages with what the model is to answer"
        raise BadRequest(f"{path}.prefix cannot be honoured: {reason}", f"{path}.prefix")
    content = read.joined(fields.get("content"), f"{path}.content", ("text", "refusal"))
    reasoning = ""
    for name in ("reasoning_content", "reasoning"):
        if fields.get(name) is not None:
            reasoning = read.string(fields[name], f"{path}.{name}") or reasoning
    given = fields.get("tool_calls")
    calls = [_call(*call) for call in read.objects([] if given is None else given, f"{path}.tool_calls")]
    return assistant(content, reasoning, calls)


def _call(fields: dict[str, Any], path: str) -> dict[str, Any]:
    read.member(fields.get("type", "function"), f"{path}.type", ("function",))
    called = read.mapping(fields.get("function"), f"{path}.function")
    function = read.function(called.get("name"), called.get("arguments"), f"{path}.function")
    return {"id": read.filled(fields.get("id"), f"{path}.id"), "type": "function", "function": function}


def _tool(fields: dict[str, Any], path: str) -> list[dict[str, Any]]:
    if read.filled(fields.get("type"), f"{path}.type") != "function":
        return []
    return [read.tool(read.mapping(fields.get("function"), f"{path}.function"), "parameters", f"{path}.function")]


def tool_choice(given: Any, tools: tuple[dict[str, Any], ...], outer: str = "") -> ToolChoice:
    """A word, or an object that names the tool: itself, or in its field `outer`."""
    if not isinstance(given, dict):
        return read.chosen(read.member(given, "tool_choice", ("auto", "none", "required")), tools, "tool_choice")
    read.member(given.get("type"), "tool_choice.type", ("function",))
    if not outer:
        return read.named_tool(given.get("name"), tools, "tool_choice.name", "tool_choice.name")
    named = read.mapping(given.get(outer), f"tool_choice.{outer}").get("name")
    return read.named_tool(named, tools, f"tool_choice.{outer}.name", "tool_choice")


def schema(given: Any, path: str, outer: str = "") -> dict[str, Any] | None:
    """The JSON schema that the form of an answer asks for, in its field `outer` where it has one. None: any text."""
    if given is None:
        return None
    form = read.mapping(given, path)
    kind = read.member(form.get("type"), f"{path}.type", ("text", "json_object", "json_schema"))
    if kind == "json_object" and form.get("schema") is not None:  # as some servers have it
        return read.plain_object(form["schema"], f"{path}.schema")
    if kind != "json_schema":
        return {"type": "object"} if kind == "json_object" else None
    if outer:
        path = f"{path}.{outer}"
        form = read.mapping(form.get(outer), path)
    return read.plain_object(form.get("schema"), f"{path}.schema")


def _top_logprobs(fields: dict[str, Any]) -> int | None:
    wanted = read.boolean(fields.get("logprobs", False), "logprobs")
    top = read.integer(fields.get("top_logprobs", 0), "top_logprobs", 0, 20)
    if top and not wanted:
        raise BadRequest("top_logprobs needs logprobs: true", "top_logprobs")
    return top if wanted else None


def render(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    """A finished answer as `openai.types.chat.ChatCompletion`."""
    choices = [
        {
            "index": index,
            "message": _written(choice),
            "finish_reason": choice.finish_reason,
            "logprobs": {"content": sse.logprobs(choice.tokens), "refusal": None} if body.get("logprobs") else None,
        }
        for index, choice in enumerate(reply.choices)
    ]
    return _head(reply, "chat.completion") | {"choices": choices, "usage": usage(reply)}


def events(reply: Reply, body: Mapping[str, Any]) -> Iterator[str]:
    """The same answer as a stream of `openai.types.chat.ChatCompletionChunk`, one answer after another."""
    counted = wants_usage(body)
    head = _head(reply, "chat.completion.chunk") | ({"usage": None} if counted else {})
    for index, choice in enumerate(reply.choices):
        for delta in _deltas(choice):
            yield sse.event(head | {"choices": [{"index": index, "delta": delta, "finish_reason": None}]})
        last: dict[str, Any] = {"index": index, "delta": {}, "finish_reason": choice.finish_reason}
        if body.get("logprobs"):
            last["logprobs"] = {"content": sse.logprobs(choice.tokens), "refusal": None}
        yield sse.event(head | {"choices": [last]})
    if counted:
        yield sse.event(head | {"choices": [], "usage": usage(reply)})
    yield sse.DONE


def _head(reply: Reply, form: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": form, "created": reply.created, "model": reply.model}


def _written(choice: Choice) -> dict[str, Any]:
    """An assistant's message as clients take it: the content is null where there are calls alone."""
    calls = [
        {"id": call["id"], "type": "function", "function": _function(call)}
        for call in choice.message.get("tool_calls") or ()
    ]
    content = choice.message["content"]
    message = {"role": "assistant", "content": None if calls and not content else content, "refusal": None}
    reasoning = choice.message.get("reasoning")
    return message | ({"reasoning": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})


def _function(call: Mapping[str, Any]) -> dict[str, str]:
    return {"name": call["function"]["name"], "arguments": read.written(call["function"]["arguments"])}


def _deltas(choice: Choice) -> Iterator[dict[str, Any]]:
    message = _written(choice)
    yield {"role": "assistant", "content": None if message["content"] is None else ""}
    for name in ("reasoning", "content"):
        for piece in sse.pieces(message.get(name) or ""):
            yield {name: piece}
    for index, call in enumerate(message.get("tool_calls", ())):
        start = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": start}]}
        for piece in sse.pieces(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with the count of its tokens."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def usage(reply: Reply) -> dict[str, Any]:
    """The tokens of a reply as chat completions and completions count them."""
    sampled = sum(choice.completion_tokens for choice in reply.choices)
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": reply.prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }
