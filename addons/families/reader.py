"""Reads turns by vLLM's own parsers (vllm/tool_parsers, vllm/reasoning), with which a server of vLLM's is started, too.

What is malformed is named here for every form: vLLM's parsers leave it out, or complete a call that was cut off. The results
of `hermes` are the same, with one exception: where one of several calls is malformed, vLLM's parser drops them all, and
steps/policy/formats.py, which reads that form here, too, drops that call alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from addons.families import schemas
from addons.families.forms import LLAMA3_JSON
from environments.base import unwritable
from steps.policy.formats import UNWRITABLE, Format, Reader, Reading, form_of

OTHER = "a tool call must be complete, name a tool and have valid arguments, in the form that the tools were introduced with"


class VllmReader(Reader):
    """Reads the turns of a model. KeyError or TypeError for a parser that vLLM does not have, or not for this tokenizer."""

    def __init__(
        self,
        tokenizer: Any,
        tools: Sequence[dict[str, Any]],
        options: dict[str, Any],  # of the chat template: parsers look at `enable_thinking`
        tool_parser: str | None,
        reasoning_parser: str | None,
        opening: str = "",  # of a call, for a tool parser whose form is not known here
    ) -> None:
        import logging

        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser.parser_manager import ParserManager

        super().__init__(is_tagged=tool_parser == "hermes")
        self.tokenizer, self.options, self.has_tools = tokenizer, options, bool(tool_parser)
        self.form = form_of(tool_parser) or Format("", re.escape(opening), "", OTHER, "in this model's form")
        for room in ("vllm.tool_parsers", "vllm.parser", "vllm.reasoning"):  # a traceback for each malformed call
            logging.getLogger(room).setLevel(logging.CRITICAL)
        read = schemas.for_parser(tools)
        self.types = schemas.allowed(read)
        self.request = ChatCompletionRequest(
            messages=[{"role": "user", "content": ""}], tools=read or None, tool_choice="auto" if read else None
        )
        named = None if self.is_tagged else tool_parser
        self.parser: Any = ParserManager.get_parser(named, reasoning_parser, True, tokenizer=tokenizer)

    def reasoning_marks(self) -> tuple[str, str]:
        parser = self.parser(self.tokenizer).reasoning_parser
        return parser.reasoning_start_str or "", parser.reasoning_end_str or ""

    def read(self, text: str) -> Reading:
        # A parser for each turn, as vLLM's server makes one for each request.
        parser = self.parser(self.tokenizer, self.request.tools, chat_template_kwargs=self.options)
        reasoning, rest, calls = parser.parse(text, self.request, enable_auto_tools=True)
        content = rest or ""
        if reasoning:
            text = text.partition(reasoning)[2].lstrip().removeprefix(parser.reasoning_parser.reasoning_end_str or "")
        if self.is_tagged:
            return self.tagged(reasoning, content)
        if not self.has_tools:
            return Reading(reasoning, content.strip() if reasoning else content, [], [])
        return self._checked(reasoning, content, calls or [], text)

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
        if self.form is LLAMA3_JSON and listed:
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
