"""What DVC 3.67.1 does again and again for each stage, done once. What it decides stays the same, and so do its bytes.

Each part names the behaviour of DVC that makes it worth while, and goes when a release of DVC changes that. These names are
not part of DVC's API: see flows/repro/dvc_internals.py, which has what a run cannot do without.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dvc import dvcfile
from dvc.scm import Git
from dvc.stage import cache
from dvc.utils import strictyaml
from dvc.utils.serialize import _yaml, dumps_yaml, modify_yaml, parse_yaml

from flows.repro.dvc_internals import Part
from steps.core.files import write_text
from steps.project.lock import shared


def parts() -> list[Part]:
    """What is replaced in DVC while a flow runs its stages, with what was read of its files so far."""
    lock_file, texts = LockFile(), Texts()
    return [
        (dvcfile, "modify_yaml", lambda _: lock_file.modify),
        (dvcfile.Lockfile, "load", lock_file.loader),
        (_yaml, "parse_yaml", texts.parser),
        (strictyaml, "parse_yaml", texts.parser),
        (strictyaml, "validate", texts.validator),
        (Git, "is_tracked", texts.tracker),
        (cache, "_can_hash", lambda _: can_hash),
    ]


# --- dvc.lock. Upstream: for each stage DVC parses it twice and writes all of it, comments included, in pure Python, which
# takes longer with each iteration (treeverse/dvc#10629; the attempt in #10630 was closed as stale). Here only the changed
# entry is serialised, byte for byte as DVC does it.


class LockFile:
    """dvc.lock as it was last read or written here: neither DVC's reads nor the next write parse the same text again."""

    def __init__(self) -> None:
        self.last: dict[bytes, dict[str, Any]] = {}  # at most one: the hash of a text, and its content
        self.seen: dict[str, Any] = {}  # what its entries share

    def loader(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """In place of `dvc.dvcfile.Lockfile.load`."""

        def load(lock: Any) -> Any:
            path = Path(lock.path)
            if not path.exists():
                return original(lock)
            key = text_hash(path.read_text(encoding="utf-8"))
            if key not in self.last:
                self.last = {key: original(lock)}  # which checks its schema
            content = self.last[key]
            return content | {"stages": Entries(content.get("stages") or {})}

        return load

    @contextlib.contextmanager
    def modify(self, path: Any, fs: Any = None) -> Iterator[dict[str, Any]]:
        """In place of `dvc.utils.serialize.modify_yaml`: yields the content to change, then writes it.

        An entry whose text does not read back as the same data is left to DVC's own writer, and so are other files.
        """
        file = Path(path)
        if file.name != "dvc.lock":
            with modify_yaml(path, fs=fs) as data:
                yield data
            return
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        data = self.last.pop(text_hash(text), None) or parse_yaml(text, path)
        before = dict(data.get("stages") or {})
        stages_last = list(data)[-1:] == ["stages"]
        yield data
        changed = {name: entry for name, entry in data["stages"].items() if before.get(name) != entry}
        entries = {name: dumps_yaml({"stages": {name: new}}).removeprefix("stages:\n") for name, new in changed.items()}
        if stages_last and parse_yaml("".join(entries.values()), path) == changed:
            for name, entry in entries.items():
                text = splice(text, name, entry)
        else:
            text = dumps_yaml(data)
        write_text(file, text)
        data["stages"] |= {name: shared(data["stages"][name], self.seen) for name in changed}
        self.last = {text_hash(text): data}


def text_hash(text: str) -> bytes:
    """What tells a text of dvc.lock from another: the text itself grows with the run."""
    return hashlib.sha256(text.encode()).digest()


class Entries(dict[str, Any]):
    """The stages of dvc.lock as DVC reads them: it asks for one, and gets a copy. To copy all of them for each stage took
    longer, and more memory, with every iteration."""

    def get(self, name: str, default: Any = None) -> Any:
        return copy.deepcopy(super().get(name, default))


def splice(text: str, name: str, entry: str) -> str:
    """dvc.lock's text with this entry in place of the stage's former one, or at the end where it had none."""
    old = re.compile(rf"^  {re.escape(name)}:\n(?:(?: {{3,}}|  -).*\n)*", re.MULTILINE)
    return old.sub(lambda _: entry, text, count=1) if old.search(text) else text + entry


# --- Files that stay what they are while stages run. Upstream: for each stage DVC parses and checks dvc.yaml, parses
# params.yaml and chain.yaml several times, reads git's index once for every output, and hashes what the stage reads five
# times (`can_hash`; no issue is known). That was two fifths of what a flow's process computes for an iteration.


class Texts:
    """What was last read of dvc.yaml, chain.yaml, params.yaml and git's index, for as long as these are the same."""

    NAMES = ("dvc.yaml", "chain.yaml", "params.yaml")

    def __init__(self) -> None:
        self.parsed: dict[str, tuple[str, Any]] = {}  # path -> text and content
        self.valid: dict[str | None, str] = {}  # path -> text that has passed its schema
        self.index: tuple[tuple[int, int, int], frozenset[bytes]] = (0, 0, 0), frozenset()

    def parser(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In place of `parse_yaml`."""

        def parse(text: str, path: str, typ: str = "safe") -> Any:
            if typ != "safe" or Path(path).name not in self.NAMES:
                return original(text, path, typ)
            if self.parsed.get(path, ("",))[0] != text:
                self.parsed[path] = text, original(text, path)
            return copy.deepcopy(self.parsed[path][1])

        return parse

    def validator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In place of `strictyaml.validate`, whose result is used only where it gets no text."""

        def validate(data: Any, schema: Any, text: str | None = None, path: str | None = None, **more: Any) -> Any:
            if text is None or self.valid.get(path) != text:
                data = original(data, schema, text=text, path=path, **more)
                self.valid |= {path: text} if text is not None else {}
            return data

        return validate

    def tracker(self, original: Callable[..., bool]) -> Callable[..., bool]:
        """In place of `Git.is_tracked`."""

        def is_tracked(git: Git, path: str) -> bool:
            repo = git.dulwich.repo
            if not Path(repo.index_path()).exists():
                return original(git, path)
            status = Path(repo.index_path()).stat()
            if (stamp := (status.st_mtime_ns, status.st_ino, status.st_size)) != self.index[0]:
                files = [file.split(b"/") for file in repo.open_index()]
                places = frozenset(b"/".join(file[:end]) for file in files for end in range(1, len(file) + 1))
                self.index = stamp, places
            return os.fsencode(Path(os.path.relpath(path, git.root_dir)).as_posix()) in self.index[1]

        return is_tracked


def can_hash(stage: Any) -> bool:
    """In place of `dvc.stage.cache._can_hash`, which is asked five times a stage, and hashes all that the stage reads again
    only to see that it has a hash."""
    if stage.is_callback or stage.always_changed or not (stage.cmd and stage.deps and stage.outs):
        return False
    deps = all(dep.protocol == "local" and dep.def_path and (dep.hash_info or dep.get_hash()) for dep in stage.deps)
    return deps and all(
        out.protocol == "local" and out.def_path and not out.persist and out.is_in_repo for out in stage.outs
    )
