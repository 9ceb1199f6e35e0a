"""Files that hold a key: written whole, and readable by their owner alone."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from steps.core.errors import UserError


def key(path: Path, user: str = "flywheel:") -> str:
    """An API's key, which the first call makes. Prefect's is `user:password`. UserError where the file holds no key.

    A file without a password, as one that was written while the disk was full, gets a new key: an empty key opens the API.
    """
    text = path.read_bytes().decode(errors="replace").strip() if path.exists() else ""
    if user.startswith(text):
        text = f"{user}{secrets.token_urlsafe(24)}"
        write_private(path, f"{text}\n")
    if not re.fullmatch(r"[!-~]+", text):
        raise UserError(
            f"{path} holds no key, which is one line of ASCII characters without spaces: delete the file, and the next "
            "start makes a new key"
        )
    return text


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{os.getpid()}.{path.name}")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
