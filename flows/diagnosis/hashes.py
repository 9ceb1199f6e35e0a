"""The versioned files of the current run against dvc.lock: missing, changed, or damaged in DVC's cache.

Files are compared by content until the time is up, and by size from then on. Left out: whether stages are stale, which
`dvc status` says.
"""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flows.diagnosis.findings import BAD, OK, WARN, Finding, Place
from flows.diagnosis.locks import MEND
from flows.repro import folder_lock
from steps.core.yaml_text import read_mapping
from steps.kit.lock import holder
from steps.project.git import git
from steps.project.lock import file_md5, folder_md5, read_lock

SECONDS = 3.0  # for reading files
MISSING, WHOLE, CHANGED = "missing", "whole", "changed"


class Output(NamedTuple):
    """A file or a folder that dvc.lock, or a .dvc file, names."""

    path: str
    md5: str  # ends with .dir for a folder
    size: int | None


class Member(NamedTuple):
    """A file of an output: its state in the folder and in the cache."""

    path: Path
    stored: Path  # in the cache
    here: str
    cached: str


class Reader:
    """Says whether files have the content that they should have, until the time is up."""

    def __init__(self, until: float) -> None:
        self.until, self.read, self.by_size = until, 0, 0

    def state(self, path: Path, md5: str, size: int | None) -> str:
        if not path.is_file():
            return MISSING
        if size is not None and path.stat().st_size != size:
            return CHANGED
        if time.monotonic() > self.until:
            self.by_size += 1
            return WHOLE
        self.read += 1
        return WHOLE if file_md5(path) == md5 else CHANGED


def settings(root: Path) -> configparser.ConfigParser:
    """DVC's settings of this project, the local ones last, as DVC reads them."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    parser.read([home / "dvc" / "config", root / ".dvc" / "config", root / ".dvc" / "config.local"])
    return parser


def cache_folder(root: Path) -> Path:
    named = settings(root).get("cache", "dir", fallback="")
    return (root / ".dvc" / named if named else root / ".dvc" / "cache") / "files" / "md5"


def stored_at(cache: Path, md5: str) -> Path:
    return cache / md5[:2] / md5[2:]


def outputs(root: Path) -> list[Output]:
    """What dvc.lock and the .dvc files of this folder name, each path once. UserError where one is damaged."""
    listed = [out for entry in read_lock(root).values() for out in entry.get("outs") or []]
    for path in sorted(root.glob("*.dvc")):
        if path.is_file():
            listed += read_mapping(path.read_bytes(), path, f"`git checkout -- {path.name}`").get("outs") or []
    named = {out["path"]: Output(out["path"], out.get("md5", ""), out.get("size")) for out in listed}
    return [out for out in named.values() if out.md5]


def hashes(where: Place) -> list[Finding]:
    """All outputs of the current run."""
    root, lock = where.root, where.root / folder_lock.LOCK
    if not (root / "dvc.yaml").is_file():
        text = "there is no dvc.yaml, so this is no project's folder or it is damaged"
        return [Finding("hashes", BAD, text, "git checkout -- dvc.yaml")]
    if not (root / "dvc.lock").is_file():
        return [
            Finding("hashes", WARN, "there is no dvc.lock, which says what a run has made", "git checkout -- dvc.lock")
        ]
    listed = outputs(root)
    if lock.is_file() and holder(lock) is not None:
        return [Finding("hashes", OK, "not compared, because a command is at work in this folder and writes them")]
    reader = Reader(float("inf") if where.is_thorough else time.monotonic() + SECONDS)
    in_git = set(git(root, "ls-files", "--", *[out.path for out in listed]).splitlines()) if listed else set()
    findings = []
    for out in sorted(listed, key=lambda each: each.size or 0):
        is_in_git = out.path in in_git or any(name.startswith(f"{out.path}/") for name in in_git)
        findings += of_output(root, out, reader, is_in_git)
    if findings:
        return findings
    what = "1 output is" if len(listed) == 1 else f"{len(listed)} outputs are"
    text = f"{what} as recorded ({reader.read} files read"
    if reader.by_size:
        text += f", {reader.by_size} compared by size alone: `.venv/bin/python -m flows.doctor --thorough` reads all"
    return [Finding("hashes", OK, f"{text})")]


def of_output(root: Path, out: Output, reader: Reader, is_in_git: bool) -> list[Finding]:
    """What is wrong with one output."""
    cache, place = cache_folder(root), root / out.path
    if is_in_git:
        if not place.exists():
            return [Finding("hashes", BAD, f"{out.path} is missing", f"git checkout -- {out.path}")]
        if out.md5.endswith(".dir"):
            reader.read += sum(path.is_file() for path in place.rglob("*"))
            is_whole = folder_is(place, out.md5)
        else:
            is_whole = reader.state(place, out.md5, out.size) == WHOLE
        text = f"{out.path}, which git keeps, is not as dvc.lock has it"
        return [] if is_whole else [Finding("hashes", BAD, text, f"git status -- {out.path}")]
    listing = stored_at(cache, out.md5)
    if not out.md5.endswith(".dir"):
        here, cached = reader.state(place, out.md5, out.size), reader.state(listing, out.md5, out.size)
        return described(root, out, [Member(place, listing, here, cached)], extra=0)
    state = MISSING if not listing.is_file() else WHOLE if f"{file_md5(listing)}.dir" == out.md5 else CHANGED
    if state != WHOLE:
        return without_listing(root, out, listing, state)
    members = []
    for entry in json.loads(listing.read_bytes()):
        path, stored = place / entry["relpath"], stored_at(cache, entry["md5"])
        sizes = stored.stat().st_size if stored.is_file() else None
        here = reader.state(path, entry["md5"], None)
        cached = reader.state(stored, entry["md5"], path.stat().st_size if here == WHOLE else None)
        if here == WHOLE and sizes is not None and path.stat().st_size != sizes and cached == WHOLE:
            here = CHANGED
        members.append(Member(path, stored, here, cached))
    names = {member.path for member in members}
    extra = sum(path.is_file() and path not in names for path in place.rglob("*")) if place.is_dir() else 0
    return described(root, out, members, extra)


def folder_is(folder: Path, md5: str) -> bool:
    """Whether a folder has this hash of DVC's, files that git does not keep left out."""
    return folder.is_dir() and folder_md5(folder) == md5


