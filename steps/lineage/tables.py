"""The lineage index in the ledger: its two tables, and how rows are added and read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from steps.core.errors import UserError
from steps.project.ledger import Ledger, create

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
BY_CHILD = sa.Index("edges_by_child", EDGES.c.child_kind, EDGES.c.child_id)

KINDS = """scenario trajectory batch judge reply judgement rewards adapter run
    evaluation metrics receipt verdict""".split()
PLAYERS = ("scripted", "random")  # stand in the place of an adapter's hash
WITHOUT_EFFECT = ("beside", "probed")  # roles: asked of a judge, but no reward depends on it
UNLINKED = "nothing that is indexed says what was used to make the adapter"
SHORT = 12  # hex digits of a file's md5 in the id of something in it

Thing = tuple[str, str]  # (kind, id)


# --- From files to rows


class Rows:
    """Nodes and edges of one part of a run, each once."""

    def __init__(self) -> None:
        self.nodes: dict[Thing, dict[str, Any]] = {}
        self.edges: dict[tuple[str, str, str, str, str], dict[str, Any]] = {}

    def node(self, thing: Thing, **data: Any) -> Thing:
        self.nodes[thing] = data
        return thing

    def edge(self, parent: Thing, role: str, child: Thing, **data: Any) -> None:
        self.edges[(*parent, role, *child)] = data


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """As sa.JSON has it: a database takes no NaN."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


def runs(link: sa.Connection) -> dict[str, dict[str, Any]]:
    found = link.execute(sa.select(NODES.c.id, NODES.c.data).where(NODES.c.kind == "run").order_by(NODES.c.id))
    return {row.id: row.data for row in found}


def counts(ledger: Ledger) -> dict[str, int]:
    """Nodes by kind, and `edges`."""
    with reading(ledger) as link:
        by_kind = link.execute(sa.select(NODES.c.kind, sa.func.count()).group_by(NODES.c.kind).order_by(NODES.c.kind))
        edges = link.execute(sa.select(sa.func.count()).select_from(EDGES)).scalar_one()
        return {row[0]: row[1] for row in by_kind} | {"edges": edges}


def _write(link: sa.Connection, rows: Rows) -> tuple[int, int]:
    """(nodes, edges) that were not there."""
    found = [{"kind": kind, "id": name, "data": data} for (kind, name), data in sorted(rows.nodes.items())]
    nodes = _insert(link, NODES, found)
    names = ("parent_kind", "parent_id", "role", "child_kind", "child_id")
    links = [dict(zip(names, ends, strict=True)) | {"data": data} for ends, data in sorted(rows.edges.items())]
    return nodes, _insert(link, EDGES, links)


def _insert(link: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> int:
    """Add those that are not there; returns how many. They are in order: two processes never lock each other out."""
    if not rows:
        return 0
    dialect = postgresql if link.dialect.name == "postgresql" else sqlite
    added = dialect.insert(table).on_conflict_do_nothing().returning(sa.literal(1))  # a thousand rows a statement
    return len(link.execute(added, rows).all())


@contextmanager
def changing(ledger: Ledger) -> Iterator[sa.Connection]:
    """A transaction in which the two tables exist."""
    with ledger.engine.begin() as link:
        if link.dialect.name == "sqlite":
            link.exec_driver_sql("BEGIN IMMEDIATE")  # else Python's driver would commit a DROP at once
        create(link, NODES, EDGES, BY_CHILD)
        yield link


@contextmanager
def reading(ledger: Ledger) -> Iterator[sa.Connection]:
    """UserError where nothing was ever indexed."""
    with ledger.engine.connect() as link:
        if not all(sa.inspect(link).has_table(table.name) for table in (NODES, EDGES)):
            raise UserError("the ledger has no lineage yet: `python -m steps.lineage index` adds what run/ holds")
        yield link
