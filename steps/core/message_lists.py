"""What stands beside a list of messages in a producer's fields and belongs among them: the system's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from environments.base import Message
from steps.core.message_parts import messages_in

SYSTEM = ("system", "instructions", "system_instruction", "systemInstruction", "system_instructions", "system_prompt")


def with_system(messages: Sequence[Message], *beside: Any, packed: bool = False) -> list[Message]:
    """The messages after all of the system's words in the objects `beside` them, each text once. ValueError for what is no
    text. `packed`: a text may hold parts as JSON."""
    own = [message["content"] for message in messages if message["role"] == "system"]
    texts = {" ".join(text.split()) for text in (*own, "\n".join(own))}
    made = []
    for value in (
        fields[name] for fields in beside if isinstance(fields, Mapping) for name in SYSTEM if fields.get(name)
    ):
        is_message = isinstance(value, Mapping) and ("parts" in value or "content" in value)
        [message] = messages_in({**(value if is_message else {"content": value}), "role": "system"}, packed)
        if (text := " ".join(message["content"].split())) not in texts:
            texts.add(text)
            made.append(message)
    return [*made, *messages]
