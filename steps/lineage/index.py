"""Adds what a project's folder holds to the lineage index, or builds the index anew from files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.schema import DropTable

from steps.lineage.reader import Reader, add_evidence
from steps.lineage.tables import BY_CHILD, EDGES, NODES, Rows, changing, runs, write
from steps.project.ledger import Ledger, create
from steps.registry import decisions


class Indexed(NamedTuple):
    """The result of an indexing."""

    nodes: int  # rows added
    edges: int
    left_out: list[str]  # what was missing, or is not what dvc.lock recorded, and what stays unlinked by that


def index(root: Path, ledger: Ledger, iterations: Sequence[str] | None = None) -> Indexed:
    """Add what a project's folder holds, in one transaction. `iterations`: only these, as a flow does after each."""
    with changing(ledger) as connection:
        return _add(connection, [root], runs(connection), iterations)


def add_verdict(root: Path, ledger: Ledger, path: str) -> Indexed:
    """Add the verdict in a folder of run/promote, as the flow does that gave it."""
    with changing(ledger) as connection:
        reader = Reader(root.resolve(), runs(connection))
        nodes, edges = write(connection, reader.verdict(path))
        return Indexed(nodes, edges, reader.left_out)


def rebuild(roots: Sequence[Path], ledger: Ledger) -> tuple[Indexed, dict[str, dict[str, Any]]]:
    """Build the index anew from these folders alone, in one transaction; returns the runs that it lost as well."""
    with changing(ledger) as connection:
        before = runs(connection)
        for table in (EDGES, NODES):
            connection.execute(DropTable(table))
        create(connection, NODES, EDGES, BY_CHILD)
        indexed = _add(connection, roots, before, None)
        for evidence in decisions.evidence(connection):  # their folders may be gone
            rows = Rows()
            add_evidence(rows, evidence)
            nodes, edges = write(connection, rows)
            indexed = Indexed(indexed.nodes + nodes, indexed.edges + edges, indexed.left_out)
        after = runs(connection)
    return indexed, {key: data for key, data in before.items() if key not in after}


def _add(
    connection: sa.Connection,
    roots: Iterable[Path],
    runs: Mapping[str, dict[str, Any]],
    iterations: Sequence[str] | None,
) -> Indexed:
    nodes = edges = 0
    left_out: list[str] = []
    roots = list(roots)
    for root in roots:
        reader = Reader(root.resolve(), runs)
        for rows in reader.parts(iterations):
            added = write(connection, rows)
            nodes, edges = nodes + added[0], edges + added[1]
        left_out += [f"{root}: {text}" if len(roots) > 1 else text for text in reader.left_out]
    return Indexed(nodes, edges, left_out)
