"""Adds what a project's folder holds to the lineage index, or builds the index anew from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from addons.lineage.ingested import ingested
from addons.lineage.reader import Reader, add_evidence
from addons.lineage.tables import EDGES, NODES, Rows, runs, write
from steps.project.ledger import Ledger
from steps.project.lock import read_lock
from steps.registry import decisions


class Indexed(NamedTuple):
    """The result of an indexing."""

    nodes: int  # rows added
    edges: int
    left_out: list[str]  # what was missing, or is not what dvc.lock recorded, and what stays unlinked by that


def index(root: Path, ledger: Ledger, iterations: Sequence[str] | None = None) -> Indexed:
    """Add what a project's folder holds, in one transaction. `iterations`: only these, as a flow does after each."""
    return _read(root, ledger, lambda reader: reader.parts(iterations))


def add_verdict(root: Path, ledger: Ledger, path: str) -> Indexed:
    """Add the verdict in a folder of run/promote, as the flow does that gave it."""
    return _read(root, ledger, lambda reader: [reader.verdict(path)])


def _read(root: Path, ledger: Ledger, parts: Callable[[Reader], Iterable[Rows]]) -> Indexed:
    def add(connection: sa.Connection) -> Indexed:
        reader = Reader(root.resolve(), runs(connection))
        return _add(connection, parts(reader), reader.left_out)

    return ledger.change(add)


def add_ingested(root: Path, ledger: Ledger) -> Indexed:
    """Add the ingested folders, as addons.production.ingest does after each ingestion."""
    return ledger.change(lambda connection: _add(connection, [ingested(root.resolve(), read_lock(root))], []))


def names(ledger: Ledger) -> set[str]:
    """The ids of files, and what edges say of adapters: md5s are among them."""
    with ledger.reading() as connection:
        ids = set(connection.scalars(sa.select(NODES.c.id).where(NODES.c.kind.not_in(("scenario", "trajectory")))))
        made = connection.scalars(sa.select(EDGES.c.data).where(EDGES.c.role == "made"))
        return ids | {str(data["md5"]) for data in made if data.get("md5")}


def rebuild(roots: Sequence[Path], ledger: Ledger) -> tuple[Indexed, dict[str, dict[str, Any]]]:
    """Build the index anew from these folders alone, in one transaction; returns the runs that it lost as well."""

    def replace(connection: sa.Connection) -> tuple[Indexed, dict[str, dict[str, Any]]]:
        before = runs(connection)
        for table in (EDGES, NODES):
            connection.execute(table.delete())
        decided = Rows()
        for evidence in decisions.evidence(connection):  # their folders may be gone
            add_evidence(decided, evidence)
        readers = [Reader(root.resolve(), before) for root in roots]
        parts = chain(*(reader.parts(None) for reader in readers), [decided])
        indexed = _add(connection, parts, [])
        after = runs(connection)
        for root, reader in zip(roots, readers, strict=True):
            indexed.left_out.extend(f"{root}: {text}" if len(roots) > 1 else text for text in reader.left_out)
        return indexed, {key: data for key, data in before.items() if key not in after}

    return ledger.change(replace)


def _add(connection: sa.Connection, parts: Iterable[Rows], left_out: list[str]) -> Indexed:
    added = [write(connection, rows) for rows in parts]
    return Indexed(sum(nodes for nodes, _ in added), sum(edges for _, edges in added), left_out)
