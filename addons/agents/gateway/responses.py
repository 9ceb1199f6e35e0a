"""OpenAI's responses: a request's body to a `Request`, and a `Reply` to JSON or to a stream.

A response is a list of items; those of one turn of the assistant (reasoning, words, calls) are one message here. Left out:
files, stored prompts and conversations, work in the background. Hosted and custom tools are not shown to the policy.
Reasoning is written as the summary of itself: clients keep summaries, and LangChain's loses `reasoning_text` from a stream.
`usage.output_tokens_details.reasoning_tokens` is always 0: the form wants a number, and reasoning is not counted apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from addons.agents.gateway import events as sse
from addons.agents.gateway import fields as read
from addons.agents.gateway.chat import schema, tool_choice
from addons.agents.gateway.events import error as error
from addons.agents.gateway.types import BadRequest, Reply, Request, assistant
from environments.base import Message
from steps.policy.rendering import with_one_system

Items = list[dict[str, Any]]

REFUSED = {
    "background": "ask for the answer itself, or for a stream",
    "conversation": "send the items in input, or name the previous response",
    "prompt": "the gateway stores no prompts; write them in instructions and input",
    "moderation": "the gateway has no moderation",
}
TEXTS = ("input_text", "output_text", "text", "refusal")
ROLES = ("system", "developer", "user", "assistant")
ITEMS = ("message", "function_call", "function_call_output", "reasoning")
KNOWN = {
    *"input instructions previous_response_id tools tool_choice parallel_tool_calls max_output_tokens stop text".split(),
    *"include top_logprobs".split(),
}
ITEM_ID = re.compile(r"(?:rs|msg|fc)_([0-9A-Za-z]+)(?:_\d+)?")  # as `_output` writes it
LOGPROBS = "message.output_text.logprobs"
# In a response as in its request.
ECHOED = ("instructions", "max_output_tokens", "previous_response_id", "top_logprobs")


def parse(body: Any, earlier: Recorded | None = None) -> Request:
    """A request's body. `earlier` finds those before in the same episode. BadRequest names what is wrong."""
    fields = read.checked(body, REFUSED)
    named = shown_names(fields)
    tools, left_out = read.tools(fields.get("tools", []), partial(_tools, named=named))
    messages = _messages(items(fields, earlier or Recorded(())), named)
    if instructions := read.string(fields.get("instructions", ""), "instructions"):
        messages.insert(0, {"role": "system", "content": instructions})
    read.boolean(fields.get("store", True), "store")
    read.mapping(fields.get("metadata", {}), "metadata")
    return Request(
        messages=with_one_system(messages),
        tools=tools,
        tool_choice=tool_choice(fields.get("tool_choice", "auto"), tools),
        max_tokens=read.limit(fields, "max_output_tokens"),
        stop=read.stops(fields, "stop"),
        schema=schema(read.mapping(fields.get("text", {}), "text").get("format"), "text.format"),
        top_logprobs=_top_logprobs(fields),
        one_call=not read.boolean(fields.get("parallel_tool_calls", True), "parallel_tool_calls"),
        ignored=(*read.ignored(fields, KNOWN), *left_out),
    )


def items(body: Mapping[str, Any], earlier: Recorded) -> Items:
    """The whole input of a request as items: those of the previous response, what it answered, and those of the body.

    They and the response's output are the history of a later request that names this response.
    """
    given = body.get("input")
    given = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
    own: Items = [_resolved(item, path, earlier) for item, path in read.objects(given, "input")]
    before: Items = []
    if body.get("previous_response_id") is not None:
        name = read.filled(body["previous_response_id"], "previous_response_id")
        if (previous := earlier.read().responses.get(name)) is None:
            reason = f"previous_response_id {name[:80]!r} is no response of this episode; send the whole input"
            raise BadRequest(reason, "previous_response_id", "previous_response_not_found")
        before = [*previous[0], *previous[1]]
    if not before and not own:
        raise BadRequest("input must not be empty", "input")
    return [*before, *own]


def _resolved(item: dict[str, Any], path: str, earlier: Recorded) -> dict[str, Any]:
    """An item, or the one of an earlier response that it refers to."""
    if item.get("type") != "item_reference":
        return item
    name = read.filled(item.get("id"), f"{path}.id")
    if (own := earlier.read().items.get(name)) is None:
        reason = f"{path}.id {name[:80]!r} is no item of a response of this episode; send the item itself"
        raise BadRequest(reason, f"{path}.id", "item_not_found")
    return own


class Recorded:
    """The earlier responses of an episode, of the bodies and replies of its calls in their order."""

    def __init__(self, calls: Iterable[tuple[Mapping[str, Any], Reply]]) -> None:
        self.calls = calls
        self.responses: dict[str, tuple[Items, Items]] = {}  # by id: the whole input, as of `items`, and the output
        self.items: dict[str, dict[str, Any]] = {}  # of the outputs, by id

    def read(self) -> Recorded:
        """Most requests refer to nothing, so the calls are read when one does."""
        calls, self.calls = self.calls, ()
        for body, reply in calls:
            output = render(reply, body)["output"]
            self.items |= {item["id"]: item for item in output}
            self.responses[f"resp_{reply.id}"] = items(body, self), output
        return self


