"""The files of an adapter: the hash by which it is identified, and the shapes of its tensors."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

from steps.core.errors import UserError

FILES = ("adapter_config.json", "adapter_model.safetensors")


def adapter_hash(folder: Path) -> str:
    """The first 16 hexadecimal digits of SHA-256 over its configuration and weights."""
    digest = hashlib.sha256()
    for name in FILES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def shapes(path: Path) -> dict[str, list[int]]:
    """The shape of each tensor in a safetensors file, from its header. UserError where it is none."""
    try:
        with path.open("rb") as file:
            [length] = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 100_000_000)))
        return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, struct.error, LookupError, TypeError, AttributeError):
        raise UserError(f"policy.start_from: {path.name} is no safetensors file: the adapter is damaged") from None
