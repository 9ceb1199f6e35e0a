"""The parts of DVC 3.67.1 that are replaced while a flow runs a stage. Beside add-ons that make it quicker (port `dvc`) no
other module touches DVC's internals.

DVC writes its files in place: a process stopped while writing leaves a file that DVC then refuses to read. Here every file
appears whole or not at all. What DVC decides stays the same. Each part names the behaviour of DVC that makes it necessary,
and goes when a release of DVC changes that. pyproject.toml allows no other minor release, because these names are not part
of DVC's API.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shlex
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc import dvcfile, rwlock
from dvc.exceptions import DvcException
from dvc.lock import make_lock
from dvc.repo import Repo, lock_repo
from dvc.stage import PipelineStage, cache, run
from dvc.stage.exceptions import StageCmdFailedError
from dvc.utils.serialize import dumps_yaml, parse_yaml
from fsspec.implementations.memory import MemoryFileSystem

from flows.repro.process import run_process
from steps.core.files import write_text
from steps.core.ports import every
from steps.runner import death
from steps.runner.stage import find, is_warm, parse, run_shown

Part = tuple[Any, str, Callable[[Any], Any]]  # owner, name, what makes the replacement of the original


def parts(run_command: Callable[..., None]) -> list[Part]:
    """What is replaced, and what add-ons bring that makes DVC quicker. `run_command` takes the place of what runs a stage's
    command."""
    return [
        (dvcfile, "modify_yaml", modifying_whole),
        (rwlock, "_edit_rwlock", lambda _: edit_rwlock),
        (cache.StageCache, "_load", loading_whole_runs),
        (cache.StageCache, "save", saving_whole_runs),
        (run, "_run", lambda _: run_command),
        *(part for made in every("dvc") for part in made()),
    ]


@contextlib.contextmanager
def replaced(some: Sequence[Part]) -> Iterator[None]:
    """Inside, DVC in this process uses these parts; afterwards it is as it was."""
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in some:
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, inspect.getattr_static(owner, name))
            setattr(owner, name, replacement(original))
        yield


# --- dvc.lock. Upstream: DVC writes it in place (no issue is known).


def modifying_whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """In place of `dvc.utils.serialize.modify_yaml`: yields the content to change, then writes it, whole where it is
    dvc.lock's."""

    @contextlib.contextmanager
    def modify(path: Any, fs: Any = None) -> Iterator[dict[str, Any]]:
        file = Path(path)
        if file.name != "dvc.lock":
            with original(path, fs=fs) as data:
                yield data
            return
        data = parse_yaml(file.read_text(encoding="utf-8"), path) if file.exists() else {}
        yield data
        write_text(file, dumps_yaml(data))

    return modify


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
