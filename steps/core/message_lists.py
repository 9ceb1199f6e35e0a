"""What a list of messages says as a whole: the system's words that stand beside it, who speaks in it, and which of its
fields nothing reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from environments.base import Message
from steps.core.message_marks import WEIGHTS, marked
from steps.core.message_parts import FIELDS, ROLES, messages_in, unwrapped

SYSTEM = ("system", "instructions", "system_instruction", "systemInstruction", "system_instructions", "system_prompt")
SPOKEN = re.compile(  # fields in which something is said that no reader here knows
    r"(chat_?)?history|contexts?|query|questions?|instructions?|documents|passages|answers?|chosen|rejected"
    r"|tool_?(invocation|result|output)s?",
    re.IGNORECASE,
)


def marked_in(entry: Any, packed: bool) -> list[Message]:
    """The messages of an entry of a list (`messages_in`), with the marks of what is learnt of them."""
    return marked(messages_in(entry, packed), next(iter(_fields([entry])), {}))


def with_system(messages: Sequence[Message], *beside: Any, packed: bool = False) -> list[Message]:
    """The messages after all of the system's words in the objects `beside` them, each text once. ValueError for what is no
    text. `packed`: a text may hold parts as JSON."""
    own = [message["content"] for message in messages if message["role"] == "system"]
    texts = {" ".join(text.split()) for text in (*own, "\n".join(own))}
    given = (fields.get(name) for fields in beside if isinstance(fields, Mapping) for name in SYSTEM)
    made = []
    for value in filter(None, given):
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


def refuse_unclear(entries: Sequence[Any]) -> None:
    """ValueError where names tell speakers of one role apart, who would become the same, and where a field of a message
    holds words that nothing reads."""
    roles = [role for role, _ in speakers(entries)]
    if len(set(roles)) < len(roles):
        raise ValueError("several people speak in one role, and a chat template does not show their names")
    for fields in _fields(entries):
        if _role(fields):
            refuse_unread_words(fields, "a message")


def refuse_unread_words(fields: Mapping[str, Any], owner: str, read: Sequence[str] = ()) -> None:
    """ValueError where a field holds a part of what was said, and is none of those that are read."""
    names = (name for name, value in fields.items() if SPOKEN.fullmatch(str(name)) and value and name not in read)
    if name := next(names, None):
        raise ValueError(
            f"{owner} with {name}, which nothing reads: put what it says into the messages, or take it out"
        )


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
