"""dvc.lock: what a run was made from, with hashes that identify runs, iterations and adapters, and DVC's own hashes."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.records import ITERATION_STAGES
from steps.core.yaml_text import read_mapping
from steps.project.chain import SFT, START

if TYPE_CHECKING:
    from steps.core.params import Params

CODE = ("code", "task_code")  # stages that list code; the second one in locks of before
Lock = dict[str, dict[str, Any]]  # dvc.lock: stage -> {"cmd", "deps", "params", "outs"}
# A stage, and its name as it is written.
ENTRY = re.compile(r"^  ([^\s#][^\n]*):\n(?:(?: {3,}|  -).*\n)*", re.MULTILINE)
SHORT = 12  # hex digits of a file's md5 in the ids of what the file holds
CURE = "`git checkout dvc.lock` brings the committed one back, and `.venv/bin/dvc repro` runs what it then lacks"


def read_lock(root: Path) -> Lock:
    """The stages in dvc.lock; none where there is no file. UserError where it is damaged."""
    return LockReader().read(root)


class LockReader:
    """Reads dvc.lock again and again: a stage whose text is as it was is not parsed again."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, Any]] = {}  # a stage's text -> what it holds, as of the last time
        self.seen: dict[str, Any] = {}  # what entries share

    def read(self, root: Path) -> Lock:
        """As `read_lock`."""
        path = root / "dvc.lock"
        if not path.exists():
            return {}
        text = path.read_bytes()
        content = self.in_parts(text)
        return stages_of(read_mapping(text, path, CURE) if content is None else content, path)

    def in_parts(self, text: bytes) -> dict[str, Any] | None:
        """What a dvc.lock of DVC's own form holds, read stage by stage; None where it has another form, or is damaged.

        A YAML parser holds a node of about 700 bytes for each value until the text has ended. In a run of 100 iterations
        that is 100 MB, which the process then keeps; a part needs as much as one stage.
        """
        try:
            head, mark, body = text.decode().partition("\nstages:\n")
            parts = [match[0] for match in ENTRY.finditer(body)]
            if not mark or "".join(parts) != body:
                return None
            content, stages = read_mapping(head, "its head"), dict[str, Any]()
            self.parts = {part: self.parts.get(part) or self._entries(part) for part in parts}
            for entries in self.parts.values():
                stages |= entries
        except (UserError, UnicodeDecodeError):  # reading the whole then says where
            return None
        return content | {"stages": stages}

    def _entries(self, part: str) -> dict[str, Any]:
        return {name: shared(entry, self.seen) for name, entry in read_mapping(part, "a part").items()}


def shared(entry: Any, seen: dict[str, Any]) -> Any:
    """An entry of dvc.lock with the objects of `seen`, by their text, in place of its own equal ones: nearly all files and
    parameters of a stage are those of the iteration before. They are to be read only."""
    if not isinstance(entry, dict):
        return entry
    lists: dict[str, list[Any]] = {key: entry[key] for key in ("deps", "outs") if isinstance(entry.get(key), list)}
    parts: dict[str, Any] = {key: [seen.setdefault(repr(file), file) for file in files] for key, files in lists.items()}
    if "params" in entry:
        parts["params"] = seen.setdefault(repr(entry["params"]), entry["params"])
    return entry | parts


def stages_of(content: dict[str, Any], where: object) -> Lock:
    """The stages of a dvc.lock that was read. UserError where they do not have the form that DVC writes."""
    stages = content.get("stages") or {}
    if not isinstance(stages, dict):
        raise UserError(f"{where}: stages must be a mapping, not a {type(stages).__name__}; {CURE}")
    for name, entry in stages.items():
        lists = [entry.get(key) or [] for key in ("deps", "outs")] if isinstance(entry, dict) else [None]
        if not all(isinstance(files, list) and all(map(is_file_entry, files)) for files in lists):
            raise UserError(f"{where}: the stage {str(name)[:80]} is cut off or damaged; {CURE}")
    return stages


