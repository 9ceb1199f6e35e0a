"""The folder of what was ingested for a task, ingested/<task>/: its files, how they are read, and how they are written.

    conversations.jsonl   all that can be used, masked, with consent; everything else is made of it
    scenarios.jsonl       to train on: a scenario's own fields, and `source`
    demonstrations.jsonl  {"messages", "tools"?, "source"}
    preferences.jsonl     {"messages", "tools"?, "chosen", "rejected", "source"}
    regression.jsonl      scenarios to check, never to train on
    quarantine.jsonl      {"source", "reason"}
    state.json            how far each source was read, and the share of the regression set

The same conversations give the same bytes. The folder is not below tasks_data/<task>, on which every stage depends: each
ingestion would make a finished run stale. DVC keeps its versions (`dvc add`, which `python -m addons.production.ingest`
calls).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from addons.production.traces.records import Conversation, Unreadable
from steps.core.errors import UserError
from steps.core.files import exchange, flush, private_folder, write_text
from steps.core.progress import say
from steps.data.ingested import read_rows
from steps.project.dvc import own_cache

if TYPE_CHECKING:
    from addons.production.traces.build import DataSets

SETS = ("scenarios", "demonstrations", "preferences", "regression")
TEMPORARY = re.compile(rf"\.tmp-\d+-\d+\.(({'|'.join(SETS)}|conversations|quarantine)\.jsonl|state\.json)")
# How the reason begins of a row that no conversation was made of; it is kept from one ingestion to the next.
READING = "not read: "


def read_conversations(folder: Path) -> list[Conversation]:
    """The conversations that were ingested. UserError where the file is damaged, or only its DVC file is here."""
    if not folder.exists() and folder.with_name(f"{folder.name}.dvc").exists():
        raise UserError(
            f"{folder} is not here, but {folder}.dvc is: `.venv/bin/dvc pull {folder}.dvc` brings what was ingested so far"
        )
    path = folder / "conversations.jsonl"
    try:
        return [Conversation.model_validate(row) for row in read_rows(path)]
    except ValidationError as problem:
        raise UserError(
            f"{path} is damaged ({problem.errors()[0]['msg']}): `.venv/bin/dvc checkout {folder}` brings it back"
        ) from None


def read_unreadable(folder: Path) -> list[Unreadable]:
    """The rows of earlier ingestions of which no conversation was made."""
    rows = read_rows(folder / "quarantine.jsonl")
    return [Unreadable(row["source"], row["reason"]) for row in rows if row["reason"].startswith(READING)]


def read_state(folder: Path) -> dict[str, Any]:
    path = folder / "state.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (ValueError, TypeError):
        raise UserError(
            f"{path} is damaged: `.venv/bin/dvc checkout {folder}` brings it back, or delete it to read all sources again"
        ) from None


def write(
    folder: Path,
    conversations: Iterable[Conversation],
    made: DataSets,
    unreadable: Iterable[Unreadable],
    state: Mapping[str, Any],
) -> None:
    """Write all files at once: the folder is the old one or the new one, whole, also after a kill. What is being written has
    a name beside the folder, of which DVC's versions see nothing. A user's own files in the folder stay."""
    quarantined = sorted({*made.quarantine, *unreadable})
    rows: dict[str, Iterable[Mapping[str, Any]]] = {name: getattr(made, name) for name in SETS}
    rows["conversations"] = [conversation.model_dump(mode="json") for conversation in conversations]
    rows["quarantine"] = [row._asdict() for row in quarantined]
    texts = {
        f"{name}.jsonl": "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in listed)
        for name, listed in rows.items()
    }
    texts["state.json"] = json.dumps(state, indent=1, sort_keys=True) + "\n"
    private_folder(folder.parent)
    new, aside = (folder.with_name(f".{kind}-{os.getpid()}.{folder.name}") for kind in ("tmp", "old"))
    try:
        private_folder(new)
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in texts and not TEMPORARY.fullmatch(path.name):
                (shutil.copytree if path.is_dir() else shutil.copy2)(path, new / path.name)
        for name, text in texts.items():
            write_text(new / name, text, lasting=False, private=True)
        flush(new)
        if not folder.exists():
            new.rename(folder)
        elif not exchange(new, folder):
            folder.rename(aside)  # a kill between here and the next line is mended by `tidy`
            new.rename(folder)
    finally:
        _put_back(aside, folder)
        shutil.rmtree(new, ignore_errors=True)


def _put_back(aside: Path, folder: Path) -> None:
    """Remove an old folder, unless nothing has taken its place."""
    if aside.exists() and not folder.exists():
        aside.rename(folder)
    shutil.rmtree(aside, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Remove what a killed ingestion left of a task's folder, while no other command is at work: beside it, and of an
    earlier release's in it, from where a version would take it along. What DVC brought back is closed to other users."""
    private_folder(folder.parent)
    beside = re.compile(rf"\.(tmp|old)-\d+\.{re.escape(folder.name)}")
    for path in folder.parent.iterdir():
        if match := beside.fullmatch(path.name):
            _put_back(path, folder) if match[1] == "old" else shutil.rmtree(path)
    for path in folder.iterdir() if folder.is_dir() else ():
        if TEMPORARY.fullmatch(path.name):
            path.unlink()


def versioned(root: Path, folder: Path) -> None:
    """Have DVC store this version of a folder and write <folder>.dvc, where the project is one of DVC's. The project's own
    cache is closed to other users then, unless `dvc config cache.shared group` opens it: DVC gives files its own modes."""
    if not (root / ".dvc").is_dir():
        say(f"{root} is no project of DVC's: no version of {folder} was stored")
        return
    os.environ["DVC_NO_ANALYTICS"] = "1"
    own_cache(root)
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(os.fspath(root)) as repo:
            repo.scm_context.quiet = True  # else it prints what to do with git; the command that called says it, once
            repo.add([os.fspath(folder)])
            if (root / ".dvc/cache").is_dir() and repo.config["cache"].get("shared") != "group":
                private_folder(root / ".dvc/cache")
    except DvcException as problem:
        raise UserError(
            f"{folder} was written, but DVC cannot store it ({problem}): `.venv/bin/dvc add {folder}` once that is mended"
        ) from None
