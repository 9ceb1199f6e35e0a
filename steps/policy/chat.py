"""Translates between messages and tokens: prompts by a chat template, the suffix for observations, and tool calls.

Sampled tokens are never tokenised again: a prompt is rendered once, and each later turn appends the sampled ids and the ids
of the observations' suffix. The suffix is cut out of a dummy chat that the template renders (the method of TRL's
`_get_tool_suffix_ids`), so that any model with a template for tools works. What a turn says is read as
steps/policy/formats.py finds it in the template, and a model is refused before it plays where a call that its template
writes would not be read back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from environments.base import Message
from steps.core.pictures import Shown, Vision
from steps.policy import formats
from steps.policy.rendering import Renderer

DUMMY = "dummy_function"
ARGUMENTS = {  # of the dummy call that must be read back
    "text": 'naïve "quoted" \\ 東京 😀\nand a line',
    "count": 3,
    "share": 0.5,
    "flag": True,
    "words": ["one", "two, three"],
    "nested": {"list": [1, {"deep": "é\"'"}], "none": None},
}
TYPES = {
    "text": "string",
    "count": "integer",
    "share": "number",
    "flag": "boolean",
    "words": "array",
    "nested": "object",
}
DUMMY_TOOL = {
    "type": "function",
    "function": {
        "name": DUMMY,
        "description": "",
        "parameters": {"type": "object", "properties": {name: {"type": kind} for name, kind in TYPES.items()}},
    },
}
USER: Message = {"role": "user", "content": "dummy"}
THOUGHT = "dummy reasoning"
THINK = re.compile(r"<think>\s*$")
NO_THOUGHT = re.compile(r"\s*(?:<think>)?\s*</think>\s*")  # what a template writes for a turn without reasoning


class Prompt(NamedTuple):
    """Token ids, and the pictures among them."""

    ids: list[int]
    pictures: tuple[Shown, ...] = ()


class Parsed(NamedTuple):
    """An assistant's turn as a message, and what is wrong with each malformed call."""

    message: Message
    problems: list[str]


