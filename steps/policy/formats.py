"""How model families write tool calls and reasoning: which form a template has, and how a sampled turn is read.

Calls and reasoning are read by vLLM's own parsers (vllm/tool_parsers, vllm/reasoning), which also
`addons.production.serve` starts its server with. One form is read here: calls as JSON between `<tool_call>` tags
(hermes: Qwen2.5, Hermes and the embedded policies), because vLLM takes seconds to import. The results are the same,
with one exception: where one of several calls is malformed, vLLM's parser drops them all, and this one drops that call
alone. What is malformed is named here for every form: vLLM's parsers leave it out, or complete a call that was cut off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from environments.base import Message, unwritable
from steps.policy import schemas

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


# By the name of vLLM's tool parser.
FORMATS = {
    "hermes": Format(
        r"<tool_call>\s*\{",
        r"<tool_call>",
        "",
        'a tool call must be {"name": …, "arguments": {…}} in valid JSON between <tool_call> and </tool_call>',
        "between <tool_call> and </tool_call>",
    ),
    "qwen3_coder": Format(  # Qwen3-Coder, Qwen3.5 and later, Nemotron 3
        r"<tool_call>\s*<function=",
        r"<tool_call>(?:\s*<function=)?|<function=",
        r"</function>",
        "a tool call must be <function=…> with a <parameter=…> … </parameter> for each argument and </function>, between "
        "<tool_call> and </tool_call>",
        "between <tool_call> and </tool_call>",
    ),
    "kimi_k2": Format(
        r"<\|tool_call_begin\|>",
        r"<\|tool_call_begin\|>|<\|tool_calls_section_begin\|>(?!\s*<\|tool_call_begin\|>)",
        r"<\|tool_call_end\|>",
        "a tool call must be complete: functions.name:number, then the arguments as an object in valid JSON",
        "in a section of tool calls",
        r"<\|tool_call_begin\|>\s*(functions\.[^\s:<]+:\d+)",
        "functions.{name}:{place}",
    ),
    "mistral": Format(
        r"\[TOOL_CALLS\]",
        r"\[TOOL_CALLS\]",
        "",
        'tool calls must be a list in valid JSON of {"name": …, "arguments": {…}}',
        'as a list in valid JSON of {"name": …, "arguments": {…}}',
        r'"id": *"([A-Za-z0-9]{9})"',
        NINE_LETTERS,
    ),
    "llama3_json": Format(  # the whole turn is the call
        r'^\s*(?:<\|python_tag\|>)?\{"name":',
        r"^\s*\{|<\|python_tag\|>",
        "",
        'a tool call must be {"name": …, "parameters": {…}} in valid JSON, and nothing else in the turn',
        'as {"name": …, "parameters": {…}}, with nothing else in the turn',
    ),
}
OTHER = "a tool call must be complete, name a tool and have valid arguments, in the form that the tools were introduced with"
TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


def tool_parser(written: str) -> str | None:
    """vLLM's tool parser for a turn that a template rendered with a call; None for a form that is not in the table."""
    return next((name for name, form in FORMATS.items() if re.search(form.sign, written)), None)


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
    """Reads the turns of a model. KeyError or TypeError for a parser that vLLM does not have, or not for this tokenizer."""

    def __init__(
        self,
        tokenizer: Any,
        tools: Sequence[dict[str, Any]],
        options: dict[str, Any],  # of the chat template: parsers look at `enable_thinking`
        tool_parser: str | None,
        reasoning_parser: str | None,
        opening: str = "",  # of a call, for a tool parser that is not in the table
    ) -> None:
        self.tokenizer, self.options = tokenizer, options
        self.is_tagged = tool_parser == "hermes"
        self.form = FORMATS.get(tool_parser or "", Format("", re.escape(opening), "", OTHER, "in this model's form"))
        self.has_tools = bool(tool_parser)
        self.parser: Any = None
        if reasoning_parser or (tool_parser and not self.is_tagged):
            self._load(tools, None if self.is_tagged else tool_parser, reasoning_parser)

    def _load(self, tools: Sequence[dict[str, Any]], tool_parser: str | None, reasoning_parser: str | None) -> None:
        import logging

        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser.parser_manager import ParserManager

        for room in ("vllm.tool_parsers", "vllm.parser", "vllm.reasoning"):  # a traceback for each malformed call
            logging.getLogger(room).setLevel(logging.CRITICAL)
        read = schemas.for_parser(tools)
        self.types = schemas.allowed(read)
        self.request = ChatCompletionRequest(
            messages=[{"role": "user", "content": ""}], tools=read or None, tool_choice="auto" if read else None
        )
        self.parser = ParserManager.get_parser(tool_parser, reasoning_parser, True, tokenizer=self.tokenizer)

    def reasoning_marks(self) -> tuple[str, str]:
        """With what reasoning begins and ends, by vLLM's parser; empty where it names no marks."""
        parser = self.parser(self.tokenizer).reasoning_parser
        return parser.reasoning_start_str or "", parser.reasoning_end_str or ""

    def read(self, text: str) -> Reading:
        """The text of a turn, with its special tokens and without the one that ends it."""
        reasoning, calls, content = None, [], text
        if self.parser is not None:  # one for each turn, as vLLM's server makes one for each request
            parser = self.parser(self.tokenizer, self.request.tools, chat_template_kwargs=self.options)
            reasoning, rest, calls = parser.parse(text, self.request, enable_auto_tools=True)
            content = rest or ""
            if reasoning:
                text = (
                    text.partition(reasoning)[2].lstrip().removeprefix(parser.reasoning_parser.reasoning_end_str or "")
                )
        if self.is_tagged:
            return self._tagged(reasoning, content)
        if not self.has_tools:
            return Reading(reasoning, content.strip() if reasoning else content, [], [])
        return self._checked(reasoning, content, calls or [], text)

    def _tagged(self, reasoning: str | None, text: str) -> Reading:
        """Calls as JSON between tags."""
        calls, problems = [], []
        for body in TAGGED.findall(text):
            try:
                call = json.loads(body)
                function = {"name": str(call["name"]), "arguments": call["arguments"]}
            except (ValueError, KeyError, TypeError, RecursionError):
                problems.append(self.form.malformed)
                continue
            if unwritable([function]):
                problems.append(UNWRITABLE)
                continue
            calls.append({"type": "function", "function": function})
        content = TAGGED.sub("", text).strip() if calls else text.strip() if reasoning else text
        return Reading(reasoning, content, calls, problems)

    def _checked(self, reasoning: str | None, content: str, listed: Sequence[Any], text: str) -> Reading:
        """What vLLM's parser found in the text after the reasoning. A call that the text begins and that is not among the
        finds is malformed, and so is one that the text does not end."""
        inside = "\n".join(call.arguments for call in listed)  # an argument may quote the marks of a call
        begun = len(re.findall(self.form.opening, text)) - len(re.findall(self.form.opening, inside))
        if not self.form.opening:
            begun = len(listed)
        if self.form.closing:
            ended = len(re.findall(self.form.closing, text)) - len(re.findall(self.form.closing, inside))
            listed = listed[: max(ended, 0)]
        ids = re.findall(self.form.id, text) if self.form.id else []
        calls, problems, broken = [], [], 0
        for number, call in enumerate(listed):
            try:
                function = {"name": str(call.name), "arguments": self._typed(call.name, json.loads(call.arguments))}
            except (ValueError, RecursionError):
                broken += 1
                continue
            if unwritable([function]):
                problems.append(UNWRITABLE)
                continue
            own_id = {"id": ids[number]} if len(ids) == len(listed) else {}
            calls.append({"type": "function", "function": function} | own_id)
        missing = max(begun - len(listed), 0)
        if self.form is FORMATS["llama3_json"] and listed:
            missing = 0  # several calls are begun by one mark
        problems += [self.form.malformed] * (broken + missing)
        if not calls and not problems:
            return Reading(reasoning, content.strip() if reasoning else content, [], [])
        return Reading(reasoning, content.strip() if calls else text.strip(), calls, problems)

    def _typed(self, tool: str, arguments: Any) -> Any:
        """The arguments of a call with the types of the tool's schema, where vLLM's parser leaves texts."""
        if not isinstance(arguments, dict):
            return arguments
        return {name: schemas.settled(value, self.types.get((tool, name), {""})) for name, value in arguments.items()}


def as_message(reading: Reading) -> Message:
    """The assistant's message: its reasoning and its calls are left out where there are none."""
    message: Message = {"role": "assistant", "content": reading.content}
    if reading.reasoning and reading.reasoning.strip():
        message["reasoning"] = reading.reasoning.strip()
    return message | ({"tool_calls": reading.calls} if reading.calls else {})
