"""Forget: deletes conversations, and lists every data set and adapter that was made of them.

    python -m flows.forget 7b0d1c5e-2f6a     # the id that the client or the producer gave
    python -m flows.forget capture:0f3c5a8e9d1b2c47 --capture /srv/capture

They are deleted from the store of captured conversations and from ingested/<task>/ of every task, whose data sets are made
anew. Versions of these that DVC keeps, and adapters that were trained on them, are listed by the ledger's lineage: the
command that is printed removes the first as soon as no commit and no kept run needs them, and another training without them
replaces the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from flows.repro import folder_lock
from flows.repro.versioned import versioned
from steps.core import dotenv, params
from steps.core.errors import UserError
from steps.core.terminal import exit_code
from steps.lineage.index import add_ingested
from steps.lineage.questions import Touched, data_sets, forward
from steps.project.ledger import Ledger
from steps.traces import files, store
from steps.traces.forget import forget, keys_of
from steps.traces.sources import load_task


def run(root: Path, names: list[str], capture: Path) -> list[str]:
    """Delete the conversations; returns the lines of the report. UserError where nothing is known of any of them."""
    keys = keys_of(names)
    settings = params.load(root / "params.yaml", params.Params)
    with folder_lock.held(root, folder_lock.command_line()), Ledger() as ledger:
        add_ingested(root, ledger)  # so that the versions that lie here are listed, too
        records = store.Store(capture).erase(keys) if capture.is_dir() else 0
        lines = [f"{capture}: {records} records deleted"] if records else []
        versions = {path.with_suffix("") for path in (root / files.FOLDER).glob("*.dvc")}
        for folder in sorted(versions | {path for path in (root / files.FOLDER).glob("*") if path.is_dir()}):
            files.read_conversations(folder)  # which says so where only its DVC file is here
            task = load_task(root, settings.model_copy(update={"task": folder.name}))
            counts = forget(keys, folder, task)
            lines += [
                f"{folder.relative_to(root)}/{name}.jsonl: {count} rows deleted" for name, count in counts.items()
            ]
            if counts:
                versioned(root, folder)
        add_ingested(root, ledger)
        made = list(made_of(root, keys, ledger))
    if not lines and not made:
        advice = "give the id that the client or the producer gave, or a key as ingested/ has it"
        raise UserError(f"nothing is known of {', '.join(names)}: {advice}")
    return [*lines, *made]


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
