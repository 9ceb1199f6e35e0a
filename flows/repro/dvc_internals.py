"""The parts of DVC 3.67.1 that are replaced while a flow runs a stage. No other module touches DVC's internals.

DVC parses and writes all of dvc.lock for every stage, comments included, in pure Python, which takes longer with each
iteration. It also writes its files in place: a process stopped while writing leaves a file that DVC then refuses to read.
Here only the changed entry of dvc.lock is serialised, byte for byte as DVC does it, and every file appears whole or not at
all. What DVC decides stays the same. Each part names the behaviour of DVC that makes it necessary, and goes when a release
of DVC changes that. pyproject.toml allows no other minor release, because these names are not part of DVC's API.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import json
import os
import re
import shlex
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dvc import dvcfile, rwlock
from dvc.exceptions import DvcException
from dvc.lock import make_lock
from dvc.repo import Repo, lock_repo
from dvc.scm import Git
from dvc.stage import PipelineStage, cache, run
from dvc.stage.exceptions import StageCmdFailedError
from dvc.utils import strictyaml
from dvc.utils.serialize import _yaml, dumps_yaml, modify_yaml, parse_yaml
from fsspec.implementations.memory import MemoryFileSystem

from flows.repro.process import run_process
from steps.core.files import write_text
from steps.project.lock import shared
from steps.runner import death
from steps.runner.stage import find, is_warm, parse, run_shown


@contextlib.contextmanager
def replaced(lock_file: LockFile, texts: Texts, run_command: Callable[..., None]) -> Iterator[None]:
    """Inside, DVC in this process uses the parts of this module; afterwards it is as it was. `run_command` takes the place
    of what runs a stage's command."""
    parts: list[tuple[Any, str, Callable[[Any], Any]]] = [  # owner, name, what makes the replacement of the original
        (dvcfile, "modify_yaml", lambda _: lock_file.modify),
        (dvcfile.Lockfile, "load", lock_file.loader),
        (_yaml, "parse_yaml", texts.parser),
        (strictyaml, "parse_yaml", texts.parser),
        (strictyaml, "validate", texts.validator),
        (Git, "is_tracked", texts.tracker),
        (rwlock, "_edit_rwlock", lambda _: edit_rwlock),
        (cache, "_can_hash", lambda _: can_hash),
        (cache.StageCache, "_load", loading_whole_runs),
        (cache.StageCache, "save", saving_whole_runs),
        (run, "_run", lambda _: run_command),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in parts:
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, inspect.getattr_static(owner, name))
            setattr(owner, name, replacement(original))
        yield


# --- dvc.lock. Upstream: for each stage DVC parses it twice and writes all of it (treeverse/dvc#10629; the attempt in #10630
# was closed as stale), and writes it in place (no issue is known).


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


# --- Many stages at once. Upstream: `reproduce` has DVC look at all of dvc.yaml and dvc.lock for each stage, and no call
# tells only which stages it would run (no issue is known).


def up_to_date(repo: Repo) -> dict[str, bool]:
    """Stage -> whether DVC would not run it, by what it asks each before it runs it; nothing where it cannot tell."""
    with lock_repo(repo), contextlib.suppress(DvcException):  # which the stage itself ends with, when its turn comes
        return {stage.name: not stage.changed() for stage in repo.index.stages if isinstance(stage, PipelineStage)}
    return {}


# --- .dvc/tmp/rwlock. Upstream: DVC writes it in place, and refuses one that was cut short (treeverse/dvc#7615 after Ctrl-C,
# treeverse/dvc#6097: "rwlock update is not atomic"; both are closed, and 3.67.1 still does it).


@contextlib.contextmanager
def edit_rwlock(lock_dir: str, fs: Any, hardlink: bool) -> Iterator[dict[str, Any]]:
    """In place of `dvc.rwlock._edit_rwlock`: yields which process reads and writes which path, then writes it whole.

    A file that was cut short counts as empty: nobody else can be writing it, because a lock guards it.
    """
    path = Path(lock_dir, "rwlock")
    with make_lock(f"{path}.lock", tmp_dir=lock_dir, hardlink_lock=hardlink):
        try:
            lock = rwlock.SCHEMA(json.loads(path.read_bytes()))
        except (FileNotFoundError, ValueError):
            lock = rwlock.SCHEMA({})
        lock["read"], lock["write"] = defaultdict(list, lock["read"]), defaultdict(dict, lock["write"])
        yield lock
        write_text(path, json.dumps(lock), lasting=False)  # an empty one is read as one without locks


