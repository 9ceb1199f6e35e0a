"""Conversations in forms that can be compared, and why one does not continue another.

A client sends back what it was answered, and changes it on the way. Two messages are the same here where role, words,
calls and pictures are: an empty content is none, arguments are compared as JSON values, ids of calls by which call they
name, what several tools answered in any order, and an assistant's reasoning is left out. Why a request forks is read from
what it shares with the recorded conversation that is most like it. That is a judgement on texts: a rule for each cause, and
`edited` for all other changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from addons.agents.gateway.types import Cause
from environments.base import Message

THOUGHTS = re.compile(
    r"<(think|thinking|thought|reasoning)>.*?(?:</\1>|\Z)"  # an answer that was cut off does not end them
    r"|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|\A.*?</think>",  # a template may begin them in the prompt
    re.DOTALL,
)
HISTORY = r"(?:conversation|chat|session|dialogue|discussion|history|context|messages|turns|steps|progress|thinking)"
SUMMARY = re.compile(
    r"\A\W*(?:conversation )?summary\b|<summary>"
    rf"|\bsummary of (?:the |our |this |its |all )?(?:earlier |previous |prior |older )?{HISTORY}"
    rf"|\b(?:earlier|previous|prior|older|past) {HISTORY}"
    rf"|\b{HISTORY} (?:so far|to date|until now|we had|(?:(?:was|were|is|are|has been|have been) )?"
    r"(?:summari[sz]ed|condensed|compacted|truncated|omitted|removed))",
    re.IGNORECASE,
)  # what agents write in the place of messages that they leave out

REASONS: dict[str, str] = {  # of a request that begins a row of its own, as a clause
    "reasoning_stripped": "left out an earlier answer's reasoning",
    "system_changed": "came with another system message",
    "tools_changed": "came with other tools",
    "history_compacted": "left out earlier messages, or summed them up",
    "edited": "changed, added or left out an earlier message",
    "sub_agent": "began a conversation of its own",
    "stop_text": "left out the stop text that ended an earlier answer, as the served model is shown it",
    "retry": "asked the same again for another answer",
    "alternative": "asked for several answers",
    "plain_text": "had a prompt without messages",
}


class Conversation(NamedTuple):
    """The messages of a request. Two are compared by `keys`; the system message at their front is kept apart in `system`."""

    messages: tuple[Message, ...] = ()
    tools: str = "[]"  # JSON
    keys: tuple[bytes, ...] = ()  # of each message
    loose: tuple[bytes, ...] = ()  # as keys, with thoughts left out of an assistant's words
    written: tuple[bytes, ...] = ()  # as keys, with the JSON of arguments as it was written
    system: str = ""
    opening: str = ""  # the first user's message

    @property
    def body(self) -> tuple[bytes, ...]:
        """`loose` of the messages behind the system message."""
        return self.loose[bool(self.messages) and self.messages[0]["role"] == "system" :]

    def name(self, count: int) -> bytes:
        """What the first `count` messages are known by, with the tools."""
        return _digest([self.tools, *(key.hex() for key in self.keys[:count])])

    def answered(self, answer: Message) -> Conversation:
        """With an assistant's answer behind it."""
        key, loose, written = _keys(answer, {})
        return self._replace(
            messages=(*self.messages, answer),
            keys=(*self.keys, key),
            loose=(*self.loose, loose),
            written=(*self.written, written),
        )


def conversation(messages: Sequence[Message], tools: str = "[]") -> Conversation:
    """The forms of a request's messages; O(length of their text). `tools`: their JSON."""
    calls: dict[str, int] = {}  # number of each call by its id, as far as the messages are read
    keys: list[tuple[bytes, bytes, bytes]] = []
    order: list[tuple[int, int]] = []  # what several tools answered is compared in the order of their calls
    count = 0
    for place, message in enumerate(messages):
        keys.append(_keys(message, calls))
        is_result = message["role"] == "tool"
        begin = order[-1][0] if is_result and place and messages[place - 1]["role"] == "tool" else place
        order.append((begin, calls.get(str(message.get("tool_call_id")), 0) if is_result else 0))
        for call in message.get("tool_calls") or ():
            calls[str(call.get("id"))] = count
            count += 1
    in_order = [keys[place] for place in sorted(range(len(keys)), key=order.__getitem__)]
    key, loose, written = zip(*in_order, strict=True) if keys else ((), (), ())
    return Conversation(
        messages=tuple(map(_unwritten, messages)),
        tools=tools,
        keys=key,
        loose=loose,
        written=written,
        system=_content(messages[0]) if messages and messages[0]["role"] == "system" else "",
        opening=next((_content(message) for message in messages if message["role"] == "user"), ""),
    )


