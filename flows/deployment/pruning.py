"""What of DVC's cache can go: checkpoints of kept runs that nobody continues, and what nothing refers to any more.

What stays, in each case whole folders with all of their files:

- all that dvc.lock and *.dvc name in this folder, in every git worktree, and in every commit of a branch, a tag or HEAD;
- of a kept run (refs/runs/<name>) and of the run of a registered version all but checkpoints, and of those the best
  iteration's, the last ones, those of registered adapters, and those that a params.yaml starts from (policy.start_from);
- all that an index of an add-on (lineage) names: adapters, batches, evaluations, metrics, demonstrations.

`removable` is a function of what was read, so that a test can hold it to this. Left out: the DVC remote, MLflow's artifacts,
and clones elsewhere that share the cache, of which nothing here can know.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flows.deployment import checkout
from steps.core.errors import UserError
from steps.core.ports import every
from steps.core.progress import say
from steps.core.yaml_text import read_mapping
from steps.policy.adapter import FILES
from steps.project import kept_runs
from steps.project.git import git
from steps.project.ledger import Ledger
from steps.project.lock import stages_of
from steps.registry.model import versions

CACHE = Path(".dvc/cache")
CHECKPOINT = re.compile(r"run/(\d{3})/checkpoint")
HASH = re.compile(r"[0-9a-f]{32}(\.dir)?")
ORPHANS, CHECKPOINTS = "nothing refers to it", "a checkpoint of a kept run"


class Snapshot(NamedTuple):
    """What a dvc.lock and the *.dvc files beside it name."""

    name: str
    outs: dict[str, str]  # path: md5, which ends with .dir for a folder
    is_kept_run: bool = False  # else all of it stays
    iterations: tuple[str, ...] = ()  # in order
    best: str = ""
    starts_from: str = ""  # policy.start_from


class Cache(NamedTuple):
    """The files of DVC's cache, by their md5s."""

    root: Path
    sizes: dict[str, int]  # in bytes
    members: dict[str, list[str]]  # of the folders among them: md5s of their files

    def path(self, md5: str) -> Path:
        return self.root / "files" / "md5" / md5[:2] / md5[2:]

    def adapter(self, md5: str) -> str | None:
        """The hash (steps/policy/adapter.py) of the adapter in a folder of the cache; None where it is not whole."""
        try:
            listed = {entry["relpath"]: entry["md5"] for entry in json.loads(self.path(md5).read_bytes())}
            digest = hashlib.sha256()
            for name in FILES:
                digest.update(self.path(listed[name]).read_bytes())
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return digest.hexdigest()[:16]


def removable(
    cache: Cache, snapshots: Iterable[Snapshot], indexed: Iterable[str], registered: Iterable[str], last: int
) -> dict[str, str]:
    """md5 -> why it can go, of the files in the cache that nothing needs. `indexed`: md5s that an index names;
    `registered`: hashes of adapters; `last`: how many of a kept run's last checkpoints stay."""
    snapshots, adapters = list(snapshots), set(registered)
    wanted = {snapshot.starts_from.removeprefix("run:") for snapshot in snapshots}
    needed, spared = set(indexed), set[str]()
    for snapshot in snapshots:
        held = {snapshot.best, *snapshot.iterations[max(0, len(snapshot.iterations) - last) :]}
        held |= {number for number in snapshot.iterations if f"{snapshot.name}/{number}" in wanted}
        for path, md5 in snapshot.outs.items():
            match = CHECKPOINT.fullmatch(path) if snapshot.is_kept_run else None
            if match is None or match[1] not in {"000", *held} | by_adapter(cache, snapshot, match[1], adapters):
                (needed if match is None else spared).add(md5)
            else:
                needed.add(md5)
    needed, spared = whole(cache, needed), whole(cache, spared)
    return {md5: CHECKPOINTS if md5 in spared else ORPHANS for md5 in sorted(cache.sizes) if md5 not in needed}


def by_adapter(cache: Cache, snapshot: Snapshot, number: str, adapters: set[str]) -> set[str]:
    """The iteration, where its adapter is registered."""
    md5 = snapshot.outs.get(f"run/{number}/adapter")
    return {number} if adapters and md5 and cache.adapter(md5) in adapters else set()


def whole(cache: Cache, md5s: Iterable[str]) -> set[str]:
    """These md5s, and those of the files in the folders among them."""
    named = set(md5s)
    return named.union(*(cache.members.get(md5, ()) for md5 in named))


