"""What was forgotten, so that it does not come back: with another export, another producer, feedback, or an old version.

A tombstone is an HMAC-SHA-256 of a conversation's key, or of what was said in it, by a key that is kept beside; it names
nobody, and without the key nothing can be tried against it. What was said is told by the words of the user and the
assistant, without regard to case, spacing and punctuation, with the arguments of calls, and without system messages and
what tools answered, which producers keep differently. So the same conversation is known under any id:

- one that says no more than a forgotten one did, up to one of its answers, is forgotten;
- one that goes on where a forgotten one ended is forgotten, where the user had said more than `FEW` words: many
  conversations go on from "hi".
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from addons.production.traces.heldout import plain
from environments.base import Message
from steps.core.errors import UserError
from steps.core.files import private_folder, write_text

FOLDER = Path(".flywheel/forgotten")  # of a project; the store of captured conversations has its own in it
FEW = 3  # words


class Forgotten(ValueError):
    """What cannot be stored, because it was forgotten."""


class Damaged(UserError, ValueError):
    """Tombstones that cannot be read: nothing is taken in until they can."""


class Hashes(NamedTuple):
    """What was said up to each answer, as hashes; whether the last answer is the end; and the user's words."""

    answers: list[str]
    is_whole: bool
    words: int


class Tombstones:
    """The tombstones in a folder, read again where they have changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "tombstones"
        self.key, self.marks, self.read = b"", frozenset[str](), (0, 0)

    def add(self, keys: Iterable[str], conversations: Iterable[Sequence[Message]]) -> None:
        """Add those of these conversations; they are on the disk when this returns. Two at once are kept apart by the
        caller."""
        private_folder(self.folder)
        self._refresh()
        if not self.key:
            write_text(self.folder / "key", f"{secrets.token_hex(32)}\n", private=True)
            self.key = (self.folder / "key").read_bytes().strip()
        marks = {self._mark("key", key) for key in keys} | {self._mark("", "")}  # the last one shows that the key fits
        for messages in conversations:
            for kind, hashes in _hashes(messages):
                *ways, end = hashes.answers or [""]
                marks |= {self._mark(f"{kind} way", way) for way in ways if way}
                marks |= {self._mark(f"{kind} {'end' if hashes.words > FEW else 'way'}", end)} if end else set()
        write_text(self.path, "".join(f"{mark}\n" for mark in sorted(self.marks | marks)), private=True)
        self._refresh()

    def holds(self, key: str, messages: Sequence[Message] = ()) -> bool:
        """Whether a conversation, or a part of it, is forgotten, by its key or by what was said."""
        self._refresh()
        if not self.marks:
            return False
        if self._mark("key", key) in self.marks:
            return True
        for kind, hashes in _hashes(messages):
            if any(self._mark(f"{kind} end", answer) in self.marks for answer in hashes.answers):
                return True
            if hashes.is_whole and self._mark(f"{kind} way", hashes.answers[-1]) in self.marks:
                return True
        return False

    def _mark(self, kind: str, text: str) -> str:
        return hmac.new(self.key, f"{kind}\n{text}".encode("utf-8", "replace"), "sha256").hexdigest()[:32]

    def _refresh(self) -> None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self.marks, self.read = frozenset(), (0, 0)
            key = self.folder / "key"
            self.key = key.read_bytes().strip() if key.is_file() else b""
            return
        if self.read == (now := (status.st_ino, status.st_mtime_ns)):
            return
        try:
            self.key = (self.folder / "key").read_bytes().strip()
            marks = frozenset(self.path.read_text(encoding="ascii").split())
        except (OSError, ValueError):
            marks = frozenset()
        if self._mark("", "") not in marks:
            raise Damaged(
                f"{self.folder} holds what was forgotten, and its files `key` and `tombstones` do not belong together: "
                "bring both back from a backup, or delete both and forget everybody again"
            )
        self.marks, self.read = marks, now


def of(root: Path) -> Tombstones:
    """Those of a project's folder."""
    return Tombstones(root / FOLDER)


def _hashes(messages: Sequence[Message]) -> Iterator[tuple[str, Hashes]]:
    """What was said, told twice: by the words alone, of which a trace without its calls has the same, and with the calls."""
    texts = [(message, plain(text) or text.strip()) for message in messages if (text := _text(message)) is not None]
    words = " ".join(text for message, text in texts if message["role"] == "user")
    count = len(words.split()) + sum(sign > "\u2e80" for sign in words) // 2  # where no spaces part words
    for kind in ("words", "calls"):
        before, answered, answers = "", "", list[str]()
        for message, text in texts:
            role, calls = message["role"], message.get("tool_calls") if kind == "calls" else None
            if role == "user":
                before, answered = _hash([answered or before, role, text]), ""
            elif role == "assistant" and (text or calls):
                if kind == "calls":  # by the words alone, only the last answer before the user goes on counts
                    before = answered or before
                answered = _hash([before, role, text, [_call(call) for call in calls or ()]])
                answers.append(answered)
        yield kind, Hashes(answers, bool(answered), count)


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _call(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    return [function.get("name"), function.get("arguments")] if isinstance(function, dict) else call


def _text(message: Message) -> str | None:
    """The text of a message of the user or the assistant; None of another."""
    if message["role"] not in ("user", "assistant"):
        return None
    content = message.get("content") or ""
    return content if isinstance(content, str) else json.dumps(content, sort_keys=True)
