"""Forget: deletes conversations, and lists every data set and adapter that was made of them.

    python -m addons.production.forget 7b0d1c5e-2f6a     # the id that the client or the producer gave
    python -m addons.production.forget capture:0f3c5a8e9d1b2c47 --capture /srv/capture

They are deleted from the store of captured conversations and from ingested/<task>/ of every task, whose data sets are made
anew, and the ledger's answers of models to what was said in them are. From then on nothing brings them back: no other
export of the same conversation, no feedback on its answers, no old version (addons/production/traces/tombstones.py).
What is intended is written first, so that the next `addons.production.forget` or `addons.production.ingest` finishes
what a kill cut off.

What still holds them is listed, each with what to do: versions of data sets that DVC keeps here and in its remotes, files
of runs and of MLflow, and adapters that were trained on them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from addons.production.forgetting import INTENT, conversations_of, erase, finish, intend
from addons.production.traces import remains, store, tombstones
from addons.production.traces.forget import keys_of
from flows.repro import folder_lock
from steps.core import dotenv, params
from steps.core.errors import UserError
from steps.core.ports import need
from steps.core.terminal import exit_code
from steps.project.ledger import Ledger


def run(root: Path, names: list[str], capture: Path) -> list[str]:
    """Delete the conversations; returns the lines of the report. UserError where nothing is known of any of them."""
    need("lineage", "addons.production.forget")
    from addons.lineage import index
    from addons.lineage.questions import data_sets

    keys = keys_of(names)
    settings = params.load(root / "params.yaml", params.Params)
    with folder_lock.held(root, folder_lock.command_line()), Ledger() as ledger:
        finish(root, settings, ledger)
        index.add_ingested(root, ledger)  # so that the versions that lie here are listed, too
        was_forgotten = any(tombstones.of(root).holds(key) for key in keys)
        conversations = conversations_of(root, keys, capture)
        intend(root, keys, capture)
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
    parser = argparse.ArgumentParser(
        prog="python -m addons.production.forget", description=(__doc__ or "").split("\n\n")[0]
    )
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
