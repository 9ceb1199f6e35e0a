"""The runs that can be shown: the folder's own run, runs at work or stopped in worktrees, and runs kept under refs/runs/.

When a person chooses a kept run, it is laid out in .flywheel/view/<name>/: a link to each of its files in DVC's cache, as
listed in its dvc.lock, with its params.yaml and chain.yaml. Nothing else is written. Timings are not kept.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from steps.core.errors import UserError
from steps.core.yaml_text import read_mapping
from steps.kit.lock import alone
from steps.project.git import git_bytes
from steps.project.kept_runs import WORKTREES
from viewer.index import Index, stamp

HERE = "."  # the name of the folder's own run; no other name begins with a dot
JUDGED = Path(".flywheel/judged")  # in a worktree with copies of a judged run's data, see flows/deployment/checkout.py
LAID_OUT = Path(".flywheel/view")
CACHE = Path(".dvc/cache/files/md5")  # the cache of all runs, see flows/deployment/workspace.py
OPEN = 4  # indexes in memory
LONGEST = 500  # characters of a model's name


class RunChoice(NamedTuple):
    """A run that can be chosen."""

    name: str
    about: str  # the text of the choice
    folder: Path  # the run/ folder
    commit: str = ""  # of a kept run
    written: float = 0.0  # seconds since 1970: the last trajectories, or when the run was kept; 0 of a copy


@dataclass(frozen=True)  # a tuple has an `index` of its own
class OpenedRun:
    """The run that was chosen."""

    choice: RunChoice
    index: Index
    problem: str  # files that DVC's cache lacks, and what to do


class Runs:
    """All runs of the project that a folder belongs to. Safe to call from several threads."""

    def __init__(self, run: Path) -> None:
        self.run, self.root = run, project(run)
        self.indexes: dict[Path, Index] = {}
        self.lock = threading.Lock()
        self.listed: tuple[object, list[RunChoice]] = None, []  # version of refs/runs, and the runs there

    def all(self) -> dict[str, RunChoice]:
        """The runs by name, the latest kept ones first. A kept run that is at work again appears as its worktree."""
        runs = {HERE: RunChoice(HERE, f"{self.run} (this folder)", self.run)}
        for path in sorted((self.root / WORKTREES).glob("*/")):
            folder, is_copy = path / "run", (path / JUDGED).exists()
            about = f"{path.name} ({'another run, being judged' if is_copy else 'at work or stopped'})"
            runs[path.name] = RunChoice(path.name, about, folder, written=0.0 if is_copy else written(folder))
        return runs | {choice.name: choice for choice in self._kept() if choice.name not in runs}

    def _kept(self) -> list[RunChoice]:
        """The runs under refs/runs. Git lists them again where they have changed: with thousands that takes a second."""
        version = refs_version(self.root)
        if version is None or version != self.listed[0]:
            shape = "--format=%(refname:lstrip=2) %(objectname) %(committerdate:short) %(committerdate:unix)"
            listed = git(self.root, "for-each-ref", shape, "--sort=-committerdate", "refs/runs")
            self.listed = (
                version,
                [
                    RunChoice(name, f"{name} (kept, {day})", self.root / LAID_OUT / name / "run", commit, float(second))
                    for name, commit, day, second in map(str.split, listed.splitlines())
                    if "/" not in name  # git allows neither .. nor a dot in front
                ],
            )
        return self.listed[1]

    def named(self, name: str) -> RunChoice:
        """The run of this name, or the folder's own run if there is none."""
        runs = self.all()
        return runs.get(name, runs[HERE])

    def default(self) -> str:
        """The run that is shown where none is named: the folder's own, or the newest one while that has no trajectories."""
        newest = max(self.all().values(), key=lambda choice: choice.written)
        return HERE if written(self.run) else newest.name

    def open(self, name: str) -> OpenedRun:
        """Open a run; the last OPEN indexes stay in memory. UserError if there is no run of this name."""
        runs = self.all()
        if name not in runs:
            raise UserError(f"there is no run {name[:80]}: one of {', '.join(list(runs)[:8])}")
        choice = runs[name]
        missing = lay_out(self.root, choice) if choice.commit else []
        with self.lock:
            index = self.indexes.pop(choice.folder, None) or Index(choice.folder)
            self.indexes[choice.folder] = index  # moved to the end
            while len(self.indexes) > OPEN:
                del self.indexes[next(iter(self.indexes))]
        index.refresh()
        return OpenedRun(choice, index, lacks(name, missing))


def written(run: Path) -> float:
    """When the last trajectories of a run were written; 0 if it has none."""
    times = [0.0]
    for pattern in ("*/trajectories.parquet", "*/*/trajectories.parquet"):
        with suppress(FileNotFoundError):  # a run that is being removed
            times += [path.stat().st_mtime for path in run.glob(pattern)]
    return max(times)


def project(run: Path) -> Path:
    """The checkout that contains the folder; for a worktree, the main checkout."""
    root = run.parent
    if (root / ".git").is_file():
        common = Path(git(root, "rev-parse", "--path-format=absolute", "--git-common-dir").strip())
        return common.parent if common.name == ".git" else root
    return root