def without_listing(root: Path, out: Output, listing: Path, state: str) -> list[Finding]:
    """A folder whose list of files is missing or damaged in the cache."""
    shown = os.path.relpath(listing, root)
    if folder_is(root / out.path, out.md5):
        grade, what = (BAD, "damaged") if state == CHANGED else (WARN, state)
        text = f"{out.path} is whole, and its list of files in DVC's cache is {what}"
        return [Finding("hashes", grade, text, f"rm -f {shown} && .venv/bin/dvc commit -q -f {out.path}")]
    is_here = (root / out.path).exists()
    what = "has changed or is cut short" if is_here else "is missing"
    text = f"{out.path} {what}, and DVC's cache does not have it whole"
    return [Finding("hashes", BAD, text, f"rm -f {shown} && {remade(root, out)}")]


def remade(root: Path, out: Output) -> str:
    """The command that brings back what the cache has lost."""
    has_remote = any(section.startswith(("remote ", "'remote ")) for section in settings(root).sections())
    return f".venv/bin/dvc pull --force {out.path}" if has_remote else f"rm -rf {out.path} && .venv/bin/dvc repro"


def described(root: Path, out: Output, members: list[Member], extra: int) -> list[Finding]:
    """The findings about an output, one for each kind of damage."""
    here, cached = Counter(member.here for member in members), Counter(member.cached for member in members)
    spoilt = [member for member in members if member.cached == CHANGED]
    rescued = [member for member in spoilt if member.here == WHOLE]
    findings = []
    if rescued:
        text = f"{files(len(rescued), out)} damaged in DVC's cache, and whole in the folder"
        findings.append(Finding("hashes", BAD, text, MEND, partial(stored_again, root, rescued)))
    if rest := [member for member in spoilt if member.here != WHOLE]:
        text = f"{files(len(rest), out)} damaged in DVC's cache, and not whole in the folder"
        gone = " ".join(os.path.relpath(member.stored, root) for member in rest[:5])
        return [*findings, Finding("hashes", BAD, text, f"rm {gone} && {remade(root, out)}")]
    lost = [member for member in members if member.here != WHOLE and member.cached == MISSING]
    if lost:
        text = f"{files(len(lost), out)} missing or changed, and DVC's cache does not have them"
        return [*findings, Finding("hashes", BAD, text, remade(root, out))]
    if here[CHANGED] or extra:
        first = next((member.path for member in members if member.here == CHANGED), root / out.path)
        shown = f"{here[CHANGED]} of {len(members)} files changed or cut short ({os.path.relpath(first, root)})"
        parts = [shown] * bool(here[CHANGED])
        parts += [f"{extra} more files than it should have"] * bool(extra)
        text = f"{out.path} is not as dvc.lock has it: {', '.join(parts)}; DVC's cache has it whole"
        return [*findings, Finding("hashes", BAD, text, f".venv/bin/dvc checkout --force {out.path}")]
    if here[MISSING]:
        text = f"{files(here[MISSING], out)} missing (of {len(members)}); DVC's cache has them whole"
        cure = f".venv/bin/dvc checkout {out.path}"
        return [*findings, Finding("hashes", WARN, text, cure, partial(checked_out, root, [out.path]))]
    if cached[MISSING]:
        text = f"{files(cached[MISSING], out)} missing in DVC's cache, and whole in the folder"
        return [*findings, Finding("hashes", WARN, text, f".venv/bin/dvc commit -q -f {out.path}")]
    return findings


def files(count: int, out: Output) -> str:
    """The beginning of a sentence about so many files of an output."""
    return f"1 file of {out.path} is" if count == 1 else f"{count} files of {out.path} are"


def stored_again(root: Path, members: Iterable[Member]) -> str:
    """Write the damaged files of the cache again, from the whole copies in the folder."""
    names = []
    for member in members:
        temporary = member.stored.with_name(f".tmp-{os.getpid()}.{member.stored.name}")
        try:
            shutil.copyfile(member.path, temporary)
            if file_md5(temporary) != member.stored.parent.name + member.stored.name:
                raise ValueError(f"{member.path} has changed meanwhile")
            temporary.chmod(0o444)
            temporary.replace(member.stored)
        finally:
            temporary.unlink(missing_ok=True)
        names.append(os.path.relpath(member.path, root))
    return f"DVC's cache has {', '.join(names[:5])}{' …' if len(names) > 5 else ''} again, from the folder's whole copy"


def checked_out(root: Path, paths: list[str]) -> str:
    """Bring missing outputs back from the cache."""
    words = [sys.executable, "-m", "dvc", "checkout", "--quiet", *paths]
    done = subprocess.run(
        words, cwd=root, capture_output=True, text=True, timeout=300, env=os.environ | {"DVC_NO_ANALYTICS": "1"}
    )
    if done.returncode:
        raise RuntimeError(f"`.venv/bin/dvc checkout {' '.join(paths)}` failed: {' '.join(done.stderr.split())[-300:]}")
    return f"{' '.join(paths)} is back from DVC's cache"
