"""How a model writes tool calls and reasoning: which form a template has, and how a sampled turn is read.

One form is read here: calls as JSON between `<tool_call>` tags (hermes: Qwen2.5, Hermes and the embedded policies), because
vLLM takes seconds to import. Others, and reasoning, are read by vLLM's own parsers (addons/families/reader.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from environments.base import Message, unwritable
from steps.core.ports import bring, names

UNWRITABLE = "a tool call holds characters that are no text, or is nested too deeply"
NINE_LETTERS = "call{place:05d}"  # Mistral's templates take no other ids


class Format(NamedTuple):
    """A family's form of tool calls. The patterns are regular expressions."""

    sign: str  # is found in an assistant's turn that the family's template renders with a call
    opening: str  # where a call begins in a sampled turn
    closing: str  # where a call ends; empty where the end is that of its JSON
    malformed: str  # what the policy is told of a call that cannot be read
    hint: str  # where or how to write a call, after "call one"
    id: str = ""  # the id that the model writes with each call, in a group; empty where it writes none
    made_id: str = ""  # an id of this form, for a call that has none


HERMES = Format(
    r"<tool_call>\s*\{",
    r"<tool_call>",
    "",
    'a tool call must be {"name": …, "arguments": {…}} in valid JSON between <tool_call> and </tool_call>',
    "between <tool_call> and </tool_call>",
)
TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


def form_of(parser: str | None) -> Format | None:
    """The form that a tool parser of vLLM's reads; None where it is not known here."""
    if parser == "hermes":
        return HERMES
    form: Format | None = bring("family", parser, "policy.tool_parser") if parser in names("family") else None
    return form


def tool_parser(written: str) -> str | None:
    """vLLM's tool parser for a turn that a template rendered with a call; None for a form that is not known here."""
    forms = ((name, form_of(name)) for name in ("hermes", *names("family")))
    return next((name for name, form in forms if form and re.search(form.sign, written)), None)


def reasoning_parser(prompt: str, written: str, tool_parser: str | None) -> str | None:
    """vLLM's reasoning parser, by a prompt that a template rendered and an assistant's turn after it.

    None for a template that has no reasoning, and for a prompt that ends it at once, as `enable_thinking: false` does.
    """
    if prompt.rstrip().endswith("</think>"):
        return None
    if "[THINK]" in prompt + written:
        return "mistral"
    opened = "<think>" in written or prompt.rstrip().endswith("<think>")
    return ("kimi_k2" if tool_parser == "kimi_k2" else "qwen3") if opened else None


class Reading(NamedTuple):
    """A turn that was read: what is not a call, the calls, and what is wrong with each malformed one."""

    reasoning: str | None
    content: str
    calls: list[dict[str, Any]]  # each with type and function, and with an id where the model writes ids
    problems: list[str]


class Reader:
    """Reads the turns of a model without reasoning: plain words, or with calls as JSON between tags."""

    form = HERMES

    def __init__(self, is_tagged: bool) -> None:
        self.is_tagged = is_tagged

    def reasoning_marks(self) -> tuple[str, str]:
        """With what reasoning begins and ends; empty where there are no marks."""
        return "", ""

    def read(self, text: str) -> Reading:
        """The text of a turn, with its special tokens and without the one that ends it."""
        return self.tagged(None, text) if self.is_tagged else Reading(None, text, [], [])

    def tagged(self, reasoning: str | None, text: str) -> Reading:
        """Calls as JSON between tags."""
        calls, problems = [], []
        for body in TAGGED.findall(text):
            try:
                call = json.loads(body)
                function = {"name": str(call["name"]), "arguments": call["arguments"]}
            except (ValueError, KeyError, TypeError, RecursionError):
                problems.append(HERMES.malformed)
                continue
            if unwritable([function]):
                problems.append(UNWRITABLE)
                continue
            calls.append({"type": "function", "function": function})
        content = TAGGED.sub("", text).strip() if calls else text.strip() if reasoning else text
        return Reading(reasoning, content, calls, problems)


def reader(
    tokenizer: Any,
    tools: Sequence[dict[str, Any]],
    options: dict[str, Any],  # of the chat template
    tool_parser: str | None,
    reasoning_parser: str | None,
    opening: str = "",  # of a call, for a tool parser whose form is not known here
) -> Reader:
    """What reads the turns of a model. KeyError or TypeError for a parser that vLLM does not have, or not for this
    tokenizer."""
    if reasoning_parser is None and tool_parser in (None, "hermes"):
        return Reader(is_tagged=tool_parser == "hermes")
    kind = bring("turns", "vllm", "policy.tool_parser and policy.reasoning_parser")
    made: Reader = kind(tokenizer, tools, options, tool_parser, reasoning_parser, opening)
    return made


def as_message(reading: Reading) -> Message:
    """The assistant's message: its reasoning and its calls are left out where there are none."""
    message: Message = {"role": "assistant", "content": reading.content}
    if reading.reasoning and reading.reasoning.strip():
        message["reasoning"] = reading.reasoning.strip()
    return message | ({"tool_calls": reading.calls} if reading.calls else {})