def read_cache(root: Path) -> Cache:
    """DVC's cache in a project's folder; empty where there is none."""
    cache = Cache(root / CACHE, {}, {})
    for path in sorted((cache.root / "files" / "md5").glob("??/*")):
        if HASH.fullmatch(md5 := path.parent.name + path.name):  # DVC's own temporary files are none
            cache.sizes[md5] = path.stat().st_size
            if md5.endswith(".dir"):
                cache.members[md5] = [entry["md5"] for entry in json.loads(path.read_bytes())]
    return cache


def snapshots(root: Path) -> Iterator[Snapshot]:
    """All that refers to the cache of the project in `root`. UserError where MLflow, which knows what is registered, is
    away."""
    for folder in worktrees(root):
        names = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.dvc").split("\0")
        files = [name for name in (*names, "dvc.lock", "params.yaml") if (folder / name).is_file()]
        yield snapshot(str(folder), {name: (folder / name).read_text() for name in files})
    spots = git(root, "log", "--format=%H", "HEAD", "--branches", "--tags", "--remotes", "--", "dvc.lock", "*.dvc")
    for commit in spots.splitlines():
        yield snapshot(commit, committed(root, commit))
    for name in git(root, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/runs").splitlines():
        yield snapshot(name, committed(root, f"refs/runs/{name}"), is_kept_run=True)
    for version in versions(root):
        name = f"{version.name} version {version.version}"
        try:
            run = checkout.source(root, checkout.run_of_version(root, version.name, version.version))
        except UserError as problem:
            say(f"{name} has no run whose data could be kept for it: {problem}")
            continue
        yield snapshot(name, committed(root, run.commit) | run.files, is_kept_run=True)


def worktrees(root: Path) -> list[Path]:
    """This folder and every other git worktree of the repository."""
    listed = re.findall(r"^worktree (.+)$", git(root, "worktree", "list", "--porcelain"), re.MULTILINE)
    return [path for path in map(Path, listed) if path.is_dir()]


def committed(root: Path, revision: str) -> dict[str, str]:
    """The files of a commit that name what is in the cache, or describe a run."""
    names = git(root, "ls-tree", "-r", "-z", "--name-only", revision).split("\0")
    wanted = [name for name in names if name in kept_runs.KEPT or name.endswith(".dvc")]
    return {name: git(root, "show", f"{revision}:{name}") for name in wanted}


def snapshot(name: str, texts: Mapping[str, str], is_kept_run: bool = False) -> Snapshot:
    """What these files (dvc.lock, *.dvc, and of a kept run chain.yaml and params.yaml) name. UserError for a damaged one."""
    outs: dict[str, str] = {}
    for file, text in texts.items():
        where = f"{file} of {name}"
        if file == "dvc.lock":
            for entry in stages_of(read_mapping(text, where), where).values():
                outs |= {out["path"]: out["md5"] for out in entry.get("outs") or () if out.get("md5")}
        elif file.endswith(".dvc"):
            for out in read_mapping(text, where).get("outs") or ():
                outs[f"{file}: {out.get('path')}"] = str(out.get("md5") or "")
    chain: dict[str, Any] = read_mapping(texts["chain.yaml"], name) if "chain.yaml" in texts else {}
    params = yaml.safe_load(texts["params.yaml"]) if "params.yaml" in texts else {}
    start = str(((params or {}).get("policy") or {}).get("start_from") or "")
    best = str((chain.get("tested") or {}).get("best") or "")
    return Snapshot(name, outs, is_kept_run, tuple(chain.get("iterations") or ()), best, start)


def indexed(ledger: Ledger) -> set[str]:
    """The md5s that the add-ons' indexes name."""
    return {name for index in every("index") for name in index.names(ledger) if HASH.fullmatch(name)}


def remove(cache: Cache, md5s: Iterable[str]) -> int:
    """Delete these files, and the entries of DVC's run cache that name them; the bytes that are free then. A file that is
    gone already counts nothing."""
    gone, freed = set(md5s), 0
    for entry in sorted((cache.root / "runs").glob("??/*/*")):  # first: DVC would look for what they name
        if gone & set(re.findall(r"[0-9a-f]{32}(?:\.dir)?", entry.read_text(errors="replace"))):
            freed += entry.stat().st_size
            entry.unlink()
    for md5 in sorted(gone):
        path = cache.path(md5)
        try:
            size = path.stat().st_size
            path.chmod(0o644)  # DVC protects what it links
            path.unlink()
        except FileNotFoundError:
            continue
        freed += size
    return freed
