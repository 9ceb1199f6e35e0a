"""Masks secrets and personal data, before a conversation touches the disk and again when it is ingested.

Secrets are those of addons/masking/. Personal data (addons/production/traces/personal.py) are addresses of people
and machines, numbers by which a person or an account is known, and what stands behind a word that names it:

    e-mail and IP addresses, MAC addresses, telephone numbers, payment cards, IBANs, national ids whose check digits are
    right, streets with a house number, coordinates, wallets, dates of birth, numbers of documents and accounts, and names
    where the text says that they are one ("my name is ...", a field full_name)

Each becomes its kind in brackets, as [email], and a number stays a number. What is learnt stays: a field's name counts only
where its value has the form (`cell="B7"` is no telephone number), of the definition of a tool only keys of services are
masked, and ids and names of tools that hold something become a hash, the same at the call and at its result. Not
recognised: people's names and places in running text, and telephone numbers without a prefix or a word before them. That
takes a language model, as presidio's, and would also take the names out of tasks that are about them. Masking is
deterministic, and what is masked stays as it is when it is masked again.
"""

# ruff: noqa: RUF001  # letters of other scripts, which are meant
from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from addons.masking.masker import Masker
from addons.masking.secret_names import inside, is_after, is_secret, secrecy
from addons.production.traces.personal import without
from addons.production.traces.records import Conversation, Feedback, hashed
from environments.base import Message
from steps.core.masking import MASK

CACHED = 64 * 2**20  # bytes of masked texts that are kept
# Fields whose value is personal where it has the form: kind, names, form.
FIELDS = (
    ("email", r"e?mail|email_?address|recipient_email|user_email", r"\S.*(?:@|%40|＠).*\S"),
    (
        "phone",
        r"(?:tele)?phone(?:_?number)?|mobile|cell|fax|tel|msisdn",
        r"[+(]{0,2}\d(?:[\s()./-]{0,2}\d){5,17}(?:\s?(?:x|ext\.?)\s?\d{1,6})?",
    ),
    (
        "address",
        r"(?:home|street|postal|billing|shipping|mailing)_?address|street|address_line_?\d",
        r"(?=.*[^\W\d_]{2})(?:(?=.*\d)(?=.*\s).{6,}|[A-ZÀ-Þ][\w'’.-]+(?: [A-ZÀ-Þ][\w'’.-]+)+)",
    ),
    (
        "name",
        r"(?:first|last|middle|full|family|given|maiden|customer|patient)_?name|surname",
        r"(?!(?:string|str|text|null|none|required|optional|true"
        r"|false|name|unknown)$)[^\W\d_](?:[^\W\d_]|[ .'’-]){0,60}",
    ),
    ("birth date", r"dob|birth_?date|date_of_birth|birthday", r"(?=(?:.*\d){2}).{4,30}"),
    (
        "number",
        r"ssn|social_security(?:_number)?|passport(?:_?(?:no|number))?|national_id|tax_id|iban|account_number"
        r"|card_?number|credit_card|cvv|cvc|driver_?licen[cs]e|license_plate",
        r"(?=(?:.*\d){3})[\w ./-]{3,40}",
    ),
)
KEYS = {kind: (re.compile(names), re.compile(form, re.IGNORECASE)) for kind, names, form in FIELDS}
IN_JSON = re.compile(
    rf"(?P<key>[\"'](?i:{'|'.join(names for _, names, _ in FIELDS)})\\*[\"']\s?:\s?\\*)(?P<quote>[\"'])"
    r"(?P<value>(?:(?!(?P=quote))[^\\\n]){1,200})",
)
SEPARATED = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\s-]")
# Ids that engines and clients draw by themselves.
DRAWN = re.compile(
    r"(?:call|toolu|tooluse|chatcmpl-tool|tool|fc|ctc)[_-][A-Za-z0-9_-]{1"
    r",64}|[a-z]{0,4}\d{0,4}|[A-Za-z0-9]{9}|[0-9a-f-]{32,36}"
)


