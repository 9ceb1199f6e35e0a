"""Messages to a prompt's text by a chat template: one way for rollouts, the gateway, demonstrations and the served model.

What a message says is never trusted: names of tokens that mark turns and calls are broken up wherever they stand, so that
no words end a turn or begin one. System messages at the front are one. What the template would lose (a system message in
the middle, words beside calls, what a tool answers) is refused with a sentence.

Left out: names of users, which few templates show; reasoning of earlier turns is shown where the template shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from environments.base import Message
from environments.kit.pictures import as_parts

ROLES = ("system", "user", "assistant", "tool")
SHOWN = ("role", "content", "reasoning", "tool_calls", "tool_call_id", "name")  # of a message, to the template
CONTROL = re.compile(r"<[|\uff5c].+[|\uff5c]>|\[/?[A-Z_]+\]")  # names of tokens that mark turns and calls
MARKS = re.compile(r"<{1,2}[^<>\s]+>{1,2}|\[/?[A-Z_]+\]")  # what looks like a mark between two messages
NO_TURN = re.compile(r"</?think>|</?tools?_?\w*>", re.IGNORECASE)  # and marks no turn
MOST_SHAPES = 10_000
# Before a template that writes a call's function as JSON: vLLM's server puts the arguments first.
ORDERED = """{%- set by_name = namespace(first=[]) -%}
{%- for message in messages -%}
{%- if message.tool_calls -%}
{%- set calls = namespace(made=[]) -%}
{%- for call in message.tool_calls -%}
{%- set function = dict(name=call.function.name, arguments=call.function.arguments) -%}
{%- set calls.made = calls.made + [dict(call, function=function)] -%}
{%- endfor -%}
{%- set by_name.first = by_name.first + [dict(message, tool_calls=calls.made)] -%}
{%- else -%}
{%- set by_name.first = by_name.first + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- set messages = by_name.first -%}
"""


def control_tokens(tokenizer: Any) -> dict[int, str]:
    """The tokens that mark turns and calls, by their ids. Not all are in a tokenizer's map of special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    named = {at: token.content for at, token in added.items() if token.special or CONTROL.fullmatch(token.content)}
    return named | dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))


