"""Demonstrations as people have them: JSON lines in OpenAI's chat format, and their tokens as a policy would sample them.

A line is {"messages": [...], "tools": [...], "source": "..."}. `tools` are the schemas that the assistant was shown; without
them those of the task are. `source` says where the line comes from, and lineage knows it by that. The assistant's turns are
learnt, in all of them, and nothing else is. A turn, or the line, says with `weight: 0` or `train: false` that it is shown
and not learnt, and with `finish_reason: length` that it was cut off: then its end is not learnt. A line that cannot be
learnt from is left out with its reason, and a field that nothing reads is named in `Demonstration.ignored`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from environments.base import Message
from steps.core import message_parts as parts
from steps.core.errors import UserError
from steps.core.files import json_lines
from steps.core.message_lists import SYSTEM, marked_in, refuse_unclear, unread, with_system
from steps.core.message_marks import ENDS, WEIGHTS, marked
from steps.core.outside_json import DECODER
from steps.policy.chat import Chat

# Token ids [T], and 1 for each that is learnt, otherwise 0; 2 where a small policy learns it with a separate weight.
LabelledTokens = tuple[list[int], list[int]]
READ = ("tools", "functions", *SYSTEM, *WEIGHTS, *ENDS)  # of a line, beside its messages
ABOUT = ("messages", "source", "id", "metadata")


class Demonstration(NamedTuple):
    """A conversation to learn from."""

    # A turn of the assistant with `weight` 0 bears no loss, and the end of one with `finish_reason` neither.
    messages: list[Message]
    tools: list[dict[str, Any]] | None  # schemas, as in OpenAI's `tools`; None: the task's
    source: str  # an id; empty where the line names none
    ignored: tuple[str, ...] = ()  # fields that nothing read


class Unusable(Exception):
    """Why a line is no demonstration."""


def read_demonstrations(path: Path) -> tuple[list[Demonstration], dict[str, list[int]]]:
    """The demonstrations in a file, and the numbers of its other lines by the reason. UserError where it is no text."""
    try:
        lines = json_lines(path)
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
        value = DECODER.decode(line)
    except (json.JSONDecodeError, RecursionError):
        raise Unusable("it is no JSON") from None
    except ValueError as problem:
        raise Unusable(str(problem)) from None
    if not isinstance(value, dict) or not isinstance(given := value.get("messages"), list):
        raise Unusable("it has no list of messages")
    try:
        read = [message for each in given for message in marked_in(each, packed=False)]
        refuse_unclear(given)
        messages = marked(with_system(parts.with_names(read), value), value)
    except (ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise Unusable(str(problem) or "a message that cannot be read") from None
    refuse_unusable(messages)
    ignored = {f"messages.{name}" for name in unread(given)}
    ignored |= {name for name in value if value[name] is not None and name not in (*READ, *ABOUT)}
    return Demonstration(messages, tools_of(value), str(value.get("source") or ""), tuple(sorted(ignored)))


def refuse_unusable(messages: Sequence[Message]) -> None:
    """Unusable where a conversation cannot have been so, or where nothing in it is to be learnt."""
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise Unusable("the assistant says nothing in it")
    if roles[0] == "assistant":
        raise Unusable("it begins with the assistant, so nobody asked")
    for message in messages:
        if message["role"] == "assistant":
            calls = message.get("tool_calls", ())
            if not all(isinstance(call["function"]["arguments"], dict) for call in calls):
                raise Unusable("a tool call has arguments that are no JSON object")
            if not calls and not message["content"].strip():
                raise Unusable("a turn of the assistant is empty")
    if ("assistant", "assistant") in pairwise(roles):
        raise Unusable("the assistant has two turns without anything in between")
    called: set[Any] = set()
    for before, message in pairwise(messages):
        called |= {call.get("id") for call in before.get("tool_calls", ())}
        if message["role"] == "tool":
            name = message.get("tool_call_id")
            if before["role"] not in ("assistant", "tool") or (
                name is not None and called - {None} and name not in called
            ):
                raise Unusable("a tool answers a call that nobody made")
    if not any(message["role"] == "assistant" and message.get("weight", 1) for message in messages):
        raise Unusable("every turn of the assistant is marked as not to be learnt")


def tools_of(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The schemas in a line; of older ones they stand in `functions`."""
    tools = value.get("tools")
    if tools is None and isinstance(older := value.get("functions"), list):
        tools = [{"type": "function", "function": function} for function in older]
    if tools is not None and not (isinstance(tools, list) and all(map(is_tool, tools))):
        raise Unusable("its tools are no list of OpenAI's function schemas, whose parameters are an object")
    try:
        return parts.writable(tools)
    except ValueError as problem:
        raise Unusable(f"its tools hold {problem}") from None


def is_tool(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return False
    return isinstance(function.get("parameters") or {}, dict)


def labelled(chat: Chat, messages: Sequence[Message]) -> LabelledTokens:
    """The tokens of a conversation as a rollout would have sampled them; the assistant's are learnt. What follows its last
    turn is left out. ValueError where the chat template refuses a message, or does not show it."""
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if any(message.get("pictures") for message in messages):
        raise ValueError("it shows pictures, and demonstrations are learnt as texts")
    ids = chat.prompt_ids(messages[: turns[0]])
    learnt = [0] * len(ids)
    for place, following in zip(turns, [*turns[1:], None], strict=True):
        turn = messages[place]
        if turn.get("reasoning") and not chat.reasoning_parser:
            raise ValueError(
                "a turn has reasoning, and the policy does not reason: take it out, or put it in the words"
            )
        sampled, own = chat.completion(turn)
        own = own if turn.get("weight", 1) else [0] * len(sampled)
        if turn.get("finish_reason"):
            own[-1] = 0
        suffix = [] if following is None else chat.suffix_ids(messages[place + 1 : following], turn)
        ids += sampled + suffix
        learnt += own + [0] * len(suffix)
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
