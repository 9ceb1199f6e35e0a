"""The ledger: a database of what cannot be had again for nothing. Now: the answers of models that were asked
(steps/llm/client.py).

`.flywheel/ledger.db` (SQLite) by default; FLYWHEEL_LEDGER_URL names another, as SQLAlchemy writes it: for a team,
`postgresql://user:password@host/flywheel` (needs psycopg 3). Several processes may use one ledger at once.
"""

from __future__ import annotations

import os
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    inspect,
    select,
)
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable

from steps.core.errors import UserError

DEFAULT = "sqlite:///.flywheel/ledger.db"
PATIENCE = 30  # seconds for another process's lock
LOCK = 0x_F1E1_4EE1  # PostgreSQL's lock of those who create tables: any number that is ours

REPLIES = Table(
    "replies",
    MetaData(),
    Column("key", String(64), primary_key=True),  # of the content of the request
    Column("model", String, nullable=False),
    Column("request", JSON, nullable=False),  # the body as it was sent: no address, no header, no key of an account
    Column("reply", JSON, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cost", Float, nullable=False),  # at the prices of that day
    Column("latency_seconds", Float, nullable=False),  # of the attempt that was answered
    Column("retries", Integer, nullable=False),
    Column("created", DateTime(timezone=True), nullable=False),
)


class Ledger:
    """An open ledger; `with Ledger() as ledger:`. UserError where it cannot be opened."""

    def __init__(self, url: str | None = None) -> None:
        url = url or os.environ.get("FLYWHEEL_LEDGER_URL") or DEFAULT
        shown = "FLYWHEEL_LEDGER_URL"
        try:
            parsed = make_url(url)
            shown = parsed.render_as_string(hide_password=True)
            if parsed.drivername == "postgresql":  # SQLAlchemy 2.0 would take psycopg 2
                parsed = parsed.set(drivername="postgresql+psycopg")
            if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
                Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
            self.engine = create_engine(parsed)
            if parsed.get_backend_name() == "sqlite":
                event.listen(self.engine, "connect", _several_processes)
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
        """The stored answer to a request: a row of `replies`."""
        with self.engine.connect() as connection:
            return _row(connection, key)

    def put(self, row: dict[str, Any]) -> dict[str, Any]:
        """Store an answer for good, and return what is stored: the first one, where another process was quicker."""
        try:
            with self.engine.begin() as connection:
                connection.execute(REPLIES.insert().values(created=datetime.now(UTC), **row))
                found = _row(connection, row["key"])
        except IntegrityError:
            found = self.get(row["key"])
        assert found is not None
        return found


def _row(connection: Connection, key: str) -> dict[str, Any] | None:
    found = connection.execute(select(REPLIES).where(REPLIES.c.key == key)).mappings().first()
    return dict(found) if found else None


def create(connection: Connection, *parts: Table | Index) -> None:
    """Tables and their indexes, where they are not there yet.

    PostgreSQL's IF NOT EXISTS fails where two processes meet at it: who misses a table waits for others who create, and
    nobody else waits for a long transaction.
    """
    if connection.dialect.name == "postgresql":
        there = inspect(connection)
        if all(there.has_table(part.name) for part in parts if isinstance(part, Table)):
            return
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
    for part in parts:
        connection.execute(
            CreateIndex(part, if_not_exists=True) if isinstance(part, Index) else CreateTable(part, if_not_exists=True)
        )


def _several_processes(connection: sqlite3.Connection, _: object) -> None:
    """SQLite: readers do not wait for the writer, writers wait for each other, a commit costs no millisecond.

    SQLite waits for every lock but the one with which a new file becomes one with a write-ahead log.
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
