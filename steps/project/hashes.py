"""MD5 hashes of files and folders, as DVC computes them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def file_md5(path: Path) -> str:
    """The md5 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def folder_md5(folder: Path) -> str:
    """DVC's md5 of a folder: that of a JSON list of its files' md5s and relative paths."""
    files = sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_file())
    listed = json.dumps([{"md5": file_md5(path), "relpath": name} for name, path in files], sort_keys=True)
    return hashlib.md5(listed.encode(), usedforsecurity=False).hexdigest() + ".dir"
