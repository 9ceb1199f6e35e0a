"""Files that hold a key: written whole, and readable by their owner alone."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from steps.core.errors import UserError
from steps.core.files import write_text
from steps.kit.lock import alone


def key(path: Path, user: str = "flywheel:") -> str:
    """An API's key, which the first call makes. Prefect's is `user:password`. UserError where the file holds no key.

    A file without a password, as one that was written while the disk was full, gets a new key: an empty key opens the API.
    """
    text = _kept(path)
    if user.startswith(text):
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_name(f"{path.name}.lock")):  # two that start at once have the same key
            text = _kept(path)
            if user.startswith(text):
                text = f"{user}{secrets.token_urlsafe(24)}"
                write_private(path, f"{text}\n")
    if not re.fullmatch(r"[!-~]+", text):
        raise UserError(
            f"{path} holds no key, which is one line of ASCII characters without spaces: delete the file, and the next "
            "start makes a new key"
        )
    return text


def _kept(path: Path) -> str:
    return path.read_bytes().decode(errors="replace").strip() if path.exists() else ""


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text, private=True)