def cause(asked: Conversation, recorded: Iterable[Conversation]) -> Cause:
    """Why a request does not continue any of these conversations, with their answers; the latest of them come last."""
    body = set(asked.body)

    def likeness(before: Conversation) -> tuple[int, bool, bool]:
        return len(body.intersection(before.body)), asked.system == before.system, asked.tools == before.tools

    alike = max(enumerate(recorded), key=lambda entry: (likeness(entry[1]), entry[0]), default=None)
    return _difference(asked, alike[1]) if alike else ""


def _difference(asked: Conversation, before: Conversation) -> Cause:
    """What was changed of one conversation to have the other: the first rule that holds."""
    now, then = asked.body, before.body
    texts = [_content(message) for message in asked.messages[len(asked.messages) - len(now) :]]
    kept = set(now) & set(then)
    has_system = asked.system == before.system or bool(before.system and asked.system.startswith(before.system))
    added = asked.system.removeprefix(before.system) if has_system else ""
    if not kept:
        if has_system and any(SUMMARY.search(text) for text in (added, *texts)):
            return "history_compacted"
        is_longer = bool(before.opening) and before.opening in asked.opening
        return "edited" if has_system and is_longer else "sub_agent"
    if not has_system and asked.opening != before.opening and then[-1] not in kept:
        return "sub_agent"
    is_same = [key == other for key, other in zip(now, then, strict=False)]  # place by place
    last = {key: place for place, key in enumerate(then)}
    replaced = [place for place in range(len(now)) if not any(is_same[place : place + 1])]
    if any(last.get(now[place], 0) > place for place in replaced):  # what was there stands nearer to the beginning
        return "history_compacted"
    if not all(is_same) and any(
        SUMMARY.search(text) for text in (added, *(texts[at] for at in replaced if at < len(then)))
    ):
        return "history_compacted"
    if asked.system != before.system:
        return "system_changed"
    if asked.tools != before.tools:
        return "tools_changed"
    if all(is_same) and any(key != other for key, other in zip(asked.keys, before.keys, strict=False)):
        return "reasoning_stripped"
    return "edited"


def sentence(forks: Mapping[str, int]) -> str:
    """What is said of a batch's requests that did not continue what was recorded; empty where there are none."""
    listed = [(count, REASONS[name], name) for name, count in forks.items() if name in REASONS]
    if not listed:
        return ""
    total = sum(count for count, *_ in listed)
    parts = "; ".join(f"{count} {reason} ({name})" for count, reason, name in sorted(listed, reverse=True))
    return (
        f"{total} requests did not continue the recorded tokens, so that each has a row with its whole prompt: {parts}"
    )


def without_thoughts(text: str) -> str:
    """An assistant's words without the reasoning that stands among them."""
    return THOUGHTS.sub("", text).strip()


def _keys(message: Message, calls: Mapping[str, int]) -> tuple[bytes, bytes, bytes]:
    """(key, loose, written) of a message, as in Conversation."""
    role, content = message["role"], _content(message)
    pictures = [message["pictures"]] if message.get("pictures") else []
    if role == "tool":
        answered = calls.get(str(message.get("tool_call_id")), message.get("name"))
        return (_digest([role, content, answered, *pictures]),) * 3
    if role != "assistant":
        return (_digest([role, content, *pictures]),) * 3
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    called = [(function["name"], _value(function["arguments"])) for function in functions]
    written = [(function["arguments"], function.get("written")) for function in functions]
    words = content.strip()
    return (
        _digest([role, words, called]),
        _digest([role, without_thoughts(words), called]),
        hashlib.blake2b(json.dumps([words, called, written]).encode(), digest_size=16).digest(),
    )


def _content(message: Message) -> str:
    return str(message.get("content") or "")


def _value(value: Any) -> Any:
    """A JSON value in which numbers that are equal are the same: some clients write 1.0 as 1."""
    if isinstance(value, dict):
        return {name: _value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_value(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def _unwritten(message: Message) -> Message:
    """The message as it is shown and recorded: without the client's own text of arguments."""
    if not message.get("tool_calls"):
        return message
    calls = [
        call | {"function": {name: part for name, part in call["function"].items() if name != "written"}}
        for call in message["tool_calls"]
    ]
    return message | {"tool_calls": calls}
