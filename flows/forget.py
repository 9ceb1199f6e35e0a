"""Forget: deletes conversations, and lists every data set and adapter that was made of them.

    python -m flows.forget 7b0d1c5e-2f6a     # the id that the client or the producer gave
    python -m flows.forget capture:0f3c5a8e9d1b2c47 --capture /srv/capture

They are deleted from the store of captured conversations and from ingested/<task>/ of every task, whose data sets are made
anew, and the ledger's answers of models to what was said in them are. From then on nothing brings them back: no other
export of the same conversation, no feedback on its answers, no old version (steps/traces/tombstones.py). What is intended is
written first, so that the next `flows.forget` or `flows.ingest` finishes what a kill cut off.

What still holds them is listed, each with what to do: versions of data sets that DVC keeps here and in its remotes, files
of runs and of MLflow, and adapters that were trained on them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from environments.base import Message
from flows.repro import folder_lock
from flows.repro.versioned import versioned
from steps.core import dotenv, params
from steps.core.errors import UserError
from steps.core.files import private_folder, write_text
from steps.core.progress import say
from steps.core.terminal import exit_code
from steps.lineage.index import add_ingested
from steps.lineage.questions import Touched, data_sets, forward
from steps.project.ledger import Ledger
from steps.traces import files, remains, store, tombstones, unchanged
from steps.traces.forget import forget, keys_of
from steps.traces.sources import load_task

INTENT = tombstones.FOLDER / "intended"  # keys that are being deleted, and the store


def run(root: Path, names: list[str], capture: Path) -> list[str]:
    """Delete the conversations; returns the lines of the report. UserError where nothing is known of any of them."""
    keys = keys_of(names)
    settings = params.load(root / "params.yaml", params.Params)
    with folder_lock.held(root, folder_lock.command_line()), Ledger() as ledger:
        finish(root, settings, ledger)
        add_ingested(root, ledger)  # so that the versions that lie here are listed, too
        was_forgotten = any(tombstones.of(root).holds(key) for key in keys)
        said = said_in(root, keys, capture)
        intend(root, keys, capture)
        lines = erase(root, keys, capture, said, settings, ledger)
        made = [*made_of(root, keys, ledger), *remains.listed(root, keys, said, data_sets(keys, ledger))]
        (root / INTENT).unlink()
    if lines or made:
        return [*lines, *made]
    if was_forgotten:
        return [f"{', '.join(names)}: forgotten before, and nothing of it is left here"]
    raise UserError(
        f"nothing is known of {', '.join(names)}, and nothing by this name is taken in from now on: give the id that the "
        "client or the producer gave, or a key as ingested/ has it"
    )


def said_in(root: Path, keys: set[str], capture: Path) -> list[Sequence[Message]]:
    """What was said in these conversations, wherever they are."""
    said: list[Sequence[Message]] = [*store.Store(capture).said(keys)] if capture.is_dir() else []
    for folder in folders(root):
        said += [each.messages for each in files.read_conversations(folder) if each.key in keys]
    return said


def intend(root: Path, keys: set[str], capture: Path) -> None:
    """Write what is about to be deleted. UserError where a task's folder is not here, before anything is deleted."""
    private_folder((root / INTENT).parent)
    intent = {"keys": sorted(keys), "capture": os.fspath(capture)}
    write_text(root / INTENT, json.dumps(intent) + "\n", private=True)


def finish(root: Path, settings: params.Params, ledger: Ledger) -> None:
    """Finish a deletion that was cut off, and remove what a killed command left in ingested/. The caller holds the lock."""
    for folder in folders(root):
        files.tidy(folder)
    if not (root / INTENT).exists():
        return
    intent = json.loads((root / INTENT).read_text(encoding="utf-8"))
    keys, capture = set(intent["keys"]), Path(intent["capture"])
    say("finishing a deletion that was cut off")
    erase(root, keys, capture, said_in(root, keys, capture), settings, ledger)
    (root / INTENT).unlink()


def erase(
    root: Path,
    keys: set[str],
    capture: Path,
    said: Sequence[Sequence[Message]],
    settings: params.Params,
    ledger: Ledger,
) -> list[str]:
    """Delete the conversations with these keys, and those in which the same was said; a line for each place."""
    tombstones.of(root).add(keys, said)
    (root / unchanged.KEPT).unlink(missing_ok=True)  # what the last ingestion said, which may name them
    records = store.Store(capture).erase(keys, said) if capture.is_dir() else 0
    lines = [f"{capture}: {records} records deleted"] if records else []
    for folder in folders(root):
        task = load_task(root, settings.model_copy(update={"task": folder.name}))
        counts = forget(keys, folder, task, said)
        lines += [f"{folder.relative_to(root)}/{name}.jsonl: {count} rows deleted" for name, count in counts.items()]
        versioned(root, folder)
    if answers := ledger.forget_texts(remains.texts(said)):
        lines.append(f"the ledger: {answers} answers of models to what was said in it deleted")
    add_ingested(root, ledger)
    return lines


def folders(root: Path) -> list[Path]:
    """The ingested folders of all tasks, also where only their DVC file is here."""
    paths = (root / files.FOLDER).glob("*")
    names = {path.name.removesuffix(".dvc") for path in paths if path.is_dir() or path.suffix == ".dvc"}
    return [root / files.FOLDER / name for name in sorted(names) if not name.startswith(".")]


def made_of(root: Path, keys: set[str], ledger: Ledger) -> Iterator[str]:
    """A line for each version of a data set that holds one of these conversations, and for each adapter made of them."""
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
    parser = argparse.ArgumentParser(prog="python -m flows.forget", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("conversations", nargs="+", metavar="ID")
    parser.add_argument("--capture", type=Path, default=store.FOLDER, help=f"the store (default: {store.FOLDER})")
    options = parser.parse_args(words)
    dotenv.load(Path.cwd())

    def work() -> None:
        for line in run(Path.cwd(), options.conversations, options.capture):
            print(line)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
