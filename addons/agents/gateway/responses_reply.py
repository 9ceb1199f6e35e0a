"""OpenAI's responses: a `Reply` to JSON or to a stream. addons/agents/gateway/responses.py reads the requests.

Reasoning is written as the summary of itself: clients keep summaries, and LangChain's loses `reasoning_text` from a stream.
`usage.output_tokens_details.reasoning_tokens` is always 0: the form wants a number, and reasoning is not counted apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from addons.agents.gateway import events as sse
from addons.agents.gateway import fields as read
from addons.agents.gateway.types import Reply

# In a response as in its request.
ECHOED = ("instructions", "max_output_tokens", "previous_response_id", "top_logprobs")


def render(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    """A finished answer as `openai.types.responses.Response`."""
    choice = reply.choices[0]
    is_cut = choice.finish_reason == "length"
    return _head(reply, body) | {
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": _output(reply, body),
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": choice.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + choice.completion_tokens,
        },
    }


def events(reply: Reply, body: Mapping[str, Any]) -> Iterator[str]:
    """The same answer as a stream from response.created to response.completed or response.incomplete. It has no [DONE]."""
    for number, (name, data) in enumerate(_events(reply, body)):
        yield sse.event({"type": name, "sequence_number": number} | data, name)


def _head(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a response that are there from its beginning."""
    given = {name: body.get(name) for name in ("tools", "tool_choice", "parallel_tool_calls", "text", "metadata")}
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created,
        "model": reply.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        "tools": given["tools"] or [],
        "tool_choice": given["tool_choice"] or "auto",
        "parallel_tool_calls": given["parallel_tool_calls"] is not False,
        "text": given["text"] or {"format": {"type": "text"}},
        "metadata": given["metadata"] or {},
        "temperature": None,  # the run decides both
        "top_p": None,
        **{name: body.get(name) for name in ECHOED},
    }


def shown_names(body: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """By which name the policy knows the functions of namespaces, by (namespace, name): their own, or with the namespace
    before it where another tool has it."""

    def objects(value: Any) -> list[dict[str, Any]]:
        return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []

    tools = objects(body.get("tools"))
    taken = {str(tool.get("name")) for tool in tools if tool.get("type") == "function"}
    names: dict[tuple[str, str], str] = {}
    for space in (tool for tool in tools if tool.get("type") == "namespace"):
        for tool in objects(space.get("tools")):
            key = str(space.get("name")), str(tool.get("name"))
            names[key] = key[1] if key[1] not in taken else ".".join(key)
            taken.add(names[key])
    return names


def _output(reply: Reply, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of an answer: reasoning, words and calls. Without words and calls there is a message with an empty text."""
    choice = reply.choices[0]
    message, calls = choice.message, choice.message.get("tool_calls") or ()
    status = "incomplete" if choice.finish_reason == "length" else "completed"
    output: list[dict[str, Any]] = []
    if reasoning := message.get("reasoning"):
        summary = [{"type": "summary_text", "text": reasoning}]
        output.append({"id": f"rs_{reply.id}", "type": "reasoning", "summary": summary})
    if message["content"] or not calls:
        text = {"type": "output_text", "text": message["content"], "annotations": []}
        text["logprobs"] = sse.logprobs(choice.tokens)
        item = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "status": status, "content": [text]}
        output.append(item)
    spaces = {shown: key for key, shown in shown_names(body).items()} if calls else {}
    for place, call in enumerate(calls):
        function = call["function"]
        item = {"id": f"fc_{reply.id}_{place}", "type": "function_call", "status": "completed", "call_id": call["id"]}
        space, name = spaces.get(function["name"], (None, function["name"]))
        item |= {"name": name, "arguments": read.written(function["arguments"])}
        output.append(item if space is None else item | {"namespace": space})
    return output


def _events(reply: Reply, body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the data of each event, without its number."""
    head, final = _head(reply, body), render(reply, body)
    yield "response.created", {"response": head}
    yield "response.in_progress", {"response": head}
    for index, item in enumerate(final["output"]):
        yield "response.output_item.added", {"output_index": index, "item": _begun(item)}
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "function_call":
            for piece in sse.pieces(item["arguments"]):
                yield "response.function_call_arguments.delta", place | {"delta": piece}
            done = place | {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", done
        elif item["type"] == "reasoning":
            names = "reasoning_summary_part", "reasoning_summary_text"
            yield from _text(item["summary"][0], place | {"summary_index": 0}, *names)
        else:
            yield from _text(item["content"][0], place | {"content_index": 0}, "content_part", "output_text")
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{final['status']}", {"response": final}


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    """An item before anything was added to it."""
    if item["type"] == "function_call":
        return item | {"arguments": "", "status": "in_progress"}
    if item["type"] == "reasoning":
        return item | {"summary": []}
    return item | {"content": [], "status": "in_progress"}


def _text(
    part: dict[str, Any], place: dict[str, Any], part_name: str, text_name: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A text of an item. The logprobs of a message's text come with the whole of it at the end."""
    logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    none = {"logprobs": list[Any]()} if logprobs else {}
    yield f"response.{part_name}.added", place | {"part": part | {"text": ""} | none}
    for piece in sse.pieces(part["text"]):
        yield f"response.{text_name}.delta", place | {"delta": piece} | none
    yield f"response.{text_name}.done", place | {"text": part["text"]} | logprobs
    yield f"response.{part_name}.done", place | {"part": part}
