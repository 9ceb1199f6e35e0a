"""Finds what still holds conversations that were forgotten: files of the project's folder, versions in DVC's cache and its
remotes, databases. Each is said with what to do about it; nothing is changed.

It is looked for by the conversations' keys and by what their users said, in files of any form, in the texts of parquet files
and in the tables of SQLite databases. Left out: texts of fewer than `LEAST` letters, weights, git's history (which has
no conversations unless somebody committed some), other clones and backups, and MLflow on another machine, which is said.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from environments.base import Message

LEAST = 16  # letters of what is looked for
PIECE = 2**24  # bytes that are read at once
SKIPPED = {".git", ".venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache", "forgotten"}
PASSED = (".safetensors", ".py", ".pyc", "-wal", "-shm")  # the last two are read with their database
PLAIN = re.compile(r"[ !#-\[\]-~]+")  # looks the same in every form of JSON
ADVICE = (  # by how a path begins
    ("start/", "the run in this folder was given it: train again without it, or `rm -r start run`"),
    ("run/", "the run in this folder was made with it: train again without it, or `rm -r run`"),
    (".flywheel/worktrees/", "a run in a worktree was made with it: train again without it, and remove the worktree"),
    (".flywheel/capture/", "a store of captured conversations: forget it with --capture as well"),
    (".flywheel/mlartifacts/", "an artifact in MLflow: delete it there, or the run that has it"),
    (".flywheel/mlflow", "MLflow's database: delete the trace or the run that has it"),
    (".flywheel/", "a file of the project's services: delete it where they do not need it"),
    ("tasks_data/", "the task's own data: take it out, if it is the person's"),
)


def listed(
    root: Path, keys: Iterable[str], conversations: Iterable[Sequence[Message]], others: Collection[str] = ()
) -> list[str]:
    """A line for each file and version that holds these conversations, and for what could not be searched. `others` are
    versions that need no line."""
    needles, words = [key.encode() for key in keys], [text.encode() for text in texts(conversations)]
    lines, versions = [], []
    for path in _files(root):
        with contextlib.suppress(OSError):
            if not _holds(path, [*needles, *words], words):
                continue
            name = path.relative_to(root).as_posix()
            if match := re.fullmatch(r"\.dvc/cache/files/md5/(..)/([0-9a-f]{30})", name):
                versions.append(match[1] + match[2])
            else:
                advice = (advice for start, advice in ADVICE if name.startswith(start))
                lines.append(f"{name} holds it: {next(advice, 'delete it where nobody needs it')}")
    if more := [version for version in versions if version not in others]:
        command = f".venv/bin/python -m flows.prune --delete --data-set {' '.join(more)}"
        lines.append(f"DVC's cache holds it in {len(more)} more files: `{command}` removes those that nothing needs")
    lines += _remote(root, versions) if versions else []
    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        lines.append("MLflow's server was not searched: its traces and artifacts may hold it; look for its id there")
    return lines


def texts(conversations: Iterable[Sequence[Message]]) -> list[str]:
    """What to look for of what users said, as it is written in files: a part that needs no escape, or all forms."""
    forms_of = set[str]()
    for messages in conversations:
        for message in messages:
            text = message.get("content")
            if message["role"] == "user" and isinstance(text, str):
                part = max(["", *PLAIN.findall(text)], key=len).strip()[:200]
                line = max(text.split("\n"), key=len).strip()[:200]
                forms = [part] if len(part) >= LEAST else [line, json.dumps(line)[1:-1]] if len(line) >= LEAST else []
                forms_of.update(forms)
    return sorted(forms_of)


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink() and not name.endswith(PASSED):
                yield path


def _holds(path: Path, needles: Sequence[bytes], words: Sequence[bytes]) -> bool:
    """Whether any of these bytes is in a file; of `words` in a database, for the ledger's lineage names keys."""
    longest = max(map(len, needles), default=1)
    with path.open("rb") as file:
        piece = file.read(PIECE)
        if piece.startswith(b"SQLite format 3\0"):
            return _in_database(path, words)
        if piece.startswith(b"PAR1"):
            return _in_parquet(path, needles)
        while piece:
            if any(needle in piece for needle in needles):
                return True
            more = file.read(PIECE)
            piece = piece[-longest:] + more if more else b""
    return False


def _in_parquet(path: Path, needles: Sequence[bytes]) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = [column.path for column in file.schema if column.physical_type == "BYTE_ARRAY"]
            for batch in file.iter_batches(256, columns=names) if names else ():
                rows = json.dumps(batch.to_pylist(), ensure_ascii=False, default=str).encode("utf-8", "replace")
                if any(needle in rows for needle in needles):
                    return True
    except (pa.ArrowException, OSError, ValueError):  # a damaged one, which its own readers report
        return False
    return False


def _in_database(path: Path, needles: Sequence[bytes]) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()
            for (table,) in tables:
                for row in database.execute('SELECT * FROM "{}"'.format(table.replace('"', '""'))):
                    values = [value for value in row if isinstance(value, str | bytes)]
                    if any(needle in (v if isinstance(v, bytes) else v.encode()) for v in values for needle in needles):
                        return True
    except sqlite3.Error:  # another process holds it, or it is damaged
        return False
    return False


def _remote(root: Path, versions: Sequence[str]) -> list[str]:
    """A line for each remote of DVC's that has any of these versions, or could not be asked."""
    from dvc.repo import Repo

    if not (root / ".dvc").is_dir():
        return []
    lines = []
    with Repo(os.fspath(root)) as repo:
        for name in repo.config.get("remote", {}):
            try:
                store = repo.cloud.get_remote_odb(name)
                paths = [store.oid_to_path(md5) for md5 in versions if store.exists(md5)]
            except Exception as problem:  # whatever the remote's own library raises
                lines.append(f"DVC's remote {name} could not be asked ({type(problem).__name__}): it may hold it, too")
                continue
            if paths:
                lines.append(f"DVC's remote {name} holds it: delete {', '.join(paths)} there")
    return lines
