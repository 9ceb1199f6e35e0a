"""OpenAI's responses: a request's body to a `Request`. addons/agents/gateway/responses_reply.py writes the answer.

A response is a list of items; those of one turn of the assistant (reasoning, words, calls) are one message here. Left out:
files, stored prompts and conversations, work in the background. Hosted and custom tools are not shown to the policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from addons.agents.gateway import fields as read
from addons.agents.gateway.chat import schema, tool_choice
from addons.agents.gateway.responses_reply import events as events
from addons.agents.gateway.responses_reply import render as render
from addons.agents.gateway.responses_reply import shown_names
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
ITEM_ID = re.compile(r"(?:rs|msg|fc)_([0-9A-Za-z]+)(?:_\d+)?")  # as addons/agents/gateway/responses_reply.py writes it
LOGPROBS = "message.output_text.logprobs"


def parse(body: Any, earlier: Recorded | None = None) -> Request:
    """A request's body. `earlier` finds those before in the same episode. BadRequest names what is wrong."""
    fields = read.checked(body, REFUSED)
    tools, left_out = read.tools(fields.get("tools", []), partial(_tools, named=shown_names(fields)))
    messages = _messages(items(fields, earlier), shown_names(fields))
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


def items(body: Mapping[str, Any], earlier: Recorded | None = None) -> Items:
    """The whole input of a request as items: those of the previous response, what it answered, and those of the body.

    They and the response's output are the history of a later request that names this response.
    """
    given = body.get("input")
    own: Items = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else []
    for place, item in enumerate([] if isinstance(given, str) else read.listing(given, "input")):
        own.append(_resolved(read.mapping(item, f"input[{place}]"), f"input[{place}]", earlier))
    before: Items = []
    if body.get("previous_response_id") is not None:
        name = read.filled(body["previous_response_id"], "previous_response_id")
        previous = earlier.response(name) if earlier else None
        if previous is None:
            reason = f"previous_response_id {name[:80]!r} is no response of this episode; send the whole input"
            raise BadRequest(reason, "previous_response_id", "previous_response_not_found")
        before = [*previous[0], *previous[1]]
    if not before and not own:
        raise BadRequest("input must not be empty", "input")
    return [*before, *own]


def _resolved(item: dict[str, Any], path: str, earlier: Recorded | None) -> dict[str, Any]:
    """An item, or the one of an earlier response that it refers to."""
    if item.get("type") != "item_reference":
        return item
    name = read.filled(item.get("id"), f"{path}.id")
    if (own := earlier.item(name) if earlier else None) is None:
        reason = f"{path}.id {name[:80]!r} is no item of a response of this episode; send the item itself"
        raise BadRequest(reason, f"{path}.id", "item_not_found")
    return own


class Recorded:
    """The earlier responses of an episode, of the bodies and replies of its calls in their order."""

    def __init__(self, calls: Iterable[tuple[Mapping[str, Any], Reply]]) -> None:
        self.calls = calls
        self.responses: dict[str, tuple[Items, Items]] = {}
        self.items: dict[str, dict[str, Any]] = {}

    def _read(self) -> None:
        """Most requests refer to nothing, so the calls are read when one does."""
        calls, self.calls = self.calls, ()
        for body, reply in calls:
            output = render(reply, body)["output"]
            self.items |= {item["id"]: item for item in output}
            self.responses[f"resp_{reply.id}"] = items(body, self), output

    def response(self, name: str) -> tuple[Items, Items] | None:
        """The whole input that a response answered, as `items` gives it, and its output; None: there is no such response."""
        self._read()
        return self.responses.get(name)

    def item(self, name: str) -> dict[str, Any] | None:
        """An item of the output of one of them, by its id."""
        self._read()
        return self.items.get(name)


def _messages(given: Items, named: Mapping[tuple[str, str], str]) -> list[Message]:
    """Messages of items. A turn of the assistant ends where an item of another kind follows, or of another response, or one
    that stands before what the turn has already: its items come in the order reasoning, words, calls."""
    messages: list[Message] = []
    calls: dict[str, str] = {}  # the name of each call's tool by the call's id
    last = 0  # where the assistant's turn stands: 0 no turn, 1 reasoning, 2 words, 3 calls
    response: str | None = None  # whose item came last, where its id says so
    for place, item in enumerate(given):
        path = f"input[{place}]"
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str) or kind not in ITEMS:
            shown = f"the type {kind[:40]!r}" if isinstance(kind, str) else "no type"
            reason = f"{path} has {shown}; the gateway reads {', '.join(ITEMS)}"
            raise BadRequest(reason, f"{path}.type", "unsupported_item")
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
        if item.get("output") is None:
            raise BadRequest(f"{path}.output must be a text or a list of parts", f"{path}.output")
        return {"role": "tool"} | read.shown(item["output"], f"{path}.output", TEXTS, _picture) | answered, 0
    role = read.member(item.get("role"), f"{path}.role", ROLES)
    if item.get("content") is None:
        raise BadRequest(f"{path}.content must be a text or a list of parts", f"{path}.content")
    if role == "user":
        return {"role": "user"} | read.shown(item["content"], f"{path}.content", TEXTS, _picture), 0
    content = read.joined(item["content"], f"{path}.content", TEXTS)
    role = "system" if role == "developer" else role
    return {"role": role, "content": content}, 2 if role == "assistant" else 0


def _picture(part: dict[str, Any], path: str) -> tuple[str, str] | None:
    if part.get("type") != "input_image":
        return None
    if part.get("image_url") is None:
        raise BadRequest(
            f"{path} has no image_url; the gateway keeps no files, so send a data URL", f"{path}.image_url"
        )
    return read.picture(read.string(part["image_url"], f"{path}.image_url"), f"{path}.image_url")


def _extend(turn: Message, part: Message) -> None:
    turn["content"] += part["content"]
    if "tool_calls" in part:
        turn["tool_calls"] = [*turn.get("tool_calls", ()), *part["tool_calls"]]


def _reasoning(item: dict[str, Any], path: str) -> str:
    """The reasoning in full, or its summary where a client kept that alone."""
    whole = {}
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        whole[name] = ""
        for place, part in enumerate([] if item.get(name) is None else read.listing(item[name], f"{path}.{name}")):
            whole[name] += read.part_of(part, f"{path}.{name}[{place}]", (kind,))
    return whole["content"] or whole["summary"]


def _tools(fields: dict[str, Any], path: str, named: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    """A function, or those of a namespace, which the client runs as well."""
    match read.filled(fields.get("type"), f"{path}.type"):
        case "function":
            return [read.tool(fields, "parameters", path)]
        case "namespace":
            made = []
            for place, entry in enumerate(read.listing(fields.get("tools"), f"{path}.tools")):
                where = f"{path}.tools[{place}]"
                read.member(read.mapping(entry, where).get("type"), f"{where}.type", ("function",))
                tool = read.tool(entry, "parameters", where)
                name = named[read.filled(fields.get("name"), f"{path}.name"), tool["function"]["name"]]
                made.append(tool | {"function": tool["function"] | {"name": name}})
            return made
    return []


def _top_logprobs(fields: dict[str, Any]) -> int | None:
    top = read.integer(fields["top_logprobs"], "top_logprobs", 0, 20) if "top_logprobs" in fields else 0
    return top if top or LOGPROBS in read.listing(fields.get("include", []), "include") else None
