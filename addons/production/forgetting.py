"""Deletes conversations everywhere in a project's folder, and finishes a deletion that a kill cut off: what is intended is
written first. The caller holds the folder's lock."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from addons.lineage.index import add_ingested
from addons.production.traces import files, remains, store, tombstones, unchanged
from addons.production.traces.forget import forget
from addons.production.traces.sources import load_task
from environments.base import Message
from flows.repro.versioned import versioned
from steps.core import params
from steps.core.files import private_folder, write_text
from steps.core.progress import say
from steps.project.ledger import Ledger

INTENT = tombstones.FOLDER / "intended"  # keys that are being deleted, and the store


def conversations_of(root: Path, keys: set[str], capture: Path) -> list[Sequence[Message]]:
    """What was said in these conversations, wherever they are."""
    conversations: list[Sequence[Message]] = [*store.Store(capture).messages_of(keys)] if capture.is_dir() else []
    for folder in folders(root):
        conversations += [each.messages for each in files.read_conversations(folder) if each.key in keys]
    return conversations


def intend(root: Path, keys: set[str], capture: Path) -> None:
    """Write what is about to be deleted."""
    private_folder((root / INTENT).parent)
    intent = {"keys": sorted(keys), "capture": os.fspath(capture.absolute())}
    write_text(root / INTENT, json.dumps(intent) + "\n", private=True)


def finish(root: Path, settings: params.Params, ledger: Ledger) -> None:
    """Finish a deletion that was cut off, and remove what a killed command left in ingested/."""
    for folder in folders(root):
        files.tidy(folder)
    if not (root / INTENT).exists():
        return
    intent = json.loads((root / INTENT).read_text(encoding="utf-8"))
    keys, capture = set(intent["keys"]), Path(intent["capture"])
    say("finishing a deletion that was cut off")
    erase(root, keys, capture, conversations_of(root, keys, capture), settings, ledger)
    (root / INTENT).unlink()


def erase(
    root: Path,
    keys: set[str],
    capture: Path,
    conversations: Sequence[Sequence[Message]],
    settings: params.Params,
    ledger: Ledger,
) -> list[str]:
    """Delete the conversations with these keys, and those in which the same was said; a line for each place."""
    tombstones.of(root).add(keys, conversations)
    (root / unchanged.KEPT).unlink(missing_ok=True)  # what the last ingestion said, which may name them
    records = store.Store(capture).erase(keys, conversations) if capture.is_dir() else 0
    lines = [f"{capture}: {records} records deleted"] if records else []
    for folder in folders(root):
        task = load_task(root, settings.model_copy(update={"task": folder.name}))
        counts = forget(keys, folder, task, conversations)
        lines += [f"{folder.relative_to(root)}/{name}.jsonl: {count} rows deleted" for name, count in counts.items()]
        versioned(root, folder)
    if answers := ledger.forget_texts(remains.texts(conversations)):
        lines.append(f"the ledger: {answers} answers of models to what was said in it deleted")
    add_ingested(root, ledger)
    return lines


def folders(root: Path) -> list[Path]:
    """The ingested folders of all tasks, also where only their DVC file is here, or a kill left them under another name."""
    names = set()
    for path in (root / files.FOLDER).glob("*"):
        moved = re.fullmatch(r"\.old-\d+\.(.+)", path.name)
        if moved or path.suffix == ".dvc" or (path.is_dir() and path.name[0] != "."):
            names.add(moved[1] if moved else path.name.removesuffix(".dvc"))
    return [root / files.FOLDER / name for name in sorted(names)]
