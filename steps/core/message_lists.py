"""What a list of messages says as a whole: the system's words that stand beside it, who speaks in it, and which of its
fields nothing reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from environments.base import Message
from steps.core.message_marks import WEIGHTS
from steps.core.message_parts import FIELDS, ROLES, messages_in, unwrapped

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


def speakers(entries: Sequence[Any]) -> set[tuple[str, str]]:
    """(role, name) of the messages of users and assistants that name who speaks."""
    named = ((_role(each), str(each["name"])) for each in _fields(entries) if each.get("name"))
    return {(role, name) for role, name in named if role in ("user", "assistant")}


def refuse_several_speakers(entries: Sequence[Any]) -> None:
    """ValueError where names tell speakers of one role apart, who would become the same."""
    roles = [role for role, _ in speakers(entries)]
    if len(set(roles)) < len(roles):
        raise ValueError("several people speak in one role, and a chat template does not show their names")


def unread(entries: Any) -> set[str]:
    """The fields of messages that no reader knows, where something is in them: of users also names, and marks that they are
    learnt from."""
    listed = _fields(entries if isinstance(entries, list) else ())
    fields = (field for each in listed for field in each.items())
    names = {str(name) for name, value in fields if value is not False and value not in (None, "", [], {})}
    asked = {name for each in listed if _role(each) != "assistant" for name in WEIGHTS if each.get(name)}
    return (names - FIELDS) | asked | ({"name"} if speakers(listed) else set())


def _fields(entries: Sequence[Any]) -> list[dict[str, Any]]:
    """The fields of each message, with those in what LangChain wraps around it."""
    return [{**entry, **unwrapped(entry)} for entry in entries if isinstance(entry, Mapping)]


def _role(fields: Mapping[str, Any]) -> str | None:
    return ROLES.get(str(fields.get("role") or fields.get("type")).lower())
