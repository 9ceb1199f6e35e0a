"""The runs that `viewer.app` can show: a folder's own, those at work or stopped in worktrees, those kept under refs/runs/.

A kept run is laid out in .flywheel/view/<name>/ when a person chooses it: a link to each of its files in DVC's cache, as its
dvc.lock names them, with its params.yaml and chain.yaml. Nothing else is written. Not here: timings, which are not kept.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from steps.core.errors import UserError
from viewer.index import Index

HERE = "."  # the name of the folder's own run; no other's begins with a dot
WORKTREES = Path(".flywheel/worktrees")  # flows/deployment/workspace.py's, without the 0.3 s that its imports take
LAID_OUT = Path(".flywheel/view")
CACHE = Path(".dvc/cache/files/md5")  # where flows/deployment/workspace.py has every run's
OPEN = 4  # indexes in memory


class Known(NamedTuple):
    """A run that can be chosen."""

    name: str
    about: str  # what the choice shows
    folder: Path  # its run/
    commit: str = ""  # of a kept one


@dataclass(frozen=True)
class Opened:
    """A run that was chosen."""

    known: Known
    index: Index
    problem: str  # what DVC's cache lacks of it


class Runs:
    """Every run of the project that a folder belongs to. Safe to call from several threads."""

    def __init__(self, run: Path) -> None:
        self.run, self.root = run, project(run)
        self.indexes: dict[Path, Index] = {}
        self.lock = threading.Lock()

    def all(self) -> dict[str, Known]:
        """By name, the latest of the kept ones first. A run that works again is the one in its worktree."""
        found = {HERE: Known(HERE, f"{self.run} (this folder)", self.run)}
        for path in sorted((self.root / WORKTREES).glob("*/")):
            found[path.name] = Known(path.name, f"{path.name} (at work or stopped)", path / "run")
        shape = "--format=%(refname:lstrip=2) %(objectname) %(committerdate:short)"
        listed = git(self.root, "for-each-ref", shape, "--sort=-committerdate", "refs/runs")
        for name, commit, day in map(str.split, listed.splitlines()):
            if "/" not in name and name not in found:  # git allows neither .. nor a dot in front
                folder = self.root / LAID_OUT / name / "run"
                found[name] = Known(name, f"{name} (kept, {day})", folder, commit)
        return found

    def named(self, name: str) -> Known:
        """The folder's own where there is none of this name."""
        runs = self.all()
        return runs.get(name, runs[HERE])

    def open(self, name: str) -> Opened:
        """UserError where there is no run of this name."""
        runs = self.all()
        if name not in runs:
            raise UserError(f"there is no run {name[:80]}: one of {', '.join(list(runs)[:8])}")
        known = runs[name]
        missing = lay_out(self.root, known) if known.commit else []
        with self.lock:
            index = self.indexes.pop(known.folder, None) or Index(known.folder)
            self.indexes[known.folder] = index  # as the latest
            while len(self.indexes) > OPEN:
                del self.indexes[next(iter(self.indexes))]
        index.refresh()
        return Opened(known, index, lacks(name, missing))


def project(run: Path) -> Path:
    """The checkout that the folder lies in; of a worktree, the one that it was made from."""
    root = run.parent
    if (root / ".git").is_file():
        common = Path(git(root, "rev-parse", "--path-format=absolute", "--git-common-dir").strip())
        return common.parent if common.name == ".git" else root
    return root


def git(root: Path, *words: str) -> str:
    """What git answers; nothing where there is no repository, or no such thing in it."""
    if not (root / ".git").exists():
        return ""
    with suppress(OSError):  # without git there are no kept runs
        done = subprocess.run(["git", "-C", os.fspath(root), *words], capture_output=True)
        return "" if done.returncode else done.stdout.decode(errors="replace")
    return ""


def lay_out(root: Path, known: Known) -> list[str]:
    """Link what DVC's cache has of a kept run; the paths that it lacks. Called again, it mends what has changed."""
    folder = known.folder.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of threads, and of `make ui` beside `make view`
        describe(root, known.commit, folder)
        for path, kept in files(root, known.commit):
            link = folder / path
            if kept is None or not kept.is_file():
                missing.append(path)
                if link.is_dir():
                    shutil.rmtree(link)
                link.unlink(missing_ok=True)
            elif not link.exists():  # or it led into a cache that has moved
                link.unlink(missing_ok=True)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(kept)
    return missing


def describe(root: Path, commit: str, folder: Path) -> None:
    """The run's params.yaml, its chain.yaml, and the tokenizer of a base model in git. A new commit starts anew."""
    said = folder / "commit"
    if said.is_file() and said.read_text() == commit:
        return
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    for name in ("params.yaml", "chain.yaml"):
        (folder / name).write_text(git(root, "show", f"{commit}:{name}"))
    policy = (parsed(root, commit, "params.yaml") or {}).get("policy") or {}
    tokenizer = f"{policy.get('base_model')}/tokenizer.json"
    if inside(tokenizer) and (text := git(root, "show", f"{commit}:{tokenizer}")):
        (folder / tokenizer).parent.mkdir(parents=True, exist_ok=True)
        (folder / tokenizer).write_text(text)
    said.write_text(commit)


def files(root: Path, commit: str) -> Iterator[tuple[str, Path | None]]:
    """Every file of the run's outputs, and where the cache would have it; None for a folder whose list the cache lacks."""
    cache = root.resolve() / CACHE
    for path, md5 in outputs(root, commit):
        if not md5.endswith(".dir"):
            yield path, place(cache, md5)
            continue
        try:
            listed = json.loads(place(cache, md5).read_bytes())
        except FileNotFoundError:
            yield path, None
            continue
        for one in listed:
            file = f"{path}/{one['relpath']}"
            if not inside(file):
                raise UserError(f"{path} in dvc.lock of {commit[:8]} lists {file}, which is none of its files")
            yield file, place(cache, one["md5"])


def place(cache: Path, md5: str) -> Path:
    if not re.fullmatch(r"[0-9a-f]{32}(\.dir)?", md5):
        raise UserError(f"dvc.lock, or a folder's list in {cache}, has {md5[:40]!r} where an MD5 should stand")
    return cache / md5[:2] / md5[2:]


@lru_cache(maxsize=16)
def outputs(root: Path, commit: str) -> tuple[tuple[str, str], ...]:
    """Path and MD5 of the outputs in run/. What dvc.lock still says of iterations that the chain lacks is of another run."""
    lock, chain, project = (parsed(root, commit, name) for name in ("dvc.lock", "chain.yaml", "dvc.yaml"))
    found = []
    for name, entry in (lock.get("stages") or {}).items():
        stage, _, key = name.partition("@")
        each = ((project.get("stages") or {}).get(stage) or {}).get("foreach")  # "${iterations}"
        if each is None or key in map(str, chain.get(each.strip("${}")) or ()):
            outs = [(str(out["path"]), str(out.get("md5"))) for out in entry.get("outs", ())]
            found += [out for out in outs if inside(out[0]) and out[0].startswith("run/")]
    return tuple(found)


def parsed(root: Path, commit: str, name: str) -> dict[str, Any]:
    import yaml

    # The C one takes a twentieth of the time.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(git(root, "show", f"{commit}:{name}"), loader) or {}


def inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and ".." not in parts and not path.startswith("/")


def lacks(name: str, missing: list[str]) -> str:
    """What to do where DVC's cache lacks files of a run."""
    if not missing:
        return ""
    named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return (
        f"The DVC cache lacks {named} of this run: `python -m flows.reproduce {name} --kept` fetches them from the DVC "
        f"remote, and `python -m flows.reproduce {name}` runs it again."
    )
