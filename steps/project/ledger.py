"""The ledger: a database for what costs something to make again, such as the answers of models (steps/llm/client.py).

It is `.flywheel/ledger.db` (SQLite) by default. FLYWHEEL_LEDGER_URL names another by SQLAlchemy's syntax; for a team this is
`postgresql://user:password@host/flywheel` (with psycopg 3). Several processes may use a ledger at the same time. A database
that is locked, or that is being started again, is waited for.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable

from steps.core.errors import UserError
from steps.core.progress import say

T = TypeVar("T")
DEFAULT = "sqlite:///.flywheel/ledger.db"
PATIENCE = 30.0  # seconds to wait for another process's lock, or for a server that is away
QUIET = 2.0  # of those, the seconds that pass without a message
# What databases say when the same may succeed a little later. The last one is of a server's socket in a folder.
PASSING = (
    *(
        "locked",
        "refused",
        "starting up",
        "shutting down",
        "recovery mode",
        "timeout expired",
        "no such file or directory",
    ),
    *("closed the connection", "terminating connection", "connection is lost", "connection is closed"),
)
# A PostgreSQL server that vanishes without a word is noticed within half a minute.
POSTGRESQL = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
POSTGRESQL |= {"tcp_user_timeout": 20_000}
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
    """An open ledger, used as `with Ledger() as ledger:`. UserError where it cannot be opened, read or written.

    It is waited for up to `patience` seconds.
    """

    def __init__(self, url: str | None = None, patience: float = PATIENCE) -> None:
        url = url or os.environ.get("FLYWHEEL_LEDGER_URL") or DEFAULT
        self.shown, self.patience = "FLYWHEEL_LEDGER_URL", patience
        try:
            parsed = sa.make_url(url)
            self.shown = parsed.render_as_string(hide_password=True)
            if parsed.drivername == "postgresql":  # SQLAlchemy 2.0 would use psycopg 2
                parsed = parsed.set(drivername="postgresql+psycopg")
            is_sqlite = parsed.get_backend_name() == "sqlite"
            if is_sqlite and parsed.database not in (None, "", ":memory:"):
                Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
            given = {name: value for name, value in POSTGRESQL.items() if name not in parsed.query}
            options: Any = {"connect_args": given, "pool_pre_ping": True} if "psycopg" in parsed.drivername else {}
            self.engine = sa.create_engine(parsed, **options)
            if is_sqlite:
                sa.event.listen(self.engine, "connect", self._several_processes)
        except ModuleNotFoundError as problem:
            raise UserError(
                f"the ledger {self.shown} needs the package {problem.name}: install it (psycopg: 3)"
            ) from None
        except (SQLAlchemyError, OSError) as problem:
            raise UserError(self._unusable(problem)) from None
        self._patiently(self._create)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.dispose()

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored answer to a request, as a row of `replies`; None where there is none."""

        def read() -> dict[str, Any] | None:
            with self.engine.connect() as connection:
                row = connection.execute(sa.select(REPLIES).where(REPLIES.c.key == key)).mappings().first()
            return dict(row) if row else None

        return self._patiently(read)

    def put(self, row: dict[str, Any]) -> dict[str, Any]:
        """Store an answer, and return the stored row: that of another process, where it stored one first."""

        def write() -> None:
            with contextlib.suppress(IntegrityError), self.engine.begin() as connection:
                connection.execute(REPLIES.insert().values(created=datetime.now(UTC), **row))

        self._patiently(write)
        stored = self.get(row["key"])
        assert stored is not None
        return stored

    def forget(self, keys: Iterable[str]) -> None:
        """Remove answers, so that they are asked for again."""
        with self.writing() as connection:
            for key in keys:
                connection.execute(REPLIES.delete().where(REPLIES.c.key == key))

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction, beside which nobody else writes in SQLite. Only its beginning waits."""

        def begin() -> sa.Connection:
            connection = self.engine.connect()
            try:
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql(
                        "BEGIN IMMEDIATE"
                    )  # otherwise Python's driver would commit a DROP at once
                return connection
            except BaseException:
                connection.close()
                raise

        with self._patiently(begin) as connection, self._explained():
            yield connection
            connection.commit()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection for reading."""
        with self._patiently(self.engine.connect) as connection, self._explained():
            yield connection

    def _create(self) -> None:
        with self.engine.begin() as connection:
            create(connection, REPLIES)

    def _patiently(self, work: Callable[[], T]) -> T:
        """What `work` returns. It is called again while the database is locked or away, which is said once."""
        started, is_told = time.monotonic(), False
        while True:
            try:
                return work()
            except (SQLAlchemyError, sqlite3.Error, OSError) as problem:
                waited = time.monotonic() - started
                is_of_database = isinstance(problem, (OperationalError, InterfaceError, sqlite3.Error))
                passes = is_of_database and any(words in _reason(problem).lower() for words in PASSING)
                if not passes or waited > self.patience:
                    raise UserError(self._unusable(problem, waited if passes else 0.0)) from None
                if waited > QUIET and not is_told:
                    is_told = True
                    left = self.patience - waited
                    say(f"waiting for the ledger {self.shown}, {left:.0f} s more at most: {_reason(problem)}")
                time.sleep(min(0.2, self.patience / 10))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as problem:
            raise UserError(self._unusable(problem)) from None

    def _unusable(self, problem: Exception, waited: float = 0.0) -> str:
        reason = _reason(problem)
        if "locked" in reason:
            cure = "stop the process that holds it (`fuser` or `lsof` name it), and run the same command again"
        elif "postgresql" in self.shown:
            cure = "start the server or correct FLYWHEEL_LEDGER_URL, and run the same command again"
        else:
            cure = "see FLYWHEEL_LEDGER_URL"
        after = f" after {waited:.0f} s" if waited >= 1 else ""
        return f"the ledger {self.shown} cannot be opened, read or written{after} ({reason}); {cure}"

    def _several_processes(self, connection: sqlite3.Connection, _: object) -> None:
        """Set SQLite up for several processes: readers wait for nobody, writers wait for each other, commits are quick.

        SQLite itself waits for every lock except that for changing a new file to a write-ahead log, hence the loop.
        """
        connection.execute(f"PRAGMA busy_timeout={1000 * min(self.patience, QUIET):.0f}")
        until = time.monotonic() + self.patience
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as problem:
                if "locked" not in str(problem) or time.monotonic() > until:
                    raise
                time.sleep(0.01)
        connection.execute("PRAGMA synchronous=NORMAL")


def _reason(problem: Exception) -> str:
    return str(problem).strip().splitlines()[0]


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
