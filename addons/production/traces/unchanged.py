"""Whether an ingestion would find what the last one found: then there is nothing to read, to mask or to build.

All that it depends on is looked at by name, size and time of change: the sources, params.yaml, the tasks' data, the
project's code, and what was ingested so far. What an API holds cannot be looked at, so such a source is always asked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from steps.core.files import write_text

KEPT = Path(".flywheel/ingested.json")
CODE = ("addons", "steps/data", "steps/core", "environments", "ingested", "tasks_data")
HERE = Path(__file__).parent.parent.parent.parent


def state(root: Path, words: Sequence[str], options: str) -> str:
    """A hash of all of it, for sources as the command line names them; empty where one is an API."""
    places = [root / "params.yaml", root / ".flywheel/forgotten"]
    places += [base / folder for base in {root, HERE} for folder in CODE]
    for word in words:
        kind, _, place = word.partition(":")
        path = root / (place or (".flywheel/capture" if kind == "capture" else ""))
        if path == root or not path.exists():
            return ""
        places.append(path)
    digest = hashlib.sha256(json.dumps([list(words), options]).encode())
    for path in sorted(places):
        for line in _files(path):
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(path: Path) -> Iterator[str]:
    if path.is_file():
        status = path.stat()
        yield f"{path} {status.st_size} {status.st_mtime_ns}\n"
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            status = Path(folder, name).lstat()
            if name not in ("counts.json", "lock"):  # of the capture: they tell of what is not stored
                yield f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n"


def last_report(root: Path, current: str) -> list[str]:
    """What the last ingestion said of the same state; empty where there was none."""
    try:
        kept = json.loads((root / KEPT).read_text(encoding="utf-8"))
        return list(map(str, kept["said"])) if current and kept["state"] == current else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def keep(root: Path, current: str, lines: list[str]) -> None:
    """Keep what was said of this state."""
    (root / KEPT).parent.mkdir(exist_ok=True)
    text = json.dumps({"state": current, "said": lines}) + "\n"
    write_text(root / KEPT, text, private=True)
