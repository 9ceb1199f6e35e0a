"""Writes dvc.lock as DVC does, byte for byte, but only the entry that changed, and whole or not at all.

DVC parses all of it twice and writes all of it for each stage, comments and all, in pure Python, straight over the old
file: longer with each iteration, and a file cut short where the process is killed just then. Here the content of the text
last written is kept, so that neither read parses it again. What DVC knows of a stage still comes from DVC alone; a result
that does not read back as what it wanted is left to DVC's own way.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_written: dict[str, dict[str, Any]] = {}  # the last text written here, and what it says


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Inside, DVC 3.67 in this process reads and writes lock files this way."""
    from dvc import dvcfile

    write, read = dvcfile.modify_yaml, dvcfile.Lockfile.load

    def load(self: Any) -> Any:
        path = Path(self.path)
        kept = _written.get(path.read_text(encoding="utf-8")) if path.exists() else None
        return read(self) if kept is None else copy.deepcopy(kept)

    dvcfile.modify_yaml, dvcfile.Lockfile.load = modify, load
    try:
        yield
    finally:
        dvcfile.modify_yaml, dvcfile.Lockfile.load = write, read


def mend(root: Path) -> None:
    """Remove .dvc/tmp/rwlock where it was cut short: DVC writes it in place, and refuses every command once it was killed
    in the midst of that. It says who is at work on what; under its own guard nobody is writing."""
    from dvc.lock import make_lock

    path = root / ".dvc" / "tmp" / "rwlock"
    if _is_whole(path):
        return
    with make_lock(f"{path}.lock", tmp_dir=str(path.parent)):
        if not _is_whole(path):
            path.unlink()


def _is_whole(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except FileNotFoundError:
        return True
    except ValueError:
        return False


@contextlib.contextmanager
def modify(path: Any, fs: Any = None) -> Iterator[dict[str, Any]]:
    """In place of `dvc.utils.serialize.modify_yaml`: yields the content, and writes what has become of it."""
    from dvc.utils.serialize import modify_yaml, parse_yaml

    file = Path(path)
    if file.name != "dvc.lock" or not file.exists():
        with modify_yaml(path, fs=fs) as data:
            yield data
        return
    text = file.read_text(encoding="utf-8")
    data = _written.pop(text, None) or parse_yaml(text, path)
    before = dict(data.get("stages") or {})
    stages_last = list(data)[-1:] == ["stages"]
    yield data
    changed = {name: entry for name, entry in data["stages"].items() if before.get(name) != entry}
    written = {name: dump({"stages": {name: entry}}).removeprefix("stages:\n") for name, entry in changed.items()}
    if stages_last and parse_yaml("".join(written.values()), path) == changed:
        for name, entry in written.items():
            text = splice(text, name, entry)
    else:
        text = dump(data)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
    _written.clear()
    _written[text] = data


def splice(text: str, name: str, entry: str) -> str:
    """The entry in place of the one of this name, or at the end."""
    old = re.compile(rf"^  {re.escape(name)}:\n(?:(?: {{3,}}|  -).*\n)*", re.MULTILINE)
    return old.sub(lambda _: entry, text, count=1) if old.search(text) else text + entry


def dump(data: dict[str, Any]) -> str:
    """As DVC writes YAML."""
    from dvc.utils.serialize import dumps_yaml

    return str(dumps_yaml(data))