def refs_version(root: Path) -> object:
    """Identifies the state of refs/runs: git writes a reference by renaming a file in its folder. None where it may change
    again within the file system's clock tick, and where the references are kept in another form."""
    files = [root / ".git" / name for name in ("refs/runs", "packed-refs")]
    if (root / ".git/reftable").exists():
        return None
    stamps = tuple(map(stamp, files))
    is_settled = all(each is None or time.time_ns() - each[1] > 10**9 for each in stamps)
    return stamps if is_settled and any(stamps) else None


def git(root: Path, *words: str) -> str:
    """The output of git; empty if there is no repository or the command fails."""
    with suppress(UserError):  # without git there are no kept runs
        return git_bytes(root, *words).decode(errors="replace") if (root / ".git").exists() else ""
    return ""


def lay_out(root: Path, choice: RunChoice) -> list[str]:
    """Link the files of a kept run in DVC's cache; returns the paths that the cache lacks. A second call repairs links."""
    folder = choice.folder.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    with alone(folder.parent / ".lock"):  # against other threads, and `make ui` beside `make view`
        describe(root, choice.commit, folder)
        for path, kept in files(root, choice.commit):
            link = folder / path
            if kept is None or not kept.is_file():
                missing.append(path)
                if link.is_dir():
                    shutil.rmtree(link)
                link.unlink(missing_ok=True)
            elif not link.exists():  # or the link leads into a cache that has moved
                link.unlink(missing_ok=True)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(kept)
    return missing


def describe(root: Path, commit: str, folder: Path) -> None:
    """Write the run's params.yaml, chain.yaml and, if git has it, its tokenizer. A new commit clears the folder first."""
    stamp = folder / "commit"
    if stamp.is_file() and stamp.read_text() == commit:
        return
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    for name in ("params.yaml", "chain.yaml"):
        (folder / name).write_text(git(root, "show", f"{commit}:{name}"))
    policy = parsed(root, commit, "params.yaml").get("policy") or {}
    if not isinstance(policy, dict):
        raise foreign("params.yaml", commit)
    tokenizer = f"{str(policy.get('base_model'))[:LONGEST]}/tokenizer.json"
    if inside(tokenizer) and (text := git(root, "show", f"{commit}:{tokenizer}")):
        (folder / tokenizer).parent.mkdir(parents=True, exist_ok=True)
        (folder / tokenizer).write_text(text)
    stamp.write_text(commit)


def files(root: Path, commit: str) -> Iterator[tuple[str, Path | None]]:
    """(path, place in the cache) of each file in the run's outputs; None for a folder whose list the cache lacks."""
    cache = root.resolve() / CACHE
    for path, md5 in outputs(root, commit):
        if not md5.endswith(".dir"):
            yield path, place(cache, md5)
            continue
        try:
            listed = json.loads(place(cache, md5).read_bytes())
            entries = [(f"{path}/{entry['relpath']}", str(entry["md5"])) for entry in listed]
        except FileNotFoundError:
            yield path, None
            continue
        except (ValueError, TypeError, KeyError):  # no JSON, or another one than DVC writes
            raise foreign(f"the list of {path} in DVC's cache", commit) from None
        for file, md5_of_file in entries:
            if not inside(file):
                raise UserError(f"{path} in dvc.lock of {commit[:8]} lists {file}, which is none of its files")
            yield file, place(cache, md5_of_file)


def place(cache: Path, md5: str) -> Path:
    if not re.fullmatch(r"[0-9a-f]{32}(\.dir)?", md5):
        raise UserError(f"dvc.lock, or a folder's list in {cache}, has {md5[:40]!r} where an MD5 should stand")
    return cache / md5[:2] / md5[2:]


@lru_cache(maxsize=16)
def outputs(root: Path, commit: str) -> tuple[tuple[str, str], ...]:
    """Path and MD5 of the outputs in run/. Iterations in dvc.lock that are not in the chain belong to another run."""
    lock, chain, project = (parsed(root, commit, name) for name in ("dvc.lock", "chain.yaml", "dvc.yaml"))
    paths = []
    try:
        for name, entry in (lock.get("stages") or {}).items():
            stage, _, key = name.partition("@")
            each = ((project.get("stages") or {}).get(stage) or {}).get("foreach")  # "${iterations}"
            if each is None or key in map(str, chain.get(each.strip("${}")) or ()):
                outs = [(str(out["path"]), str(out.get("md5"))) for out in entry.get("outs", ())]
                paths += [out for out in outs if inside(out[0]) and out[0].startswith("run/")]
    except (AttributeError, TypeError, KeyError):
        raise foreign("dvc.lock, chain.yaml or dvc.yaml", commit) from None
    return tuple(paths)


def parsed(root: Path, commit: str, name: str) -> dict[str, Any]:
    """The content of a YAML file of a kept run. UserError where it is damaged."""
    return read_mapping(git(root, "show", f"{commit}:{name}"), f"{name} of the kept run {commit[:8]}")


def foreign(what: str, commit: str) -> UserError:
    return UserError(
        f"{what} of the kept run {commit[:8]} does not have the form that DVC and this project write, so the run cannot be "
        "shown: look at it with `git show`, or choose another run"
    )


def inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and ".." not in parts and not path.startswith("/")


def lacks(name: str, missing: list[str]) -> str:
    """Says what to do if DVC's cache lacks files of a run; else empty."""
    if not missing:
        return ""
    named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return (
        f"The DVC cache lacks {named} of this run: `.venv/bin/python -m flows.reproduce {name} --kept` fetches them "
        f"from the DVC remote, and `.venv/bin/python -m flows.reproduce {name}` runs it again."
    )