# --- The run cache. Upstream: DVC writes an entry under a temporary name into the folder of finished entries, and then takes
# the newest file there for one, so that a half-written entry ends in `KeyError: 'outs'` and an empty folder in a TypeError
# of `join()`, at every later run of that stage. No issue is known.


def can_hash(stage: Any) -> bool:
    """In place of `dvc.stage.cache._can_hash`, which is asked five times a stage, and hashes all that the stage reads again
    only to see that it has a hash."""
    if stage.is_callback or stage.always_changed or not (stage.cmd and stage.deps and stage.outs):
        return False
    deps = all(dep.protocol == "local" and dep.def_path and (dep.hash_info or dep.get_hash()) for dep in stage.deps)
    return deps and all(
        out.protocol == "local" and out.def_path and not out.persist and out.is_in_repo for out in stage.outs
    )


def loading_whole_runs(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """In place of `StageCache._load`: first removes what an interrupted DVC left in the stage's folder."""

    def load(stage_cache: Any, stage: Any) -> Any:
        folder = Path(stage_cache._get_cache_dir(cache._get_stage_hash(stage)))
        for partial in folder.glob(".*"):  # finished entries are named by their hashes
            partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder does not exist, or is not empty
            folder.rmdir()
        return original(stage_cache, stage)

    return load


def saving_whole_runs(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """In place of `StageCache.save`: DVC writes the entry into a folder of its own, which is then moved into place."""

    def save(stage_cache: Any, stage: Any) -> None:
        final = stage_cache.cache_dir
        stage_cache.cache_dir = f"{final}.tmp-{os.getpid()}"
        try:
            original(stage_cache, stage)
            for entry in Path(stage_cache.cache_dir).glob("*/*/*"):
                place(entry.parent, Path(final, *entry.parts[-3:-1]))
        finally:
            shutil.rmtree(stage_cache.cache_dir, ignore_errors=True)
            stage_cache.cache_dir = final

    return save


def place(source: Path, target: Path) -> None:
    """Move a folder of the run cache, with the single entry in it, into place, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError:  # the target has entries already
        for entry in source.iterdir():
            entry.replace(target / entry.name)


# --- Listings of folders. Upstream: DVC writes the listing of each folder that it hashes to a file in memory, under a new
# name, and nothing removes it (no issue is known): 1 MB an iteration.


def forget_listings() -> None:
    """Remove what DVC keeps in memory; call it while DVC is at no stage."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


# --- A stage's command. Upstream: DVC starts every command with a shell, and offers no way to run one in its own process
# (no issue is known). A shell and another Python cost 0.03 s per stage. It also does not keep what a command printed.


class CommandFailed(StageCmdFailedError):
    """A stage's command ended with an error; `text` is the error as it was printed, without the word `error:`."""

    def __init__(self, line: str, code: int, text: str) -> None:
        super().__init__(line, code)
        self.code, self.text = code, text


def run_stage_command(executable: str, line: str, more: Mapping[str, str] | None = None, **options: Any) -> None:
    """In place of `dvc.stage.run._run`: this process hands a stage over to the warm worker, as the stage's command would.

    What DVC records stays the same. All other commands run as processes of their own. `more`: variables of the worker beside
    the usual one that is to run it.
    """
    words = shlex.split(line)
    module = words[2] if words[:2] == ["steps/python", "-m"] else ""
    name, kills = module.rpartition(".")[2], death.oom_kills()
    if module.startswith("steps.") and is_warm():
        code, text = run_shown(module, name, parse(find(module, name), module, words[3:]), True, more)
    else:
        code, text = run_process(run._make_cmd(executable, line), **options)
        text = text or death.cause(code, kills, name)
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if code:
        raise CommandFailed(line, code, text)
