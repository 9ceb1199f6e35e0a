"""The ledger: a database for what costs something to make again, such as the answers of models (addons/models/replies.py).

It is `.flywheel/ledger.db` (SQLite) by default. FLYWHEEL_LEDGER_URL names another by SQLAlchemy's syntax; for a team this is
`postgresql://user:password@host/flywheel` (with psycopg 3). Several processes may use a ledger at the same time. A database
that is locked, away, or being started again, is waited for. One whose tables are of an older schema is brought to `SCHEMA`
when it is opened (steps/project/revisions.py); one query tells.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import InterfaceError, OperationalError, ProgrammingError, SQLAlchemyError

from steps.core.errors import UserError
from steps.core.progress import say
from steps.project import revisions, store

T = TypeVar("T")
SCHEMA = "1.1"  # major.minor: the newest revision in steps/project/migrations
PATIENCE = 90.0  # seconds to wait for another process's lock, or for a server that is away
QUIET = 2.0  # of those, the seconds that pass without a message
# What databases say when the same may succeed a little later. The last one is of a server's socket in a folder.
PASSING = re.compile(
    "locked|refused|starting up|shutting down|recovery mode|timeout expired|no such file or directory"
    "|closed the connection|terminating connection|connection is lost|connection is closed"
    "|connection timed out|connection reset|no route to host|network is unreachable|lock timeout"
)
# A PostgreSQL server that vanishes without a word is noticed within half a minute.
POSTGRESQL = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
POSTGRESQL |= {"tcp_user_timeout": 20_000}
LOCK = 0x_F1E1_4EE1  # the PostgreSQL advisory lock for an upgrade: an arbitrary number
LOCKED_SECONDS = 5  # for which an upgrade waits for one table, because everybody else then waits behind it

VERSION = sa.text(f"SELECT version_num FROM {revisions.VERSIONS}")


class LedgerAway(UserError):
    """The ledger cannot be opened, read or written."""


class Ledger:
    """An open ledger, used as `with Ledger() as ledger:`. LedgerAway where it cannot be opened, read or written.

    It is waited for up to `patience` seconds.
    """

    def __init__(self, url: str | None = None, patience: float = PATIENCE) -> None:
        url = url or store.ledger_address()
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
            raise LedgerAway(self._unusable(problem)) from None
        self.patiently(self._bring_up_to_date)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.dispose()

    def change(self, work: Callable[[sa.Connection], T]) -> T:
        """What `work` returns in a transaction, beside which nobody else writes in SQLite.

        Where the connection breaks, all of it is undone, and `work` is called again in another transaction. It may have
        been committed then, so a second call must find what the first one wrote, and not write it twice.
        """

        def once() -> T:
            with self.engine.connect() as connection:
                if connection.dialect.name == "sqlite":  # Python's driver would begin after the first statement
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                result = work(connection)
                connection.commit()
                return result

        return self.patiently(once)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection for reading."""
        with self.patiently(self.engine.connect) as connection:
            try:
                yield connection
            except SQLAlchemyError as problem:
                raise LedgerAway(self._unusable(problem)) from None

    def _bring_up_to_date(self) -> None:
        with self.engine.connect() as connection, contextlib.suppress(ProgrammingError, OperationalError):
            if _fits(connection.scalar(VERSION), self.shown):
                return
        with self.engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCKED_SECONDS}s'")
            else:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            # Asked again: another process may have brought it up to date meanwhile.
            has_version = sa.inspect(connection).has_table(revisions.VERSIONS)
            version = connection.scalar(VERSION) if has_version else None
            if not _fits(version, self.shown):
                if others := revisions.foreign(connection) if version is None else []:
                    raise UserError(
                        f"the database {self.shown} has a table {others[0]} of another application: give the ledger a "
                        "database of its own, and name it in FLYWHEEL_LEDGER_URL"
                    )
                revisions.upgrade(connection)
                connection.commit()
                if version is not None:
                    say(f"the ledger {self.shown} was brought from schema {version} to {SCHEMA}")

    def patiently(self, work: Callable[[], T]) -> T:
        """What `work` returns. It is called again while the database is locked or away, which is said once."""
        started, is_told = time.monotonic(), False
        while True:
            try:
                return work()
            except (SQLAlchemyError, sqlite3.Error, OSError) as problem:
                waited = time.monotonic() - started
                is_of_database = isinstance(problem, (OperationalError, InterfaceError, sqlite3.Error))
                passes = is_of_database and PASSING.search(_reason(problem).lower()) is not None
                if not passes or waited > self.patience:
                    raise LedgerAway(self._unusable(problem, waited if passes else 0.0)) from None
                if waited > QUIET and not is_told:
                    is_told = True
                    left = self.patience - waited
                    say(f"waiting for the ledger {self.shown}, {left:.0f} s more at most: {_reason(problem)}")
                time.sleep(min(0.2, self.patience / 10))

    def _unusable(self, problem: Exception, waited: float = 0.0) -> str:
        reason = _reason(problem)
        if "locked" in reason:
            cure = "stop the process that holds it (`fuser` or `lsof` name it), and run the same command again"
        elif "permission denied" in reason or "must be owner" in reason:
            cure = "its owner may do this, or grant it to you (docs/team.md)"
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


def _fits(version: str | None, shown: str) -> bool:
    """Whether this code can use a ledger of this schema; False where it is older. UserError where it is of a newer major."""
    if version is None:
        return False
    try:
        major, minor = (int(part) for part in version.split("."))
    except ValueError:
        major, minor = sys.maxsize, 0
    own_major, own_minor = (int(part) for part in SCHEMA.split("."))
    if major > own_major:
        raise UserError(
            f"the ledger {shown} has schema {version}, and this code knows schemas up to {SCHEMA}: update your checkout to "
            "the code that upgraded it, or give FLYWHEEL_LEDGER_URL the address of another ledger"
        )
    return (major, minor) >= (own_major, own_minor)
