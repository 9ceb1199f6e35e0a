"""Masking: takes secrets out of whatever leaves this machine, such as traces, logs, pages and reports.

`masked(value)` is a copy in which each secret is replaced by "[masked]". Masked here is what is known exactly: the values of
environment variables whose name says that they are secret, and passwords in addresses. An add-on that recognises more
(port `masker` of steps/core/ports.py) does all of it in place of this.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

from steps.core import manifests

MASK = "[masked]"
Inside = tuple[int, frozenset[int], bool | None]  # depth, around and above of `Masker.copy`
DEEPEST = 60  # levels of nesting; what is deeper is left out
SHORTEST = 6  # characters; shorter values of environment variables are not looked for
NAME = re.compile(
    r"(?i:pass(?:word|wd|phrase)|(?<=_)pass|pwd|secret|token|credentials?|cookie|jwt|bearer|auth(?:orization|_?string)?"
    r"|(?:api|secret|private|access|signing|encryption|account|session)_?key(?:_?id)?)_?\d*\Z"
)
IN_ADDRESS = re.compile(r"(?P<lead>://[^\s/:\"'<>]{0,200}:)(?P<value>[^\s/\"'<>]{1,300})(?=@)")


def masked(value: Any) -> Any:
    """A copy without secrets of dicts, lists, tuples, texts, bytes and records. Any other value stays as it is, unless its
    text holds a secret: then it becomes the masked text."""
    return Masker()(value)


class Masker:
    """`masked` for many values in a row: it reads the environment only once. An add-on's extends it, and is what `Masker()`
    is where there is one."""

    def __new__(cls) -> Self:
        return super().__new__(finer() if cls is Masker else cls)

    def __init__(self) -> None:
        self.secrets = secrets_of(tuple(os.environ.items()), self.names_secret)

    def __call__(self, value: Any) -> Any:
        return self.copy(value, 0, frozenset(), None)

    @staticmethod
    def names_secret(name: str) -> bool:
        """Whether the value of an environment variable of this name is a secret."""
        return NAME.search(name) is not None

    def text(self, text: str) -> str:
        """A text without secrets."""
        return IN_ADDRESS.sub(rf"\g<lead>{MASK}", self.without_values(text))

    def without_values(self, text: str) -> str:
        """A text without the environment's secrets."""
        for secret in self.secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def copy(self, value: Any, depth: int, around: frozenset[int], above: bool | None) -> Any:
        """The copy of a value in the values `around`; `above` is an add-on's: the secrecy of what it stands in."""
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool | int | float | complex):
            return value
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value).decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if id(value) in around:
            return "[refers to itself]"
        if depth >= DEEPEST:
            return "[nested too deeply]"
        inside = depth + 1, around | {id(value)}, above
        fields = value if isinstance(value, Mapping) else _fields(value)
        if fields is not None:
            return self.fields(fields, inside)
        if isinstance(value, (list, tuple, set, frozenset)):
            copied = self.items(list(value), inside)
            return tuple(copied) if isinstance(value, tuple) else copied
        shown = str(value)
        safe = self.text(shown)
        return value if safe == shown and not isinstance(value, PurePath) else safe

    def fields(self, fields: Mapping[Any, Any], inside: Inside) -> dict[Any, Any]:
        return {
            self.text(key) if isinstance(key, str) else key: self.copy(each, *inside) for key, each in fields.items()
        }

    def items(self, items: list[Any], inside: Inside) -> list[Any]:
        return [self.copy(item, *inside) for item in items]


@functools.cache
def finer() -> type[Any]:
    """The class by which an add-on masks; `Masker` itself where none does."""
    return next(manifests.every("masker"), Masker)


@functools.lru_cache(maxsize=4)
def secrets_of(variables: tuple[tuple[str, str], ...], names_secret: Callable[[str], bool]) -> tuple[str, ...]:
    """The secrets that environment variables hold, each as it is and as it is written in JSON and in addresses; the longest
    first, because one may begin with another."""
    secrets = set[str]()
    for name, value in variables:
        small = name.lower()
        if "://" in value:
            with contextlib.suppress(ValueError):
                part = urlsplit(value).password or ""
                secrets |= {part, unquote(part)}
        elif names_secret(name) and not is_path(name, value):
            secrets |= {value, value.partition(":")[2] if small.endswith("auth_string") else ""}  # user:password
        if small.endswith(("webhook", "webhook_url", "notify_url")):  # whoever has the address may post there
            secrets.add(value)
    secrets = {secret for secret in secrets if len(secret) >= SHORTEST}
    in_json = {json.dumps(secret, ensure_ascii=way)[1:-1] for secret in secrets for way in (True, False)}
    return tuple(sorted(secrets | in_json | {quote(secret, safe="") for secret in secrets}, key=len, reverse=True))


def is_path(name: str, value: str) -> bool:
    """Whether a variable holds a path, as PWD and SSH_AUTH_SOCK do: a path is no secret, whatever the name."""
    return name in ("PWD", "OLDPWD") or (value.startswith("/") and os.path.lexists(value))


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or a pydantic model by name; None for anything else."""
    import dataclasses  # takes as long to import as all of the above

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = getattr(type(value), "model_dump", None)
    return dump(value) if dump is not None else None


class MaskingFilter(logging.Filter):
    """Masks log records, their tracebacks included, and drops none: `handler.addFilter(MaskingFilter())`."""

    def filter(self, record: logging.LogRecord) -> bool:
        mask = Masker()
        try:
            record.msg = mask.text(record.getMessage())
        except (TypeError, ValueError):  # the arguments do not fit the text, which logging itself reports
            return True
        record.args = None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = mask.text(record.exc_text)
        return True
