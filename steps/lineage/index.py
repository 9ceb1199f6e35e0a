"""Adds what a project's folder holds to the lineage index, or makes the index anew from files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.schema import DropTable

from steps.lineage.reader import Reader, judged
from steps.lineage.tables import BY_CHILD, EDGES, NODES, Rows, _write, changing, runs
from steps.project.ledger import Ledger, create
from steps.registry import decisions


class Indexed(NamedTuple):
    """What an indexing did."""

    nodes: int  # rows added
    edges: int
    left_out: list[str]  # what was missing, or is not what dvc.lock recorded, and what that leaves unlinked


# --- From rows to the ledger


def index(root: Path, ledger: Ledger, iterations: Sequence[str] | None = None) -> Indexed:
    """Add what a project's folder holds, in one transaction; of `iterations` these alone, as a flow does that made one."""
    with changing(ledger) as link:
        return _add(link, [root], runs(link), iterations)


def add_verdict(root: Path, ledger: Ledger, path: str) -> Indexed:
    """Add the verdict in a folder of run/promote, at once: the flow that gave it."""
    with changing(ledger) as link:
        reader = Reader(root.resolve(), runs(link))
        nodes, edges = _write(link, reader.verdict(path))
        return Indexed(nodes, edges, reader.left_out)


def rebuild(roots: Sequence[Path], ledger: Ledger) -> tuple[Indexed, dict[str, dict[str, Any]]]:
    """Make the index anew of these folders alone; returns the runs that it no longer has as well. All of it or nothing."""
    with changing(ledger) as link:
        known = runs(link)
        for table in (EDGES, NODES):
            link.execute(DropTable(table))
        create(link, NODES, EDGES, BY_CHILD)
        indexed = _add(link, roots, known, None)
        for found in decisions.evidence(link):  # of folders that may be gone
            rows = Rows()
            judged(rows, found)
            added = _write(link, rows)
            indexed = Indexed(indexed.nodes + added[0], indexed.edges + added[1], indexed.left_out)
        left = runs(link)
    return indexed, {key: data for key, data in known.items() if key not in left}


def _add(
    link: sa.Connection, roots: Iterable[Path], known: Mapping[str, dict[str, Any]], iterations: Sequence[str] | None
) -> Indexed:
    nodes = edges = 0
    left_out: list[str] = []
    roots = list(roots)
    for root in roots:
        reader = Reader(root.resolve(), known)
        for rows in reader.parts(iterations):
            added = _write(link, rows)
            nodes, edges = nodes + added[0], edges + added[1]
        left_out += [f"{root}: {text}" if len(roots) > 1 else text for text in reader.left_out]
    return Indexed(nodes, edges, left_out)
