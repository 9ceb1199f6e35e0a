"""An adapter's name: the hash of its content."""

from __future__ import annotations

import hashlib
from pathlib import Path


def adapter_hash(folder: Path) -> str:
    """The name of an adapter: a hash of its weights and configuration."""
    digest = hashlib.sha256()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]
