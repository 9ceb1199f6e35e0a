"""The lineage index in the ledger: its two tables, and how rows are added and read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from steps.core.errors import UserError
from steps.project.ledger import Ledger

META = sa.MetaData()
NODES = sa.Table(
    "nodes",
    META,
    sa.Column("kind", sa.String, primary_key=True),
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("data", sa.JSON, nullable=False),
)
EDGES = sa.Table(
    "edges",
    META,
    sa.Column("parent_kind", sa.String, primary_key=True),
    sa.Column("parent_id", sa.String, primary_key=True),
    sa.Column("role", sa.String, primary_key=True),
    sa.Column("child_kind", sa.String, primary_key=True),
    sa.Column("child_id", sa.String, primary_key=True),
    sa.Column("data", sa.JSON, nullable=False),
)
sa.Index("edges_by_child", EDGES.c.child_kind, EDGES.c.child_id)

KINDS = """scenario trajectory batch judge reply judgement rewards adapter run
    evaluation metrics receipt verdict conversation dataset""".split()
PLAYERS = ("scripted", "random")  # written in place of an adapter's hash by evaluations without a policy
WITHOUT_EFFECT = ("beside", "probed")  # roles of edges on which no reward depends
UNLINKED = "nothing that is indexed says what was used to make the adapter"
SHORT = 12  # hex digits of a file's md5 in the ids of what the file holds

NodeKey = tuple[str, str]  # (kind, id)


class Rows:
    """The nodes and edges of one part of a run, without duplicates."""

    def __init__(self) -> None:
        self.nodes: dict[NodeKey, dict[str, Any]] = {}
        self.edges: dict[tuple[str, str, str, str, str], dict[str, Any]] = {}

    def node(self, key: NodeKey, **data: Any) -> NodeKey:
        self.nodes[key] = data
        return key

    def edge(self, parent: NodeKey, role: str, child: NodeKey, **data: Any) -> None:
        self.edges[(*parent, role, *child)] = data


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """The values as a JSON column can hold them: NaN and infinities, which databases refuse, become text."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


def runs(connection: sa.Connection) -> dict[str, dict[str, Any]]:
    """The data of every indexed run, by its key."""
    rows = connection.execute(sa.select(NODES.c.id, NODES.c.data).where(NODES.c.kind == "run").order_by(NODES.c.id))
    return {row.id: row.data for row in rows}


def counts(ledger: Ledger) -> dict[str, int]:
    """The number of nodes of each kind, and of `edges`."""
    with reading(ledger) as connection:
        kinds = sa.select(NODES.c.kind, sa.func.count()).group_by(NODES.c.kind).order_by(NODES.c.kind)
        edges = connection.execute(sa.select(sa.func.count()).select_from(EDGES)).scalar_one()
        return {row[0]: row[1] for row in connection.execute(kinds)} | {"edges": edges}


def write(connection: sa.Connection, rows: Rows) -> tuple[int, int]:
    """Add the rows that are new; returns how many (nodes, edges) that were."""
    nodes = [{"kind": kind, "id": name, "data": data} for (kind, name), data in sorted(rows.nodes.items())]
    names = ("parent_kind", "parent_id", "role", "child_kind", "child_id")
    edges = [dict(zip(names, ends, strict=True)) | {"data": data} for ends, data in sorted(rows.edges.items())]
    return _insert(connection, NODES, nodes), _insert(connection, EDGES, edges)


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> int:
    """Add the rows that are new; returns how many. They come sorted, so that two processes never deadlock."""
    if not rows:
        return 0
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    added = dialect.insert(table).on_conflict_do_nothing().returning(sa.literal(1))  # a thousand rows per statement
    return len(connection.execute(added, rows).all())


@contextmanager
def reading(ledger: Ledger) -> Iterator[sa.Connection]:
    """A connection for reading; UserError where nothing was ever indexed."""
    with ledger.reading() as connection:
        if connection.execute(sa.select(NODES.c.id).limit(1)).first() is None:
            raise UserError(
                "the ledger has no lineage yet: `.venv/bin/python -m addons.lineage index` adds what run/ holds"
            )
        yield connection
