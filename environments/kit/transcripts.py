"""Transcripts as lists of messages: errors among the observations, and what was called."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

Message = dict[str, Any]  # as in the OpenAI chat format: role, content, and an assistant's tool_calls
# How the errors of a turn itself begin, which no tool has seen: of calls that could not be parsed (steps/policy/formats.py),
# and of `Env.call` and `Env.hear` (base.py).
UNPARSED = ("a tool call ", "tool calls must ")
CALL_ERRORS = (*UNPARSED, "no tool was called", "there is no tool named ", "the arguments of ", "wrong arguments for ")


def use(name: str, /, **arguments: Any) -> Message:
    """An assistant's turn that calls one tool."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def words(text: str) -> Message:
    """An assistant's turn in plain words."""
    return {"role": "assistant", "content": text}


def error(text: str) -> str:
    """The observation of an error. All environments use this form, so that a reward can count errors."""
    return f"Error: {text}."


def is_error(observation: Message) -> bool:
    return str(observation.get("content", "")).startswith("Error: ")


def is_call_error(text: str) -> bool:
    """Whether an error is one of the policy's turn itself, such as a call with wrong arguments, and not one of a tool."""
    return text.removeprefix("Error: ").startswith(CALL_ERRORS)


def is_unparsed(text: str) -> bool:
    """Whether an error says that a call could not be parsed."""
    return text.removeprefix("Error: ").startswith(UNPARSED)


def count_errors(messages: Sequence[Message]) -> int:
    """The number of observations that are errors."""
    return sum(message["role"] == "tool" and is_error(message) for message in messages)


def count_turns(messages: Sequence[Message]) -> int:
    """The number of turns that the policy took."""
    return sum(message["role"] == "assistant" for message in messages)


def count_calls(messages: Sequence[Message]) -> int:
    """The number of calls that were answered; a turn without any counts as one."""
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return sum(max(1, len(list(_answered(messages, place)))) for place in turns)


def tool_calls(messages: Sequence[Message]) -> list[tuple[str, dict[str, Any], Message]]:
    """(name, arguments, observation) of each call in a transcript, in order. Calls without an observation are skipped."""
    calls = []
    for place in range(len(messages)):
        for call, observation in _answered(messages, place):
            arguments = call["function"]["arguments"]
            calls.append((call["function"]["name"], arguments if isinstance(arguments, dict) else {}, observation))
    return calls


def _answered(messages: Sequence[Message], place: int) -> Iterator[tuple[dict[str, Any], Message]]:
    """The calls of the message at this place that were answered, each with its observation."""
    observations = itertools.takewhile(lambda later: later["role"] == "tool", messages[place + 1 :])
    return zip(messages[place].get("tool_calls") or (), observations, strict=False)


def accepted(messages: Sequence[Message], tool: str) -> dict[str, Any] | None:
    """The arguments of the first call of a tool that was answered without an error, or None."""
    calls = (arguments for name, arguments, seen in tool_calls(messages) if name == tool and not is_error(seen))
    return next(calls, None)