class Chat:
    """Renders and parses for one tokenizer and one set of tools.

    `tool_parser` and `reasoning_parser` are names of vLLM's, found from the template where they are None; "none" reads the
    turn as plain text. ValueError for a template that leaves out the tools, where there are any, or what a tool answers, and
    for one whose calls are not read back. A task without tools needs no template for them.
    """

    def __init__(
        self,
        tokenizer: Any,
        tools: Sequence[dict[str, Any]],
        options: dict[str, Any] | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        vision: Vision | None = None,  # of a model that sees
        blind: str = "the policy sees no pictures",  # why there is none, and what to do
    ) -> None:
        self.tokenizer, self.vision = tokenizer, vision
        self.backend = getattr(tokenizer, "backend_tokenizer", None)  # without transformers' own work for each text
        if self.backend is not None and (self.backend.truncation or self.backend.padding):
            self.backend.no_truncation()  # a tokenizer.json may cut texts off, which transformers ignores
            self.backend.no_padding()
        self.tools = list(tools)
        self.options = options or {}
        self.renderer = Renderer(tokenizer, self.options, blind if vision is None else "")
        self.end = self._end_of_turn()
        self.mark: str = tokenizer.convert_ids_to_tokens(self.end)
        self.tools = self.renderer.plain(tools)
        self.tools_text = json.dumps(self.tools, sort_keys=True)
        self.opening = self._render([USER])  # of a turn, at its end
        if not all(tool["function"]["name"] in self.opening for tool in self.tools):
            raise ValueError("its chat template leaves out the tools")
        self.tool_parser: str | None = None  # until they are found
        self.reasoning_parser: str | None = None
        dummy = self._written(self._dummy_turn(1)) if self.tools else self._written(self._plain())
        self.tool_parser = self._chosen(tool_parser, formats.tool_parser(dummy) if self.tools else None)
        dummy = self._written(self._dummy_turn(1)) if self.tools else dummy  # with ids as this form has them
        if self.tools and self.tool_parser is None:
            raise ValueError(f"its chat template writes a tool call in a form that is not known here: {dummy[:120]!r}")
        detected = formats.reasoning_parser(self.opening, dummy, self.tool_parser)
        self.reasoning_parser = self._chosen(reasoning_parser, detected)
        self.reader = self._reader(self.tools, dummy)
        self.call_hint = self.reader.form.hint if self.tools else ""
        self._check(dummy)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """A prompt up to the point where the assistant begins: [P] token ids. ValueError for messages that the template
        does not show, and for those that show pictures, which `prompt` takes."""
        if any(message.get("pictures") for message in messages):
            raise ValueError("it shows pictures, and only sampling and the update take those")
        return self._encode(self._render(messages))

    def prompt(self, messages: Sequence[Message], bytes_of: Mapping[str, str]) -> Prompt:
        """`prompt_ids` of messages that may show pictures, of which `bytes_of` has the base64 by their SHA-256."""
        return self.expanded(self._encode(self._render(messages)), messages, bytes_of)

    def expanded(
        self, ids: list[int], messages: Sequence[Message], bytes_of: Mapping[str, str], start: int = 0
    ) -> Prompt:
        """Rendered ids with as many tokens for each of the messages' pictures as it is read into; `start`: tokens before
        them."""
        if not any(message.get("pictures") for message in messages):
            return Prompt(ids)
        assert self.vision is not None  # `_render` has refused them otherwise
        return Prompt(*self.vision.expand(ids, messages, bytes_of, start))

    def completion_ids(self, message: Message) -> list[int]:
        """A scripted assistant's turn as a policy would sample it, including the end-of-turn token: [C] token ids."""
        return self.completion(message)[0]

    def completion(self, message: Message) -> tuple[list[int], list[int]]:
        """`completion_ids`, and 1 for each token that the turn says: not those with which the template writes that a policy
        that reasons did not, where the turn has no reasoning. ValueError for a turn that the template does not show."""
        text = self._written(message)
        ids, unsaid = self._encode(text), 0
        if self.reasoning_parser and not message.get("reasoning") and (empty := NO_THOUGHT.match(text)):
            unsaid = _common(ids, self._encode(empty[0]))
        return [*ids, self.end], [0] * unsaid + [1] * (len(ids) - unsaid + 1)

    def suffix_ids(self, observations: Sequence[Message], turn: Message | None = None) -> list[int]:
        """The token ids that observations add after a finished turn, up to the point where the assistant begins again.

        `turn` is the assistant's message before them: where a model writes ids with its calls, the observations name them,
        by `tool_call_id` where they have one, and otherwise in their order.
        """
        answers = sum(message["role"] == "tool" for message in observations)
        has_ids = self.tools and bool(self.reader.form.id)
        before = self._dummy_turn(answers if has_ids else min(answers, 1)) if self.tools and answers else self._plain()
        ids = [call.get("id") for call in (turn or {}).get("tool_calls") or ()]
        shown, place = [], 0
        for message in observations:
            shown.append(dict(message))
            if message["role"] == "tool" and has_ids:
                given = message.get("tool_call_id")
                name = given if given in ids else ids[place] if place < len(ids) else None
                name = name or self._id(place, message.get("name") or "unknown")
                shown[-1]["tool_call_id"] = before["tool_calls"][place]["id"] = name
                place += 1
        text = self._render([USER, before, *shown])
        common = _common(text, self.opening)
        _, ended, suffix = text[common:].partition(self.mark)  # the first mark behind the prompt ends the dummy turn
        if not ended:
            raise ValueError("its chat template does not end an assistant's turn as other turns before an observation")
        return self._encode(suffix)

    def parse(self, completion_ids: Sequence[int]) -> Parsed:
        """Read a sampled turn. Malformed calls are left out of the message's tool_calls and listed as problems."""
        ids = list(completion_ids)
        reading = self.reader.read(self.text(ids[:-1] if ids[-1:] == [self.end] else ids))
        return Parsed(formats.as_message(reading), reading.problems)

    def text(self, ids: Sequence[int]) -> str:
        """What these tokens say, special ones as their names."""
        if self.backend is not None:
            return str(self.backend.decode(ids, skip_special_tokens=False))
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @staticmethod
    def _chosen(given: str | None, detected: str | None) -> str | None:
        return detected if given is None else None if given == "none" else given

    def _reader(self, tools: Sequence[dict[str, Any]], dummy: str) -> formats.Reader:
        opening = dummy.partition(DUMMY)[0].strip().partition("\n")[0]
        try:
            return formats.reader(
                self.tokenizer,
                tools,
                self.options,
                self.tool_parser,
                self.reasoning_parser,
                opening if self.tools else "",
            )
        except (KeyError, TypeError) as problem:
            raise ValueError(f"vLLM cannot read its turns: {problem}") from None

    def _check(self, dummy: str) -> None:
        """ValueError where what the template writes is not read back, or does not stand in the tokens of the next turn."""
        message = self._plain()
        if self.tools:
            message = self._dummy_turn(1, "Words before." if self._shows_words_with_calls() else "", ARGUMENTS)
        ids = self.completion_ids(message)
        reader, self.reader = self.reader, self._reader([*self.tools, DUMMY_TOOL], dummy)
        (read, problems), self.reader = self.parse(ids), reader
        if self.tools:
            calls = [call["function"] for call in read.get("tool_calls", ())]
            if problems or calls != [call["function"] for call in message["tool_calls"]]:
                raise ValueError(
                    f"a tool call that its chat template writes is not read back by vLLM's parser {self.tool_parser}: "
                    f"{self._written(message)[:200]!r} gives {calls!r:.200}"
                )
            observation = {"role": "tool", "name": "dummy", "content": "an answer"}
        else:
            observation = {"role": "user", "content": "an answer"}
        joined = self.tokenizer.decode([*ids, *self.suffix_ids([observation], read)])
        if "an answer" not in joined:
            raise ValueError("its chat template leaves out what a tool answers")
        if self.reasoning_parser:
            self._check_reasoning(message)

    def _check_reasoning(self, turn: Message) -> None:
        """ValueError where reasoning is not read back as the template writes it, or between the parser's marks where the
        template shows a turn without its reasoning."""
        text = self._written(turn | {"reasoning": THOUGHT})
        read = self.parse([*self._encode(text), self.end]).message
        plain = self.parse(self.completion_ids(self._plain())).message  # is all of it taken for reasoning?
        if read.get("reasoning") != THOUGHT or plain["content"].strip() != DUMMY:
            raise ValueError(
                f"the reasoning of a turn is not read back by vLLM's parser {self.reasoning_parser}: {text[:200]!r} gives "
                f"{read.get('reasoning')!r:.100}"
            )

    def _shows_words_with_calls(self) -> bool:
        try:
            return bool(self._written(self._dummy_turn(1, "Words before.")))
        except ValueError:
            return False

    @staticmethod
    def _plain() -> Message:
        return {"role": "assistant", "content": DUMMY}

    def _id(self, place: int, name: str) -> str:
        """The id of a call whose model wrote none."""
        form = formats.form_of(self.tool_parser)
        return ((form and form.made_id) or formats.NINE_LETTERS).format(place=place, name=name)

    def _dummy_turn(self, calls: int, content: str = "", arguments: dict[str, Any] | None = None) -> Message:
        function = {"name": DUMMY, "arguments": arguments or {}}
        made = [{"type": "function", "function": function, "id": self._id(place, DUMMY)} for place in range(calls)]
        return {"role": "assistant", "content": content, "tool_calls": made}

    def _written(self, message: Message) -> str:
        """An assistant's turn as the template writes it after the point where the assistant begins, without its end.
        ValueError where the template begins it otherwise there, or does not end it as other turns."""
        calls = [
            {"id": self._id(place, call["function"]["name"])} | call
            for place, call in enumerate(message.get("tool_calls") or ())
        ]
        turn = message | ({"tool_calls": calls} if calls else {})
        whole = self._render([USER, turn], ask=False)
        asked = THINK.sub("", self.opening)  # without the reasoning that a prompt may begin
        if whole.startswith(self.opening):
            text = whole[len(self.opening) :]
        elif asked != self.opening and whole.startswith(asked):  # a finished turn is shown without its reasoning
            text = f"\n</think>\n\n{whole[len(asked) :]}"
        elif whole.startswith(self.opening.rstrip()):
            text = whole[len(self.opening.rstrip()) :]
        else:
            raise ValueError(
                "its chat template begins an assistant's turn in another way when it shows it than when it asks"
            )
        text, ended, _ = text.rpartition(self.mark)
        if not ended:
            what = "an assistant's tool call" if calls else "an assistant's turn"
            raise ValueError(f"its chat template leaves out {what}, or does not end it as other turns")
        reasoning = self.renderer.plain(str(message.get("reasoning") or "").strip())
        is_missing = self.reasoning_parser and reasoning not in text
        return self._with_reasoning(reasoning, text) if is_missing else text

    def _with_reasoning(self, reasoning: str, text: str) -> str:
        """A turn that the template shows without its reasoning, with it as a policy writes it."""
        begin, end = self.reader.reasoning_marks()
        is_begun = bool(begin) and self.opening.rstrip().endswith(begin)
        text = NO_THOUGHT.sub("", text, count=1) if NO_THOUGHT.match(text) else text
        return f"{'' if is_begun else begin + chr(10)}{reasoning}\n{end}\n\n{text}"

    def _render(self, messages: Sequence[Message], ask: bool = True) -> str:
        return self.renderer.text(messages, self.tools, ask)

    def _encode(self, text: str) -> list[int]:
        if self.backend is not None:
            return list(self.backend.encode(text, add_special_tokens=False).ids)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _end_of_turn(self) -> int:
        """The token with which the template ends an assistant's turn (not always the tokenizer's eos)."""
        text = self._render([USER, {"role": "assistant", "content": "dummy"}], ask=False)
        tail = self._encode(text[text.rindex("dummy") + len("dummy") :])
        end = next((token for token in tail if token in self.renderer.control), self.tokenizer.eos_token_id)
        if end is None:
            raise ValueError("the tokenizer has no end-of-turn token that its chat template uses")
        return end


def _common(text: Sequence[Any], other: Sequence[Any]) -> int:
    """How many letters or tokens two begin with in common."""
    if text[: len(other)] == other:
        return len(other)
    return next(
        (place for place, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1]),
        min(len(text), len(other)),
    )


def rendered_turn(tokenizer: Any, options: dict[str, Any]) -> tuple[str, str]:
    """A prompt as the chat template renders it without tools, and an assistant's turn after it."""
    prompt = tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True, **options)
    whole = tokenizer.apply_chat_template([USER, {"role": "assistant", "content": DUMMY}], tokenize=False, **options)
    return prompt, whole[_common(prompt, whole) :]
