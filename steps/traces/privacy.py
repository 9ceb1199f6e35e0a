"""Masks secrets and personal data, before a conversation touches the disk and again when it is ingested.

Secrets are those of steps/core/masking.py. Personal data (steps/traces/personal.py) are addresses of people and machines,
numbers by which a person or an account is known, and what stands behind a word that names it:

    e-mail and IP addresses, MAC addresses, telephone numbers, payment cards, IBANs, US social security and UK insurance
    numbers, streets with a house number, coordinates, wallets, dates of birth, numbers of documents and accounts, and names
    where the text says that they are one ("my name is ...", a field full_name)

Each becomes its kind in brackets, as [email]. Not recognised: people's names and places in running text, and telephone
numbers without a prefix or a word before them. That takes a language model, as presidio's, and would also take the names out
of tasks that are about them. Masking is deterministic, and what is masked stays as it is when it is masked again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from environments.base import Message
from steps.core.masking import Masker
from steps.traces.personal import kind_of, without
from steps.traces.records import Conversation, Feedback

CACHED = 4096  # texts


class Privacy:
    """Masks conversations. It reads the environment, whose secrets it masks, only once."""

    def __init__(self) -> None:
        self.secrets = Masker()
        # The earlier messages of a conversation and the definitions of its tools come again with each of its calls.
        self.text = functools.lru_cache(CACHED)(self._text)
        self._tool = functools.lru_cache(CACHED)(lambda text: self.value(json.loads(text)))

    def _text(self, text: str) -> str:
        """A text without secrets and personal data."""
        return without(self.secrets.text(text))

    def value(self, value: Any) -> Any:
        """A copy of JSON data; a text under a field's name that says what it is, is masked whole."""
        return self._personal(self.secrets(value))

    def _personal(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            kind = kind_of(name)
            return f"[{kind}]" if kind and value and not value.startswith("[") else without(value)
        if isinstance(value, Mapping):
            return {without(str(key)): self._personal(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._personal(item, name) for item in value]
        if isinstance(value, int) and not isinstance(value, bool):
            if kind := kind_of(name):
                return f"[{kind}]"
            return value if (masked := without(str(value))) == str(value) else masked
        return value

    def tool(self, definition: dict[str, Any]) -> dict[str, Any]:
        """The definition of a tool."""
        masked: dict[str, Any] = self._tool(json.dumps(definition, ensure_ascii=False))
        return masked

    def message(self, message: Message) -> Message:
        """A message, whose role, names of tools and ids stay as they are."""
        made = dict(message)
        for name in ("content", "reasoning"):
            if isinstance(text := made.get(name), str):
                made[name] = self.text(text)
        if calls := made.get("tool_calls"):
            made["tool_calls"] = [
                call | {"function": call["function"] | {"arguments": self.value(call["function"]["arguments"])}}
                for call in calls
            ]
        return made

    def feedback(self, feedback: Feedback) -> Feedback:
        """Feedback, whose times and ids stay as they are."""
        correction = feedback.correction and self.message(feedback.correction)
        masked = {"comment": self.text(feedback.comment), "label": self.text(feedback.label), "correction": correction}
        return feedback.model_copy(update=masked)

    def conversation(self, conversation: Conversation) -> Conversation:
        """A conversation, whose key and times stay as they are."""
        return conversation.model_copy(
            update={
                "messages": tuple(map(self.message, conversation.messages)),
                "tools": tuple(map(self.tool, conversation.tools)),
                "feedback": tuple(map(self.feedback, conversation.feedback)),
                "metadata": {key: str(text) for key, text in self.value(conversation.metadata).items()},
            }
        )
