"""The ledger: a database for what costs something to make again, such as the answers of models (steps/llm/client.py).

It is `.flywheel/ledger.db` (SQLite) by default. FLYWHEEL_LEDGER_URL names another by SQLAlchemy's syntax; for a team this is
`postgresql://user:password@host/flywheel` (with psycopg 3). Several processes may use a ledger at the same time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable

from steps.core.errors import UserError

DEFAULT = "sqlite:///.flywheel/ledger.db"
PATIENCE = 30  # seconds to wait for another process's lock
LOCK = 0x_F1E1_4EE1  # the PostgreSQL advisory lock for creating tables: an arbitrary number

REPLIES = sa.Table(
    "replies",
    sa.MetaData(),
    sa.Column("key", sa.String(64), primary_key=True),  # a hash of the request's content
    sa.Column("model", sa.String, nullable=False),
    sa.Column("request", sa.JSON, nullable=False),  # the body as it was sent, without address, headers and keys
    sa.Column("reply", sa.JSON, nullable=False),
    sa.Column("input_tokens", sa.Integer, nullable=False),
    sa.Column("output_tokens", sa.Integer, nullable=False),
    sa.Column("cost", sa.Float, nullable=False),  # at the prices of that time
    sa.Column("latency_seconds", sa.Float, nullable=False),  # of the successful attempt
    sa.Column("retries", sa.Integer, nullable=False),
    sa.Column("created", sa.DateTime(timezone=True), nullable=False),
)


class Ledger:
    """An open ledger, used as `with Ledger() as ledger:`. UserError where it cannot be opened."""

    def __init__(self, url: str | None = None) -> None:
        url = url or os.environ.get("FLYWHEEL_LEDGER_URL") or DEFAULT
        shown = "FLYWHEEL_LEDGER_URL"
        try:
            parsed = sa.make_url(url)
            shown = parsed.render_as_string(hide_password=True)
            if parsed.drivername == "postgresql":  # SQLAlchemy 2.0 would use psycopg 2
                parsed = parsed.set(drivername="postgresql+psycopg")
            if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
                Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
            self.engine = sa.create_engine(parsed)
            if parsed.get_backend_name() == "sqlite":
                sa.event.listen(self.engine, "connect", _several_processes)
            with self.engine.begin() as connection:
                create(connection, REPLIES)
        except ModuleNotFoundError as problem:
            raise UserError(f"the ledger {shown} needs the package {problem.name}: install it (psycopg: 3)") from None
        except (SQLAlchemyError, OSError) as problem:
            reason = str(problem).strip().splitlines()[0]
            raise UserError(f"the ledger {shown} cannot be opened ({reason}); see FLYWHEEL_LEDGER_URL") from None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.dispose()

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored answer to a request, as a row of `replies`; None where there is none."""
        with self.engine.connect() as connection:
            row = connection.execute(sa.select(REPLIES).where(REPLIES.c.key == key)).mappings().first()
        return dict(row) if row else None

    def put(self, row: dict[str, Any]) -> dict[str, Any]:
        """Store an answer, and return the stored row: that of another process, where it stored one first."""
        with contextlib.suppress(IntegrityError), self.engine.begin() as connection:
            connection.execute(REPLIES.insert().values(created=datetime.now(UTC), **row))
        stored = self.get(row["key"])
        assert stored is not None
        return stored

    def forget(self, keys: Iterable[str]) -> None:
        """Remove answers, so that they are asked for again."""
        with self.engine.begin() as connection:
            for key in keys:
                connection.execute(REPLIES.delete().where(REPLIES.c.key == key))


def create(connection: sa.Connection, *parts: sa.Table | sa.Index) -> None:
    """Create tables and indexes that do not exist yet.

    PostgreSQL's IF NOT EXISTS fails where two processes create the same table, so that creating needs a lock. A process for
    which all tables exist does not take it, and so does not wait for a long transaction of another.
    """
    if connection.dialect.name == "postgresql":
        tables = sa.inspect(connection)
        if all(tables.has_table(part.name) for part in parts if isinstance(part, sa.Table)):
            return
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
    for part in parts:
        statement: Any = CreateIndex if isinstance(part, sa.Index) else CreateTable
        connection.execute(statement(part, if_not_exists=True))


def _several_processes(connection: sqlite3.Connection, _: object) -> None:
    """Set SQLite up for several processes: readers wait for nobody, writers wait for each other, commits are quick.

    SQLite itself waits for every lock except that for changing a new file to a write-ahead log, hence the loop.
    """
    connection.execute(f"PRAGMA busy_timeout={PATIENCE * 1000}")
    until = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as problem:
            if "locked" not in str(problem) or time.monotonic() > until:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous=NORMAL")
