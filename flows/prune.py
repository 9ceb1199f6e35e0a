"""Prune: frees disk space in DVC's cache of what no run needs any more. A dry run unless --delete is given.

    python -m flows.prune                  # what would go, and how many bytes that is
    python -m flows.prune --delete         # delete it
    python -m flows.prune --last 3         # of each kept run the last three checkpoints stay, not only the last one
    python -m flows.prune --data-set 6f1e…  # only this version of what was ingested, as make forget lists it

Of a kept run the best iteration's checkpoint and the last one stay, those of registered adapters, and those that a
params.yaml starts from. Everything else of it stays as well: adapters, trajectories, rewards, evaluations. What no git
revision, worktree, registered version or lineage names goes (flows/deployment/pruning.py). A version that --data-set names
goes though the lineage names it. It does not run beside a command that writes.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from flows.deployment import pruning
from flows.repro import folder_lock
from steps.core import dotenv
from steps.core.errors import UserError
from steps.core.terminal import command_parser, exit_code
from steps.project.git import git
from steps.project.ledger import Ledger
from steps.registry.model import versions

LISTED = 10  # largest files that are printed one by one


def prune(root: Path, last: int = 1, delete: bool = False, data_sets: Sequence[str] = ()) -> dict[str, str]:
    """Delete what can go from the cache of the project in `root`, or with `delete` off only say it; md5 -> why it can go.

    With `data_sets`, md5s of versions of ingested data sets, only these."""
    with contextlib.ExitStack() as others:
        for folder in pruning.worktrees(root):  # what runs there names files only when it has written them
            others.enter_context(folder_lock.held(folder, folder_lock.command_line()))
        cache = pruning.read_cache(root)
        with Ledger() as ledger:
            indexed = pruning.indexed(ledger)
        registered = {version.adapter_hash for version in versions(root)}
        needed = indexed.difference(data_sets)
        removable = pruning.removable(cache, pruning.snapshots(root), needed, registered, last)
        if data_sets:
            removable = only(cache, removable, data_sets)
        report(cache, removable)
        if not delete:
            print("nothing was deleted; `.venv/bin/python -m flows.prune --delete` does it")
        elif removable:
            print(f"deleted: {size(pruning.remove(cache, removable))} are free")
    return removable


def only(cache: pruning.Cache, removable: dict[str, str], data_sets: Sequence[str]) -> dict[str, str]:
    """Of what can go the files of these versions. Says which of them cannot."""
    for md5 in data_sets:
        if md5 in cache.sizes and md5 not in removable:
            print(f"{md5} stays: a commit, a worktree, a kept run (refs/runs/) or a registered version needs it")
    return {md5: why for md5, why in removable.items() if md5 in pruning.whole(cache, data_sets)}


def report(cache: pruning.Cache, removable: dict[str, str]) -> None:
    """Print the largest files, and the number and bytes of each kind."""
    for md5 in sorted(removable, key=lambda name: -cache.sizes[name])[:LISTED]:
        print(f"{size(cache.sizes[md5]):>10}  {md5}  {removable[md5]}")
    counts, sizes = Counter(removable.values()), Counter[str]()
    for md5, why in removable.items():
        sizes[why] += cache.sizes[md5]
    for why, count in sorted(counts.items()):
        print(f"{count} files, {size(sizes[why])}: {why}")
    stays = sum(cache.sizes.values()) - sum(sizes.values())
    print(f"{size(sum(sizes.values()))} can go, {size(stays)} stay in {cache.root}")


def size(count: int) -> str:
    """Bytes, for a person."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count:,} bytes"


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.prune", __doc__)
    parser.add_argument("--delete", action="store_true", help="delete it; without this nothing changes")
    parser.add_argument("--last", type=int, default=1, metavar="N", help="last checkpoints of each kept run that stay")
    parser.add_argument("--data-set", nargs="+", default=[], metavar="MD5", help="only these versions of ingested data")
    options = parser.parse_args(words)

    def work() -> None:
        if options.last < 0:
            raise UserError(f"--last {options.last}: give 0 or more")
        dotenv.load(Path.cwd())
        root = Path(git(Path.cwd(), "rev-parse", "--path-format=absolute", "--git-common-dir")).parent
        prune(root, options.last, options.delete, options.data_set)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