class Privacy:
    """Masks conversations. It reads the environment, whose secrets it masks, only once."""

    def __init__(self) -> None:
        self.secrets = Masker()
        self.secrets.again = self._text  # base64 of personal data
        self.known = Known()

    def text(self, text: str) -> str:
        """A text without secrets and personal data. The earlier messages of a conversation and the definitions of its tools
        come again with each of its calls: what was masked lately is known."""
        return self.known(text, self._text)

    def _text(self, text: str) -> str:
        text = self.secrets.text(text)
        if "'" in text or '"' in text:
            text = IN_JSON.sub(_in_json, text)
        return without(text)

    def value(self, value: Any, name: str = "", above: bool | None = None) -> Any:
        """A copy of JSON data, whose values keep their types. `name`: of the field that it stands in; `above`: the secrecy
        of what it stands in."""
        if isinstance(value, str):
            if is_secret(name, value, above):
                return MASK
            kind = kind_of(name, value)
            return f"[{kind}]" if kind else self._named(value, name)
        if isinstance(value, Mapping):
            fields = inside(value, secrecy(name, value, above))
            return {self.text(str(key)): self.value(item, str(label), held) for key, label, item, held in fields}
        if isinstance(value, list | tuple):
            above, pairs = secrecy(name, value, above), zip([None, *value], value, strict=False)
            return [MASK if is_after(before, item) else self.value(item, name, above) for before, item in pairs]
        if isinstance(value, int) and not isinstance(value, bool):
            shown = str(value)
            is_held = is_secret(name, value, above) or kind_of(name, shown) or self._named(shown, name) != shown
            return 10 ** (len(shown) - 1) if is_held else value
        return value

    def _named(self, text: str, name: str) -> str:
        """A text without what its field's name tells of it."""
        lead = f"{name}: "
        if not name or len(name) > 60:
            return self.text(text)
        masked = self.text(lead + text)
        return masked.removeprefix(lead) if masked.startswith(lead) else self.text(text)

    def tool(self, definition: dict[str, Any]) -> dict[str, Any]:
        """The definition of a tool: its name as in calls; of the rest only secrets with a form of their own, in texts."""
        function = definition.get("function")
        made = self._schema(definition)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            made["function"]["name"] = self.name(function["name"])
        return made

    def _schema(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.known(f"schema {value}", lambda _: self.secrets.sure(value))
        if isinstance(value, Mapping):
            return {key: self._schema(item) for key, item in value.items()}
        return [self._schema(item) for item in value] if isinstance(value, list | tuple) else value

    def name(self, name: str) -> str:
        """The name of a tool; a hash where it holds what is masked."""
        return name if self.text(name) == name else f"tool_{hashed(name)}"

    def id(self, name: str) -> str:
        """The id of a call, if it is of a form that is drawn; else a hash."""
        return name if DRAWN.fullmatch(name) and self.text(name) == name else f"call_{hashed(name)}"

    def message(self, message: Message) -> Message:
        """A message, whose role stays as it is."""
        made = dict(message)
        masks = {"content": self.text, "reasoning": self.text, "name": self.name, "tool_call_id": self.id}
        for field, mask in masks.items():
            if isinstance(text := made.get(field), str):
                made[field] = mask(text)
        if calls := made.get("tool_calls"):
            made["tool_calls"] = [self._call(call) for call in calls]
        return made

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        masked = {"name": self.name(function["name"]), "arguments": self.value(function["arguments"])}
        return {**call, **({"id": self.id(call["id"])} if call.get("id") else {}), "function": {**function, **masked}}

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


class Known:
    """The texts that were masked lately, by their hash; those used least are forgotten."""

    def __init__(self, most: int = CACHED) -> None:
        self.most, self.size, self.texts = most, 0, OrderedDict[bytes, str | None]()
        self.lock = threading.Lock()

    def __call__(self, text: str, mask: Any) -> str:
        name = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self.lock:
            if name in self.texts:
                self.texts.move_to_end(name)
                kept = self.texts[name]
                return text if kept is None else kept
        masked: str = mask(text)
        with self.lock:
            self.texts[name] = None if masked == text else masked  # most stay as they are, and only their hash is kept
            self.size += _size(self.texts[name])
            while self.size > self.most:
                self.size -= _size(self.texts.popitem(last=False)[1])
        return masked


def _size(text: str | None) -> int:
    return 160 + 4 * len(text or "")  # bytes, at most


def kind_of(name: str, value: str) -> str:
    """The kind of personal data in a field of this name; empty where its value has not the form of it."""
    if not name or value.startswith("[") or value.strip("0") == "1":  # the last is a number that stands for one
        return ""
    small = SEPARATED.sub("_", name).lower()
    kinds = (kind for kind, (names, form) in KEYS.items() if names.fullmatch(small) and form.fullmatch(value))
    return next(kinds, "")


def _in_json(match: re.Match[str]) -> str:
    kind = kind_of(match["key"].strip("\"'\\: ").strip("\"'\\"), match["value"])
    return f"{match['key']}{match['quote']}[{kind}]" if kind else match[0]