def _messages(given: Items, named: Mapping[tuple[str, str], str]) -> list[Message]:
    """Messages of items. A turn of the assistant ends where an item of another kind follows, or of another response, or one
    that stands before what the turn has already: its items come in the order reasoning, words, calls."""
    messages: list[Message] = []
    calls: dict[str, str] = {}  # the name of each call's tool by the call's id
    last = 0  # where the assistant's turn stands: 0 no turn, 1 reasoning, 2 words, 3 calls
    response: str | None = None  # whose item came last, where its id says so
    for place, item in enumerate(given):
        path = f"input[{place}]"
        given_kind = item.get("type", "message" if "role" in item else None)
        kind = read.kind_of(given_kind, path, ITEMS, f"the gateway reads {', '.join(ITEMS)}", "unsupported_item")
        if kind == "function_call" and item.get("namespace"):
            called = read.plain(item["namespace"], f"{path}.namespace"), read.plain(item.get("name"), f"{path}.name")
            item = item | {"name": named.get(called, called[1])}
        part, step = _part(kind, item, path, calls)
        before, response = response, _response_of(item) if step else None
        is_another = before is not None and response is not None and before != response
        if step == 0 or step < last or (step == last and step != 3) or last == 0 or is_another:
            messages.append(part)
        else:
            _extend(messages[-1], part)
        last = step
        calls |= {call["id"]: call["function"]["name"] for call in part.get("tool_calls", ())}
    return messages


def _response_of(item: Mapping[str, Any]) -> str | None:
    """The id of the response that an item was written in; None where the client gives it another id or none."""
    written = ITEM_ID.fullmatch(str(item.get("id")))
    return written[1] if written else None


def _part(kind: str, item: dict[str, Any], path: str, calls: Mapping[str, str]) -> tuple[Message, int]:
    """What an item says as a message, and where it stands in a turn of the assistant (0: it is not the assistant's)."""
    if kind == "reasoning":
        return assistant("", _reasoning(item, path)), 1
    if kind == "function_call":
        function = read.function(item.get("name"), item.get("arguments"), path)
        call = {"id": read.filled(item.get("call_id"), f"{path}.call_id"), "type": "function", "function": function}
        return assistant("", calls=[call]), 3
    if kind == "function_call_output":
        answered = read.answered(calls, item.get("call_id"), f"{path}.call_id")
        output = read.content(item.get("output"), f"{path}.output")
        return {"role": "tool"} | read.shown(output, f"{path}.output", TEXTS, _picture) | answered, 0
    role = read.member(item.get("role"), f"{path}.role", ROLES)
    content = read.content(item.get("content"), f"{path}.content")
    if role == "user":
        return {"role": "user"} | read.shown(content, f"{path}.content", TEXTS, _picture), 0
    words = read.joined(content, f"{path}.content", TEXTS)
    return ({"role": role, "content": words}, 2) if role == "assistant" else ({"role": "system", "content": words}, 0)


def _picture(part: dict[str, Any], path: str) -> tuple[str, str] | None:
    if part.get("type") != "input_image":
        return None
    if part.get("image_url") is None:
        raise BadRequest(
            f"{path} has no image_url; the gateway keeps no files, so send a data URL", f"{path}.image_url"
        )
    return read.picture(part["image_url"], f"{path}.image_url")


def _extend(turn: Message, part: Message) -> None:
    turn["content"] += part["content"]
    if "tool_calls" in part:
        turn["tool_calls"] = [*turn.get("tool_calls", ()), *part["tool_calls"]]


def _reasoning(item: dict[str, Any], path: str) -> str:
    """The reasoning in full, or its summary where a client kept that alone."""
    whole = {}
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = read.objects([] if item.get(name) is None else item[name], f"{path}.{name}")
        whole[name] = "".join(read.part_of(part, where, (kind,)) for part, where in parts)
    return whole["content"] or whole["summary"]


def _tools(fields: dict[str, Any], path: str, named: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    """A function, or those of a namespace, which the client runs as well."""
    match read.filled(fields.get("type"), f"{path}.type"):
        case "function":
            return [read.tool(fields, "parameters", path)]
        case "namespace":
            made = []
            for entry, where in read.objects(fields.get("tools"), f"{path}.tools"):
                read.member(entry.get("type"), f"{where}.type", ("function",))
                tool = read.tool(entry, "parameters", where)
                name = named[read.filled(fields.get("name"), f"{path}.name"), tool["function"]["name"]]
                made.append(tool | {"function": tool["function"] | {"name": name}})
            return made
    return []


def _top_logprobs(fields: dict[str, Any]) -> int | None:
    top = read.integer(fields.get("top_logprobs", 0), "top_logprobs", 0, 20)
    return top if top or LOGPROBS in read.listing(fields.get("include", []), "include") else None


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
        "tools": body.get("tools") or [],
        "tool_choice": body.get("tool_choice") or "auto",
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "text": body.get("text") or {"format": {"type": "text"}},
        "metadata": body.get("metadata") or {},
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