def is_file_entry(entry: object) -> bool:
    """Whether this is what dvc.lock says of a file or folder: its path, and its md5 or none."""
    return isinstance(entry, dict) and isinstance(entry.get("path"), str) and isinstance(entry.get("md5", ""), str)


def run_key(lock: Lock) -> str | None:
    """A hash that identifies a run: of the code, data and parameters that its first iteration reads, without files that the
    run itself makes. None before that iteration is complete.
    """
    first = [f"{stage}@001" for stage in ITERATION_STAGES]
    if any(name not in lock for name in ("scenarios", "initialise", *first)):
        return None
    inputs: list[Any] = [[lock[name]["cmd"], lock[name].get("params")] for name in first]
    inputs += [dep for name in first for dep in lock[name].get("deps", []) if not is_made(dep["path"])]
    return digest([lock["scenarios"], lock["initialise"], inputs, *begun(lock)])


def is_made(path: str) -> bool:
    """Whether a run makes this file, the lists of its code excepted."""
    return path.startswith("run/") and not path.startswith("run/code/")


def begun(lock: Lock) -> list[dict[str, Any]]:
    """The entries of the stages sft and start, where iteration 001 continues what they made; none for a fresh adapter."""
    makers = {f"run/{name}/checkpoint": f"{name}@{name}" for name in (SFT, START)}
    entries, name = list[dict[str, Any]](), "update@001"
    while (
        name := next((makers[dep["path"]] for dep in lock[name].get("deps", []) if dep["path"] in makers), "")
    ) in lock:
        entries.append(lock[name])
    return entries


def digest(value: Any) -> str:
    """A hash of JSON data, 16 hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def lineage(root: Path, *paths: Path) -> dict[str, str]:
    """The tag `dvc_lock`: a hash of `ancestry`. No tag where dvc.lock does not record these outputs."""
    entries = ancestry(root, *paths)
    return {"dvc_lock": digest(entries)} if entries else {}


def ancestry(root: Path, *paths: Path) -> Lock:
    """The entries in dvc.lock of all stages that these outputs come from, directly or indirectly. Not that of the
    stage code: it has the hash of all code, and the others have that of their part."""
    lock = read_lock(root)
    makers = {out["path"]: name for name, entry in lock.items() for out in entry.get("outs", [])}
    queue: list[str] = [os.path.relpath(path, root) for path in paths]
    entries: Lock = {}
    while queue:
        name = makers.get(queue.pop())
        if name and name not in entries and name not in CODE:
            entries[name] = lock[name]
            queue += [dep["path"] for dep in lock[name].get("deps", [])]
    return entries


def unfit(lock: Lock, names: list[str], params: Params) -> str | None:
    """Why the recorded results of these stages do not belong to these parameters, or to each other; None where they do."""
    from pydantic import ValidationError

    if missing := [name for name in names if name not in lock]:
        return f"dvc.lock has no {', '.join(missing)}: not finished yet (`.venv/bin/dvc repro` finishes it)"
    outputs = {out["path"]: out.get("md5") for entry in lock.values() for out in entry.get("outs", [])}
    now = params.model_dump(mode="json", by_alias=True)
    for name in names:
        recorded = (lock[name].get("params") or {}).get("params.yaml") or {}
        try:
            same = type(params).model_validate(now | recorded) == params
        except ValidationError:
            same = False
        if not same:
            return f"params.yaml is not what {name} ran with (`.venv/bin/dvc repro` runs it again)"
        for dep in lock[name].get("deps", []):
            if outputs.get(dep["path"], dep.get("md5")) != dep.get("md5"):
                return f"{dep['path']} has changed since {name} ran (`.venv/bin/dvc repro` runs it again)"
    return None


def file_md5(path: Path) -> str:
    """The md5 of a file's content, as DVC computes it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def folder_md5(folder: Path) -> str:
    """DVC's md5 of a folder: that of a JSON list of its files' md5s and relative paths."""
    files = sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_file())
    listed = json.dumps([{"md5": file_md5(path), "relpath": name} for name, path in files], sort_keys=True)
    return hashlib.md5(listed.encode(), usedforsecurity=False).hexdigest() + ".dir"
