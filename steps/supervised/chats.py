"""Demonstrations as people have them: JSON lines in OpenAI's chat format, and their tokens as a policy would sample them.

A line is {"messages": [...], "tools": [...], "source": "..."}. `tools` are the schemas that the assistant was shown; without
them those of the task are. `source` says where the line comes from, and lineage knows it by that. The assistant's turns are
learnt, in all of them, and nothing else is. A line that cannot be learnt from is left out with its reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from environments.base import Message
from steps.core.errors import UserError
from steps.policy.chat import Chat

LabelledTokens = tuple[list[int], list[int]]  # token ids [T], and 1 for each that is learnt, otherwise 0
ROLES = ("system", "user", "assistant", "tool")


class Demonstration(NamedTuple):
    """A conversation to learn from."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None  # schemas, as in OpenAI's `tools`; None: the task's
    source: str  # an id; empty where the line names none


class Unusable(Exception):
    """Why a line is no demonstration."""


def read_demonstrations(path: Path) -> tuple[list[Demonstration], dict[str, list[int]]]:
    """The demonstrations in a file, and the numbers of its other lines by the reason. UserError where it is no text."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"sft: {path} cannot be read as JSON lines in UTF-8 ({problem}); see docs/start.md") from None
    demonstrations: list[Demonstration] = []
    left_out: dict[str, list[int]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                demonstrations.append(parse(line))
            except Unusable as reason:
                left_out.setdefault(str(reason), []).append(number)
    return demonstrations, left_out


def parse(line: str) -> Demonstration:
    """A line as a demonstration, with calls whose arguments are objects, as tasks have them. Unusable says why not."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise Unusable("it is no JSON") from None
    if not isinstance(value, dict) or not isinstance(messages := value.get("messages"), list):
        raise Unusable("it has no list of messages")
    tools = value.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(map(is_tool, tools))):
        raise Unusable("its tools are no list of OpenAI's function schemas")
    read = [as_message(message) for message in messages]
    roles = [message["role"] for message in read]
    if "assistant" not in roles:
        raise Unusable("the assistant says nothing in it")
    if roles[0] == "assistant":
        raise Unusable("it begins with the assistant, so nobody asked")
    if ("assistant", "assistant") in pairwise(roles):
        raise Unusable("the assistant has two turns without anything in between")
    return Demonstration(read, tools, str(value.get("source") or ""))


def is_tool(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def as_message(value: Any) -> Message:
    """A message of OpenAI's format as the environments have it."""
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise Unusable(f"a message has another role than {', '.join(ROLES)}")
    content = value.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if content is not None and not isinstance(content, str):
        raise Unusable("a message's content is no text")
    message: Message = {"role": value["role"], "content": content or ""}
    message |= {name: value[name] for name in ("name", "tool_call_id") if isinstance(value.get(name), str)}
    if value["role"] == "assistant":
        if calls := [as_call(call) for call in value.get("tool_calls") or ()]:
            message["tool_calls"] = calls
        elif not message["content"].strip():
            raise Unusable("a turn of the assistant is empty")
    return message


def as_call(value: Any) -> dict[str, Any]:
    """A tool call, whose arguments are an object: OpenAI's format has them as JSON in a string."""
    try:
        function = value["function"]
        arguments = function["arguments"]
        arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        if not isinstance(arguments, dict) or not isinstance(function["name"], str):
            raise ValueError
    except (ValueError, LookupError, TypeError, RecursionError):
        raise Unusable("a tool call has no name, or arguments that are no JSON object") from None
    own_id = {"id": value["id"]} if isinstance(value.get("id"), str) else {}
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}} | own_id


def labelled(chat: Chat, messages: Sequence[Message]) -> LabelledTokens:
    """The tokens of a conversation as a rollout would have sampled them; the assistant's are learnt. What follows its last
    turn is left out. ValueError where the chat template refuses a message."""
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if any(message.get("pictures") for message in messages):
        raise ValueError("it shows pictures, and demonstrations are learnt as texts")
    ids = chat.prompt_ids(messages[: turns[0]])
    learnt = [0] * len(ids)
    for place, following in zip(turns, [*turns[1:], None], strict=True):
        sampled = chat.completion_ids(messages[place])
        suffix = [] if following is None else chat.suffix_ids(messages[place + 1 : following], messages[place])
        ids += sampled + suffix
        learnt += [1] * len(sampled) + [0] * len(suffix)
    return ids, learnt


def tokens_of(
    demonstrations: Sequence[Demonstration], chats: Mapping[str, Chat], context: int
) -> tuple[list[LabelledTokens], Counter[str]]:
    """The tokens of demonstrations, and how many have none, by the reason. `chats`: what renders each set of tools, by
    `key`. None has more than `context` tokens."""
    labels: list[LabelledTokens] = []
    left_out: Counter[str] = Counter()
    for demonstration in demonstrations:
        try:
            ids, learnt = labelled(chats[key(demonstration.tools)], demonstration.messages)
        except ValueError as problem:
            left_out[str(problem)] += 1
            continue
        if len(ids) > context:
            left_out["it has more tokens than policy.context"] += 1
        else:
            labels.append((ids, learnt))
    return labels, left_out


def key(tools: list[dict[str, Any]] | None) -> str:
    """By which a set of tools is known."""
    return json.dumps(tools, sort_keys=True)
