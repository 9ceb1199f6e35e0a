"""Translates between messages and tokens: prompts by a chat template, the suffix for observations, and tool calls.

Sampled tokens are never tokenised again: a prompt is rendered once, and each later turn appends the sampled ids and the ids
of the observations' suffix. The suffix is cut out of a dummy chat that the template renders (the method of TRL's
`_get_tool_suffix_ids`), so that any model with a template for tools works.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from environments.base import Message, unwritable

DUMMY = "dummy_function"
TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


class Parsed(NamedTuple):
    """An assistant's turn as a message, and what is wrong with each malformed call."""

    message: Message
    problems: list[str]


class Chat:
    """Renders and parses for one tokenizer and one set of tools.

    ValueError for a template that leaves out the tools, where there are any, or what a tool answers. A task without tools
    needs no template for them.
    """

    def __init__(self, tokenizer: Any, tools: Sequence[dict[str, Any]], options: dict[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.tools = list(tools)
        self.options = options or {}
        self.end = self._end_of_turn()
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        self.special = sorted({*tokenizer.all_special_tokens, *(token.content for token in added if token.special)})
        self._check_template()

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """The first prompt of an episode, up to the point where the assistant begins: [P] token ids."""
        return self._encode(self._render(messages, generate=True))

    def completion_ids(self, message: Message) -> list[int]:
        """A scripted assistant's turn as a policy would sample it, including the end-of-turn token: [C] token ids."""
        text = message.get("content") or ""
        for call in message.get("tool_calls") or ():
            body = json.dumps({key: call["function"][key] for key in ("name", "arguments")}, ensure_ascii=False)
            text += f"\n<tool_call>\n{body}\n</tool_call>"
        return [*self._encode(text.lstrip("\n")), self.end]

    def suffix_ids(self, observations: Sequence[Message]) -> list[int]:
        """The token ids that observations add after a finished turn, up to the point where the assistant begins again."""
        call = {"type": "function", "function": {"name": DUMMY, "arguments": {}}}
        turn: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        if not self.tools:
            turn = {"role": "assistant", "content": DUMMY}
        dummy: list[Message] = [{"role": "user", "content": "dummy"}, turn]
        text = self._render([*dummy, *map(self._without_special, observations)], generate=True)
        mark = self.tokenizer.convert_ids_to_tokens(self.end)
        _, called, after_call = text.partition(DUMMY)
        _, ended, suffix = after_call.partition(mark)
        if not called or not ended:
            what = "an assistant's tool call" if self.tools else "an assistant's turn"
            raise ValueError(f"its chat template leaves out {what}, or does not end it as other turns")
        return self._encode(suffix)

    def _without_special(self, message: Message) -> Message:
        """Text from outside must not end a turn or begin one: names of special tokens in it are broken up."""
        content = str(message["content"])
        for token in self.special:
            content = content.replace(token, f"{token[:1]} {token[1:]}")
        return message | {"content": content}

    def _check_template(self) -> None:
        """ValueError for a template that drops the tools or their answers: the policy would never see them."""
        shown = self._render([{"role": "user", "content": "dummy"}], generate=True)
        names = [tool["function"]["name"] for tool in self.tools]
        if not all(name in shown for name in names):
            raise ValueError("its chat template leaves out the tools")
        if not self.tools:
            return
        answer = self.tokenizer.decode(self.suffix_ids([{"role": "tool", "name": "dummy", "content": "an answer"}]))
        if "an answer" not in answer:
            raise ValueError("its chat template leaves out what a tool answers")

    def parse(self, completion_ids: Sequence[int]) -> Parsed:
        """Read a sampled turn. Malformed calls are left out of the message's tool_calls and listed as problems."""
        ids = list(completion_ids)
        text = self.tokenizer.decode(ids[:-1] if ids[-1:] == [self.end] else ids, skip_special_tokens=False)
        calls, problems = [], []
        for body in TOOL_CALL.findall(text):
            try:
                call = json.loads(body)
                function = {"name": str(call["name"]), "arguments": call["arguments"]}
            except (ValueError, KeyError, TypeError, RecursionError):
                problems.append(
                    'a tool call must be {"name": …, "arguments": {…}} in valid JSON between <tool_call> and </tool_call>'
                )
                continue
            if unwritable([function]):
                problems.append("a tool call holds characters that are no text, or is nested too deeply")
                continue
            calls.append({"type": "function", "function": function})
        message: Message = {"role": "assistant", "content": TOOL_CALL.sub("", text).strip() if calls else text}
        return Parsed(message | ({"tool_calls": calls} if calls else {}), problems)

    def _render(self, messages: Sequence[Message], generate: bool) -> str:
        return self.tokenizer.apply_chat_template(
            list(messages), tools=self.tools or None, tokenize=False, add_generation_prompt=generate, **self.options
        )

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _end_of_turn(self) -> int:
        """The token with which the template ends an assistant's turn (not always the tokenizer's eos)."""
        text = self._render([{"role": "user", "content": "dummy"}, {"role": "assistant", "content": "dummy"}], False)
        if "dummy" not in text:
            raise ValueError("its chat template leaves out an assistant's turn")
        tail = self._encode(text[text.rindex("dummy") + len("dummy") :])
        special = set(self.tokenizer.all_special_ids)
        end = next((token for token in tail if token in special), self.tokenizer.eos_token_id)
        if end is None:
            raise ValueError("the tokenizer has no end-of-turn token that its chat template uses")
        return end
