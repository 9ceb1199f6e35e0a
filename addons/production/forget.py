"""Forget: deletes conversations, and lists every data set and adapter that was made of them.

    python -m addons.production.forget 7b0d1c5e-2f6a     # the id that the client or the producer gave
    python -m addons.production.forget capture:0f3c5a8e9d1b2c47 --capture /srv/capture

They are deleted from the store of captured conversations and from ingested/<task>/ of every task, whose data sets are made
anew, and the ledger's answers of models to what was said in them are; the same words under another id go with them. From
then on nothing brings them back: no other export of the same conversation, no feedback on its answers, no old version
(addons/production/traces/tombstones.py). What is intended is written first, so that the next `addons.production.forget`
or `addons.production.ingest` finishes what a kill cut off.

What still holds them is listed, each with what to do: versions of data sets that DVC keeps here and in its remotes, files
of runs and of MLflow, and adapters that were trained on them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from addons.models.replies import Replies
from addons.production.traces import files, remains, store, tombstones, unchanged
from addons.production.traces.build import Task, build
from addons.production.traces.records import key_of
from addons.production.traces.sources import KINDS, REGRESSION, load_task
from environments.base import Message
from flows.repro import folder_lock
from steps.core import dotenv, params
from steps.core.errors import UserError
from steps.core.files import private_folder, write_text
from steps.core.ports import every, need
from steps.core.progress import say
from steps.core.terminal import command_parser, exit_code
from steps.data.ingested import INGESTED, read_rows
from steps.project.ledger import Ledger

INTENT = tombstones.FOLDER / "intended"  # keys that are being deleted, and the store
KEY = re.compile(rf"(?:{'|'.join(KINDS)}):[0-9a-f]{{16}}")


def run(root: Path, names: list[str], capture: Path) -> list[str]:
    """Delete the conversations; returns the lines of the report. UserError where nothing is known of any of them."""
    need("lineage", "addons.production.forget")
    from addons.lineage import index
    from addons.lineage.questions import data_sets

    keys = keys_of(names)
    settings = params.load(root / "params.yaml", params.Params)
    with folder_lock.held(root, folder_lock.command_line()), Replies() as ledger:
        finish(root, settings, ledger)
        index.add_ingested(root, ledger)  # so that the versions that lie here are listed, too
        was_forgotten = any(tombstones.of(root).holds(key) for key in keys)
        conversations = conversations_of(root, keys, capture)
        private_folder((root / INTENT).parent)
        intent = {"keys": sorted(keys), "capture": os.fspath(capture.absolute())}
        write_text(root / INTENT, json.dumps(intent) + "\n", private=True)
        lines = erase(root, keys, capture, conversations, settings, ledger)
        made = [*made_of(root, keys, ledger), *remains.listed(root, keys, conversations, data_sets(keys, ledger))]
        (root / INTENT).unlink()
    if lines or made:
        return [*lines, *made]
    if was_forgotten:
        return [f"{', '.join(names)}: forgotten before, and nothing of it is left here"]
    raise UserError(
        f"nothing is known of {', '.join(names)}, and nothing by this name is taken in from now on: give the id that the "
        "client or the producer gave, or a key as ingested/ has it"
    )


def keys_of(names: Iterable[str]) -> set[str]:
    """The keys that these conversations can have: a key itself, or that of each producer for an id."""
    return {
        key for name in names for key in ([name] if KEY.fullmatch(name) else [key_of(each, name) for each in KINDS])
    }


def finish(root: Path, settings: params.Params, ledger: Replies) -> None:
    """Finish a deletion that was cut off, and remove what a killed command left in ingested/. The caller holds the folder's
    lock."""
    for folder in folders(root):
        files.tidy(folder)
    if not (root / INTENT).exists():
        return
    intent = json.loads((root / INTENT).read_text(encoding="utf-8"))
    keys, capture = set(intent["keys"]), Path(intent["capture"])
    say("finishing a deletion that was cut off")
    erase(root, keys, capture, conversations_of(root, keys, capture), settings, ledger)
    (root / INTENT).unlink()


def folders(root: Path) -> list[Path]:
    """The ingested folders of all tasks, also where only their DVC file is here, or a kill left them under another name."""
    names = set()
    for path in (root / INGESTED).glob("*"):
        moved = re.fullmatch(r"\.old-\d+\.(.+)", path.name)
        if moved or path.suffix == ".dvc" or (path.is_dir() and path.name[0] != "."):
            names.add(moved[1] if moved else path.name.removesuffix(".dvc"))
    return [root / INGESTED / name for name in sorted(names)]


def conversations_of(root: Path, keys: set[str], capture: Path) -> list[Sequence[Message]]:
    """What was said in these conversations, wherever they are."""
    conversations: list[Sequence[Message]] = [*store.Store(capture).messages_of(keys)] if capture.is_dir() else []
    for folder in folders(root):
        conversations += [each.messages for each in files.read_conversations(folder) if each.key in keys]
    return conversations


def erase(
    root: Path,
    keys: set[str],
    capture: Path,
    conversations: Sequence[Sequence[Message]],
    settings: params.Params,
    ledger: Replies,
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
        files.versioned(root, folder)
    if answers := ledger.forget_texts(remains.texts(conversations)):
        lines.append(f"the ledger: {answers} answers of models to what was said in it deleted")
    for index in every("index"):
        index.add_ingested(root, ledger)
    return lines


def forget(keys: set[str], folder: Path, task: Task, elsewhere: Iterable[Sequence[Message]] = ()) -> dict[str, int]:
    """Delete the conversations with these keys, and those in which the same was said, from the folder ingested/<task> of a
    project; how many rows of each file were of them. `elsewhere`: what other places have of what was said in them."""
    marks, conversations = tombstones.of(folder.parent.parent), files.read_conversations(folder)
    marks.add(keys, [*elsewhere, *(each.messages for each in conversations if each.key in keys)])
    kept = [each for each in conversations if not marks.holds(each.key, each.messages)]
    keys = keys | ({each.key for each in conversations} - {each.key for each in kept})
    names = (*files.SETS, "conversations", "quarantine")
    rows = {name: read_rows(folder / f"{name}.jsonl") for name in names}
    counts = {name: sum(is_of(row, keys) for row in listed) for name, listed in rows.items()}
    if any(counts.values()) or len(kept) < len(conversations):
        unreadable = [row for row in files.read_unreadable(folder) if row.source not in keys]
        state = files.read_state(folder)
        files.write(folder, kept, build(kept, task, state.get("regression", REGRESSION)), unreadable, state)
    return {name: count for name, count in counts.items() if count}


def is_of(row: dict[str, object], keys: set[str]) -> bool:
    """Whether a row of any file of an ingested folder is of one of these conversations."""
    return row.get("source", row.get("key")) in keys or any(key in str(row.get("reason", "")) for key in keys)


def made_of(root: Path, keys: set[str], ledger: Ledger) -> Iterator[str]:
    """A line for each version of a data set that holds one of these conversations, and for each adapter made of them."""
    from addons.lineage.questions import Touched, data_sets, forward

    versions_of_sets = data_sets(keys, ledger)
    for md5, path in versions_of_sets.items():
        yield f"data set {path}, version {md5}, holds it"
    if versions_of_sets:
        command = f".venv/bin/python -m flows.prune --delete --data-set {' '.join(versions_of_sets)}"
        yield f"`{command}` removes those of these versions that no commit and no kept run (refs/runs/) needs"
    adapters: dict[str, Touched] = {}
    for key in sorted(keys):
        try:
            impact = forward("conversation", key, ledger, root)
        except UserError:  # nothing of this key was ever indexed
            continue
        adapters |= {touched.adapter: touched for touched in impact.trained}
    for name, touched in sorted(adapters.items()):
        versions = "".join(f", {version.name} {version.version}" for version in touched.versions)
        yield f"adapter {name}{versions} was made of it ({touched.how}): train again without it"


def main(words: list[str] | None = None) -> int:
    parser = command_parser("addons.production.forget", __doc__)
    parser.add_argument("conversations", nargs="+", metavar="ID")
    parser.add_argument("--capture", type=Path, default=store.FOLDER, help=f"the store (default: {store.FOLDER})")
    options = parser.parse_args(words)
    dotenv.load(Path.cwd())
    return exit_code(lambda: print(*run(Path.cwd(), options.conversations, options.capture), sep="\n"))


if __name__ == "__main__":
    sys.exit(main())