def with_one_system(messages: Iterable[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages with the system messages at their front as one: many templates show the first alone."""
    merged: list[Message] = []
    for message in messages:
        if len(merged) == 1 and merged[0]["role"] == message["role"] == "system":
            merged[0] = {"role": "system", "content": f"{merged[0]['content']}\n\n{message['content']}"}
        else:
            merged.append(dict(message))
    return tuple(merged)


class Renderer:
    """The chat template of a tokenizer. `options` are the template's variables."""

    def __init__(
        self,
        tokenizer: Any,
        options: Mapping[str, Any] | None = None,
        blind: str = "",  # why it shows no pictures, and what to do; empty where it shows them
    ) -> None:
        self.tokenizer, self.options, self.blind = tokenizer, dict(options or {}), blind
        self.control = control_tokens(tokenizer)
        self.shapes: set[Any] = set()  # of conversations that the template shows whole
        names = {*self.control.values(), *self._turn_marks()}
        listed = sorted((name for name in names if len(name.strip()) > 1), key=len, reverse=True)
        self.names = re.compile("|".join(map(re.escape, listed)) or r"(?!)")

    def plain(self, value: Any) -> Any:
        """A JSON value in whose texts names of control tokens are broken up, until none is left: a break may make one."""
        if isinstance(value, dict):
            return {self.plain(name): self.plain(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(part) for part in value]
        while isinstance(value, str) and self.names.search(value):
            value = self.names.sub(lambda name: f"{name[0][:1]} {name[0][1:]}", value)
        return value

    def shown(self, messages: Iterable[Mapping[str, Any]]) -> list[Message]:
        """The messages as the template gets them. ValueError for a role that it does not know, or for pictures that the
        policy does not see."""
        return [self._shown(message) for message in with_one_system(messages)]

    def text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]] = (), ask: bool = True
    ) -> str:
        """The prompt; `ask`: up to the point where the assistant begins. ValueError says what the template refuses or would
        leave out."""
        shown = self.shown(messages)
        self.refuse_lost(shown, tools, ask)
        return self._applied(shown, tools, ask)

    def refuse_lost(self, shown: Sequence[Message], tools: Sequence[dict[str, Any]] = (), ask: bool = True) -> None:
        """ValueError for a message whose words or calls the template leaves out. Looked at once for each shape of a
        conversation: its roles, and who has words, calls and reasoning."""
        shape = (ask, bool(tools), *((m["role"], _has_words(m), _calls(m), "reasoning" in m) for m in shown))
        if shape in self.shapes:
            return
        text = self._applied([_marked(place, message) for place, message in enumerate(shown)], tools, ask)
        for place, message in enumerate(shown):
            if _has_words(message) and _mark(place) not in text:
                advice = "put the words elsewhere, or set policy.chat_template to one that shows them"
                raise ValueError(f"its chat template leaves out {_described(place, message)}: {advice}")
            if any(_mark(place, number) not in text for number in range(_calls(message))):
                raise ValueError("its chat template leaves out an assistant's tool call")
        if len(self.shapes) >= MOST_SHAPES:
            self.shapes.clear()
        self.shapes.add(shape)

    def served_template(self) -> str:
        """The template that vLLM's server shows the same with; empty where the tokenizer's own does."""
        called: dict[str, Any] = {"id": "call00000", "type": "function", "function": {"name": "a", "arguments": {}}}
        turned = called | {"function": dict(reversed(called["function"].items()))}
        asked = {"role": "user", "content": "a"}
        try:
            first, second = (
                self._applied([asked, {"role": "assistant", "content": "", "tool_calls": [call]}], (), False)
                for call in (called, turned)
            )
        except ValueError:
            return ""
        return ORDERED + str(self.tokenizer.chat_template) if first != second else ""

    def _shown(self, message: Message) -> Message:
        if message.get("role") not in ROLES:
            raise ValueError(
                f"a message has the role {str(message.get('role'))[:40]!r}, which is none of {', '.join(ROLES)}"
            )
        if message.get("pictures"):
            if self.blind:
                raise ValueError(self.blind)
            message = as_parts(message, lambda _: {"type": "image"})
        kept = SHOWN if message["role"] == "tool" else SHOWN[:-1]
        made: Message = self.plain({name: message[name] for name in kept if message.get(name) is not None})
        content = made.get("content", "")
        made["content"] = content if isinstance(content, list) else str(content)
        if made.get("tool_calls"):  # some templates write the function as JSON, with every field that it has
            made["tool_calls"] = [call | {"function": _function(call["function"])} for call in made["tool_calls"]]
        if made.get("reasoning"):
            made["reasoning_content"] = made["reasoning"]  # as vLLM's server names it, too
        return made

    def _applied(self, shown: Sequence[Message], tools: Sequence[dict[str, Any]], ask: bool) -> str:
        from jinja2 import TemplateError

        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(shown), tools=list(tools) or None, tokenize=False, add_generation_prompt=ask, **self.options
                )
            )
        except TemplateError as problem:
            raise ValueError(f"its chat template refuses a message: {problem}") from None
        except (TypeError, KeyError, AttributeError, IndexError) as problem:
            if any(isinstance(message.get("content"), list) for message in shown):
                raise ValueError(
                    "its chat template shows no pictures: take policy.chat_template out, or set it to chatml-vision"
                ) from None
            raise ValueError(f"its chat template cannot show a message: {problem}") from None

    def _turn_marks(self) -> set[str]:
        """What the template writes around messages where that is no token, such as [INST]."""
        dummies = [{"role": role, "content": _mark(place)} for place, role in enumerate(("user", "assistant", "user"))]
        try:
            text = self._applied(dummies, (), False)
        except ValueError:
            return set()  # whoever asks for a prompt is told
        return {mark for mark in MARKS.findall(text) if not NO_TURN.fullmatch(mark)}


def _function(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": given["name"], "arguments": given["arguments"]}


def _mark(place: int, call: int | None = None) -> str:
    """A word that stands for what a message says, or for a call's name."""
    return f"qz{place}zq" if call is None else f"qz{place}c{call}zq"


def _calls(message: Message) -> int:
    return len(message.get("tool_calls") or ())


def _has_words(message: Message) -> bool:
    return isinstance(message["content"], str) and bool(message["content"].strip())


def _marked(place: int, message: Message) -> Message:
    made = message | ({"content": _mark(place)} if _has_words(message) else {})
    if not _calls(message):
        return made
    calls = []
    for number, call in enumerate(message["tool_calls"]):
        mark = _mark(place, number)
        given = call["function"].get("arguments")
        arguments = {mark: 1} if isinstance(given, dict) else given  # Kimi's turns have the arguments and no name
        calls.append(call | {"function": call["function"] | {"name": mark, "arguments": arguments}})
    return made | {"tool_calls": calls}


def _described(place: int, message: Message) -> str:
    if message["role"] == "system":
        return "a system message" if not place else "a system message after the first message"
    if message["role"] == "assistant":
        return "an assistant's words beside its calls" if _calls(message) else "an assistant's turn"
    return "what a tool answers" if message["role"] == "tool" else "a message of the user"
