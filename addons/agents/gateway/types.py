"""The forms between the gateway's parts: what every dialect's request becomes, and what every dialect's answer is made of.

Messages are in the form of environments.base.Message: content is a text, the arguments of tool calls are objects, an
assistant's reasoning is in `reasoning`. Ids of tool calls are kept, because clients refer to them. Pictures stand beside
the text of a message (environments/kit/pictures.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from environments.base import Message

ToolChoice = Literal["auto", "none", "required"] | str  # another text is the name of the tool that must be called
Cause = Literal[
    "",  # the request continues what was recorded
    "json_rewritten",  # it does, but the client wrote the JSON of a call's arguments anew
    "reasoning_stripped",  # an assistant's words came back without their reasoning
    "system_changed",  # another system prompt
    "tools_changed",  # another list of tools
    "history_compacted",  # earlier messages are gone, or a summary is in their place
    "edited",  # a message was changed in another way
    "sub_agent",  # a conversation of its own beside the first
    "stop_text",  # an answer came back without the text that ended it, which its tokens hold
    "retry",  # the same prompt again
    "alternative",  # another answer to the same request (n > 1)
    "plain_text",  # a prompt without messages (completions)
]


TOO_LONG = "context_length_exceeded"  # OpenAI's code for a prompt that does not fit


class BadRequest(Exception):
    """A request that cannot be answered, with the field it is about; each dialect has a form for it (status 400)."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code


class Request(NamedTuple):
    """What a client asks for."""

    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()  # as chat completions have them: {"type": "function", "function": {…}}
    tool_choice: ToolChoice = "auto"
    prompt: str | tuple[int, ...] | None = None  # of `completions`, in place of messages: a text, or token ids
    n: int = 1  # answers
    max_tokens: int | None = None  # of an answer; None: the run's limit
    stop: tuple[str, ...] = ()
    seed: int | None = None  # mixed into the draws
    schema: dict[str, Any] | None = None  # JSON schema that the answer must fulfil; {"type": "object"}: any object
    one_call: bool = False  # the answer may have one call at most
    top_logprobs: int | None = None  # alternatives of each token that the answer names; None: no logprobs
    ignored: tuple[str, ...] = ()  # fields that the run decides and the client cannot: temperature, top_p, …
    pictures: Mapping[str, str] = {}  # base64 by SHA-256, of those that the messages name (`apart`)


def assistant(content: str, reasoning: str = "", calls: Sequence[dict[str, Any]] = ()) -> Message:
    """An assistant's message; reasoning and calls stand in it where there are any."""
    message: Message = {"role": "assistant", "content": content}
    return message | ({"reasoning": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})


class Token(NamedTuple):
    """A sampled token as an answer shows it."""

    text: str  # what it adds, special tokens included; may hold U+FFFD where a letter needs several tokens
    logprob: float  # nats
    top: tuple[tuple[str, float], ...] = ()  # most probable tokens there: (text, nats)


class Choice(NamedTuple):
    """One answer."""

    message: Message  # with ids in its tool_calls; malformed calls are left in the text
    text: str  # all that was sampled, without the end of turn
    finish_reason: Literal["stop", "length", "tool_calls"]
    tokens: tuple[Token, ...] = ()  # where the request asks for logprobs
    completion_tokens: int = 0
    stop: str | None = None  # which of the request's stop texts ended it


class Reply(NamedTuple):
    """What the gateway answers; the same for a retry."""

    id: str  # letters and digits; dialects put their prefix before it (chatcmpl-, resp_, msg_, cmpl-)
    created: int  # Unix seconds
    model: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    cached_tokens: int = 0  # of the prompt, continued from what was recorded


class Dialect(Protocol):
    """A module for a protocol: what a route does with bodies and replies."""

    def parse(self, body: Any, /) -> Request:
        """What a body asks for. BadRequest names the field that is wrong and the reason."""

    def render(self, reply: Reply, body: Mapping[str, Any], /) -> dict[str, Any]:
        """An answer as JSON, to the body that asked for it."""

    def events(self, reply: Reply, body: Mapping[str, Any], /) -> Iterator[str]:
        """The same as server-sent events."""

    def error(self, problem: BadRequest, status: int, /) -> dict[str, Any]:
        """A refusal with its status."""
