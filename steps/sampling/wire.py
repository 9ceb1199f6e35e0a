"""A transcript's messages in the form that OpenAI-compatible servers take."""

from __future__ import annotations

import json
from collections.abc import Sequence

from environments.base import Message


def wire(messages: Sequence[Message]) -> list[Message]:
    """A transcript as servers take it: calls have ids and arguments as text, and the observation after a call answers it.

    Ids are nine letters and digits, because Mistral's models take no others; those that Kimi's models write are kept.
    The reasoning of a turn goes back to a server that named it `reasoning` (vLLM), whose template may show it.
    An observation that answers no call (after a turn in plain words, or after a call that could not be parsed) becomes a
    message of the user, because servers refuse a tool's message without its call.
    """
    sent: list[Message] = []
    open_calls: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            calls = []
            for number, call in enumerate(message.get("tool_calls") or ()):
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
                name_of_call = call.get("id") or f"call{place:03d}{number:02d}"
                calls.append({"id": name_of_call, "type": "function", "function": function})
            open_calls = [str(call["id"]) for call in calls]
            plain = {"role": "assistant", "content": message.get("content") or ""}
            plain |= {"reasoning": message["reasoning"]} if message.get("reasoning") else {}
            sent.append(plain | ({"tool_calls": calls} if calls else {}))
        elif message["role"] == "tool" and open_calls:
            sent.append({"role": "tool", "tool_call_id": open_calls.pop(0), "content": message["content"]})
        else:
            role = "user" if message["role"] == "tool" else message["role"]
            sent.append({"role": role, "content": message["content"]})
    return sent
