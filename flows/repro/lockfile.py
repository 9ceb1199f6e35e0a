"""Writes dvc.lock as DVC does, byte for byte, but only the entry that changed; and whole or not at all.

DVC parses all of dvc.lock twice and writes all of it for each stage, comments and all, in pure Python: longer with each
iteration. Here the content of the text last written is kept, so that neither read parses it again. What DVC knows of a
stage still comes from DVC alone; a result that does not read back as what it wanted is left to DVC's own way.

DVC writes its files in place, bit by bit. Stopped in the midst of that, it leaves a dvc.lock or an rwlock that it refuses,
or a folder of its run cache with half an entry or none, at which every later run of that stage fails (`KeyError: 'outs'`).
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steps.core.files import write_text

_written: dict[str, dict[str, Any]] = {}  # the last text written here, and what it says


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Inside, DVC 3.67 in this process reads and writes its locks and its run cache this way."""
    from dvc import dvcfile, rwlock
    from dvc.stage.cache import StageCache

    write, read, edit = dvcfile.modify_yaml, dvcfile.Lockfile.load, rwlock._edit_rwlock
    find, save = StageCache._load, StageCache.save

    def load(self: Any) -> Any:
        path = Path(self.path)
        kept = _written.get(path.read_text(encoding="utf-8")) if path.exists() else None
        return read(self) if kept is None else copy.deepcopy(kept)

    def find_run(self: Any, stage: Any) -> Any:
        mend_runs(self, stage)
        return find(self, stage)

    def save_run(self: Any, stage: Any) -> None:
        final = self.cache_dir
        self.cache_dir = f"{final}.tmp-{os.getpid()}"
        try:
            save(self, stage)
            for entry in Path(self.cache_dir).glob("*/*/*"):
                place(entry.parent, Path(final, *entry.parts[-3:-1]))
        finally:
            shutil.rmtree(self.cache_dir, ignore_errors=True)
            self.cache_dir = final

    dvcfile.modify_yaml, dvcfile.Lockfile.load, rwlock._edit_rwlock = modify, load, edit_rwlock
    StageCache._load, StageCache.save = find_run, save_run
    try:
        yield
    finally:
        dvcfile.modify_yaml, dvcfile.Lockfile.load, rwlock._edit_rwlock = write, read, edit
        StageCache._load, StageCache.save = find, save


def place(made: Path, folder: Path) -> None:
    """Move a folder of the run cache, with the one entry in it, to where it belongs, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.rename(folder)
    except OSError:  # there are entries already
        for entry in made.iterdir():
            entry.replace(folder / entry.name)


def mend_runs(cache: Any, stage: Any) -> None:
    """Remove what DVC by itself leaves in its run cache of a stage when it is stopped in the midst of writing an entry."""
    from dvc.stage.cache import _get_stage_hash

    folder = Path(cache._get_cache_dir(_get_stage_hash(stage)))
    for left in folder.glob(".*"):  # whole ones are named by their hashes
        left.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it is not there, or not empty
        folder.rmdir()


@contextlib.contextmanager
def edit_rwlock(lock_dir: str, fs: Any, hardlink: bool) -> Iterator[dict[str, Any]]:
    """In place of `dvc.rwlock._edit_rwlock`: yields who is at work on what, and writes what has become of it. Cut short, as
    DVC by itself leaves it when it is killed in the midst of this, it says nothing; under its guard nobody is writing."""
    from dvc.lock import make_lock
    from dvc.rwlock import SCHEMA

    path = Path(lock_dir, "rwlock")
    with make_lock(f"{path}.lock", tmp_dir=lock_dir, hardlink_lock=hardlink):
        try:
            lock = SCHEMA(json.loads(path.read_bytes()))
        except (FileNotFoundError, ValueError):
            lock = SCHEMA({})
        lock["read"], lock["write"] = defaultdict(list, lock["read"]), defaultdict(dict, lock["write"])
        yield lock
        write_text(path, json.dumps(lock))


@contextlib.contextmanager
def modify(path: Any, fs: Any = None) -> Iterator[dict[str, Any]]:
    """In place of `dvc.utils.serialize.modify_yaml`: yields the content, and writes what has become of it."""
    from dvc.utils.serialize import modify_yaml, parse_yaml

    file = Path(path)
    if file.name != "dvc.lock":
        with modify_yaml(path, fs=fs) as data:
            yield data
        return
    text = file.read_text(encoding="utf-8") if file.exists() else ""
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
    write_text(file, text)
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
