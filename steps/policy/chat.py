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
from typing import Any, NamedTuple, Protocol

from environments._pictures import as_parts
from environments.base import Message
from steps.core.pictures import Shown
from steps.policy import formats

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
CONTROL = re.compile(r"<[|\uff5c].+[|\uff5c]>|\[/?[A-Z_]+\]")  # names of tokens that mark turns and calls
THOUGHT = "dummy reasoning"
THINK = re.compile(r"<think>\s*$")


class Prompt(NamedTuple):
    """Token ids, and the pictures among them."""

    ids: list[int]
    pictures: tuple[Shown, ...] = ()


class Sight(Protocol):
    """What reads pictures into tokens: steps/policy/pictures.py."""

    def expand(
        self, ids: Sequence[int], messages: Sequence[Message], bytes_of: Mapping[str, str], start: int = 0
    ) -> tuple[list[int], tuple[Shown, ...]]: ...


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
        vision: Sight | None = None,  # of a model that sees
        blind: str = "the policy sees no pictures",  # why there is none, and what to do
    ) -> None:
        self.tokenizer, self.vision, self.blind = tokenizer, vision, blind
        self.backend = getattr(tokenizer, "backend_tokenizer", None)  # without transformers' own work for each text
        if self.backend is not None:  # a tokenizer.json may cut texts off, which transformers ignores
            self.backend.no_truncation()
            self.backend.no_padding()
        self.tools = list(tools)
        self.options = options or {}
        self.end = self._end_of_turn()
        self.mark: str = tokenizer.convert_ids_to_tokens(self.end)
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        control = {token.content for token in added if token.special or CONTROL.fullmatch(token.content)}
        self.special = sorted({*tokenizer.all_special_tokens, *control})
        self.tools = [self._plain_text(tool) for tool in tools]
        self.tools_text = json.dumps(self.tools, sort_keys=True)
        self.opening = self._render([USER], generate=True)  # of a turn, at its end
        if not all(tool["function"]["name"] in self.opening for tool in self.tools):
            raise ValueError("its chat template leaves out the tools")
        self.tool_parser: str | None = None  # until it is found
        dummy = self._written(self._dummy_turn(1)) if self.tools else self._written(self._plain())
        self.tool_parser = self._chosen(tool_parser, formats.tool_parser(dummy) if self.tools else None)
        dummy = self._written(self._dummy_turn(1)) if self.tools else dummy  # with ids as this form has them
        if self.tools and DUMMY not in dummy:
            raise ValueError("its chat template leaves out an assistant's tool call, or does not end it as other turns")
        if self.tools and self.tool_parser is None:
            raise ValueError(f"its chat template writes a tool call in a form that is not known here: {dummy[:120]!r}")
        detected = formats.reasoning_parser(self.opening, dummy, self.tool_parser)
        self.reasoning_parser = self._chosen(reasoning_parser, detected)
        self.reader = self._reader(self.tools, dummy)
        self.call_hint = self.reader.form.hint if self.tools else ""
        self._check(dummy)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """The first prompt of an episode, up to the point where the assistant begins: [P] token ids. ValueError for
        messages that show pictures, which `prompt` takes."""
        if any(message.get("pictures") for message in messages):
            raise ValueError("it shows pictures, and only sampling and the update take those")
        return self._encode(self._render(messages, generate=True))

    def outside_prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """As `prompt_ids`, of messages that come from outside (steps/gateway/): none of their texts is a special token, and
        an assistant's reasoning is shown where the template shows reasoning."""
        shown = [self.without_special(message) for message in messages]
        named = [m | {"reasoning_content": m["reasoning"]} if m.get("reasoning") else m for m in shown]
        return self._encode(self._render(named, generate=True))

    def prompt(self, messages: Sequence[Message], bytes_of: Mapping[str, str]) -> Prompt:
        """`prompt_ids` of messages that may show pictures, of which `bytes_of` has the base64 by their SHA-256."""
        return self.expanded(self._encode(self._render(messages, generate=True)), messages, bytes_of)

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
        return [*self._encode(self._written(message)), self.end]

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
            shown.append(self.without_special(message))
            if message["role"] == "tool" and has_ids:
                given = message.get("tool_call_id")
                name = given if given in ids else ids[place] if place < len(ids) else None
                name = name or self._id(place, message.get("name") or "unknown")
                shown[-1]["tool_call_id"] = before["tool_calls"][place]["id"] = name
                place += 1
        text = self._render([USER, before, *shown], generate=True)
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

    def without_special(self, message: Message) -> Message:
        """Text from outside must not end a turn or begin one: names of special tokens in it are broken up, in the arguments
        of calls, too."""
        if message.get("pictures"):
            seen: Message = self._plain_text(self._seen(message))
            return seen
        plain: Message = self._plain_text(message)
        return plain | {"content": self._plain_text(str(message["content"]))}

    def _seen(self, message: Message) -> Message:
        """A message as the template shows its pictures. ValueError where the policy sees none."""
        if message.get("pictures") and self.vision is None:
            raise ValueError(self.blind)
        return as_parts(message, lambda _: {"type": "image"})

    def _plain_text(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._plain_text(name): self._plain_text(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain_text(part) for part in value]
        if isinstance(value, str):
            for token in self.special:
                value = value.replace(token, f"{token[:1]} {token[1:]}")
        return value

    @staticmethod
    def _chosen(given: str | None, detected: str | None) -> str | None:
        return detected if given is None else None if given == "none" else given

    def _reader(self, tools: Sequence[dict[str, Any]], dummy: str) -> formats.Reader:
        opening = dummy.partition(DUMMY)[0].strip().partition("\n")[0]
        try:
            return formats.Reader(
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
        message = self._dummy_turn(1, "Words before.", ARGUMENTS) if self.tools else self._plain()
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
        turn = turn | dict.fromkeys(("reasoning", "reasoning_content"), THOUGHT)
        text = self._written(turn)
        if THOUGHT not in text:
            begin, end = self.reader.reasoning_marks()
            text = f"{begin}\n{THOUGHT}\n{end}\n\n{self._written(self._plain())}"
        read = self.parse([*self._encode(text), self.end]).message
        plain = self.parse(self.completion_ids(self._plain())).message  # is all of it taken for reasoning?
        if read.get("reasoning") != THOUGHT or plain["content"].strip() != DUMMY:
            raise ValueError(
                f"the reasoning of a turn is not read back by vLLM's parser {self.reasoning_parser}: {text[:200]!r} gives "
                f"{read.get('reasoning')!r:.100}"
            )

    @staticmethod
    def _plain() -> Message:
        return {"role": "assistant", "content": DUMMY}

    def _id(self, place: int, name: str) -> str:
        """The id of a call whose model wrote none."""
        form = formats.FORMATS.get(self.tool_parser or "")
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
        whole = self._render([USER, turn], generate=False)
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
        return text

    def _render(self, messages: Sequence[Message], generate: bool) -> str:
        from jinja2 import TemplateError

        shown = [self._seen(message) for message in messages]
        try:
            return self.tokenizer.apply_chat_template(
                shown, tools=self.tools or None, tokenize=False, add_generation_prompt=generate, **self.options
            )
        except TemplateError as problem:
            raise ValueError(f"its chat template refuses a message: {problem}") from None
        except TypeError:
            if not any(isinstance(message.get("content"), list) for message in shown):
                raise
            raise ValueError(
                "its chat template shows no pictures: take policy.chat_template out, or set it to chatml-vision"
            ) from None

    def _encode(self, text: str) -> list[int]:
        if self.backend is not None:
            return list(self.backend.encode(text, add_special_tokens=False).ids)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _end_of_turn(self) -> int:
        """The token with which the template ends an assistant's turn (not always the tokenizer's eos)."""
        text = self._render([USER, {"role": "assistant", "content": "dummy"}], False)
        if "dummy" not in text:
            raise ValueError("its chat template leaves out an assistant's turn")
        tail = self._encode(text[text.rindex("dummy") + len("dummy") :])
        special = set(self.tokenizer.all_special_ids)
        end = next((token for token in tail if token in special), self.tokenizer.eos_token_id)
        if end is None:
            raise ValueError("the tokenizer has no end-of-turn token that its chat template uses")
        return end


def _common(text: str, other: str) -> int:
    """How many letters two texts begin with in common."""
    return next(
        (place for place, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1]),
        min(len(text), len(other)),
    )


def rendered_turn(tokenizer: Any, options: dict[str, Any]) -> tuple[str, str]:
    """A prompt as the chat template renders it without tools, and an assistant's turn after it."""
    prompt = tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True, **options)
    whole = tokenizer.apply_chat_template([USER, {"role": "assistant", "content": DUMMY}], tokenize=False, **options)
    return prompt, whole[_common(prompt, whole) :]
