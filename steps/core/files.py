"""Small files, written whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a value as one line of JSON, whole or not at all."""
    import json

    write_text(path, json.dumps(value) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8, whole or not at all."""
    temporary = path.with_name(f".tmp-{os.getpid()}.{path.name}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
