"""The hash by which an adapter is identified."""

from __future__ import annotations

import hashlib
from pathlib import Path

FILES = ("adapter_config.json", "adapter_model.safetensors")


def adapter_hash(folder: Path) -> str:
    """The first 16 hexadecimal digits of SHA-256 over its configuration and weights."""
    digest = hashlib.sha256()
    for name in FILES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]
