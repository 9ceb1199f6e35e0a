"""Small files, written whole; and what only its owner may read."""

from __future__ import annotations

import os
from _thread import get_native_id  # `threading` imports more than a stage's client needs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Folders of the project with Python files, in which no module of a person's own is looked for.
PROJECTS = (
    "steps environments addons flows viewer benchmarks tests mlflow prefect deploy docs run tasks_data start".split()
)


def write_json(path: Path, value: dict[str, Any], lasting: bool = True) -> None:
    """Write a value as one line of JSON, whole or not at all."""
    import json

    write_text(path, json.dumps(value) + "\n", lasting)


def json_lines(path: Path) -> list[str]:
    """The lines of a file of JSON lines. They end with \\n alone: a text may hold letters that end a line elsewhere, such as
    U+2028. A mark of the byte order at the front is left out. OSError, or UnicodeDecodeError where it is not UTF-8."""
    lines = path.read_bytes().decode("utf-8-sig").split("\n")
    return lines if lines[-1] else lines[:-1]


def write_text(path: Path, text: str, lasting: bool = True, private: bool = False) -> None:
    """Write a file in UTF-8, whole or not at all: a full disk or a crash leaves what was there before.

    `lasting` waits until the disk has the content. Without that a file system may put the new name in place first, and find
    only later that it has no room for the content. It is off for what is written often and worth nothing after a crash.
    `private`: only its owner can read it, from the first byte on.
    """
    # Two threads may write the same file.
    temporary = path.with_name(f".tmp-{os.getpid()}-{get_native_id()}.{path.name}")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "x", encoding="utf-8", opener=owners if private else None) as file:
            file.write(text)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def owners(path: str, flags: int) -> int:
    """An opener for `open`: a file that is made is its owner's alone."""
    return os.open(path, flags, 0o600)


def private_folder(folder: Path) -> Path:
    """Make a folder that only its owner can enter, or close one that is there. What is in it needs no mode of its own then,
    such as what DVC links or copies to there with its own modes."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def signatures(*folders: str | Path, suffix: str = "") -> Iterator[tuple[str, int, int, int]]:
    """(path, size, inode, time of change in ns) of each file in these folders whose name ends with `suffix`; compiled
    modules are left out. By these DVC, too, tells that a file is what it was."""
    waiting = [os.fspath(folder) for folder in folders if Path(folder).is_dir()]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting += [entry.path] * (entry.name != "__pycache__")
                elif entry.name.endswith(suffix):
                    status = entry.stat()
                    yield entry.path, status.st_size, status.st_ino, status.st_mtime_ns


def own_modules(root: Path) -> list[Path]:
    """A person's own modules and packages beside the project's, which a task may be or import: in the root's folders and
    files."""
    folders = [
        path for path in root.iterdir() if path.is_dir() and path.name not in PROJECTS and path.name.isidentifier()
    ]
    return sorted([path for path in folders if any(path.glob("*.py"))] + [*root.glob("*.py")])


def own_signatures(root: Path) -> Iterator[tuple[str, int, int, int]]:
    """`signatures` of a person's own modules."""
    for path in own_modules(root):
        if path.is_dir():
            yield from signatures(path, suffix=".py")
        else:
            status = path.stat()
            yield os.fspath(path), status.st_size, status.st_ino, status.st_mtime_ns


def flush(path: Path) -> None:
    """Wait until the disk has a file, or a folder with all that is in it, so that no crash empties what is then renamed."""
    for place in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if not place.is_symlink():
            number = os.open(place, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


def exchange(first: Path, second: Path) -> bool:
    """Give each of two existing paths of one file system the other's content, in one step: no reader and no kill ever sees
    one of them missing. False, with nothing changed, where the system cannot do it (renameat2(2) with RENAME_EXCHANGE:
    Linux with ext4, XFS, Btrfs, tmpfs and others, but not NFS)."""
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    at_folder, exchanging = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and not renameat2(
        at_folder, os.fsencode(first), at_folder, os.fsencode(second), exchanging
    )
