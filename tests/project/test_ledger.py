"""The ledger on SQLite and on a real PostgreSQL: what is stored stays, and the first answer to a request counts."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from addons.lineage import tables
from addons.models.replies import Replies
from steps.core.errors import UserError
from steps.core.progress import report_to
from steps.project import ledger as ledger_module
from steps.project.ledger import Ledger


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db"
    return str(request.getfixturevalue("postgresql"))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines for a person; the first after 0.1 s of waiting."""
    said: list[str] = []
    monkeypatch.setattr(ledger_module, "QUIET", 0.1)
    report_to(lambda message: said.append(message["say"]))
    yield said
    report_to(None)


def row(key: str, text: str) -> dict[str, Any]:
    reply = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", "model": "m"}
    counts = {"input_tokens": 3, "output_tokens": 5, "cost": 0.25, "latency_seconds": 0.5, "retries": 1}
    return {"key": key, "model": "m", "request": {"messages": [text]}, "reply": reply, **counts}


def test_what_is_stored_is_found_again_by_another_process(url: str) -> None:
    with Replies(url) as ledger:
        assert ledger.get("a") is None
        stored = ledger.put(row("a", "네, مرحبا"))
    with Replies(url) as again:
        reread = again.get("a")
    assert reread == stored
    assert reread is not None
    assert {name: reread[name] for name in row("a", "")} == row("a", "네, مرحبا")
    assert reread["created"] is not None


def test_the_first_answer_counts(url: str) -> None:
    with Replies(url) as earlier, Replies(url) as other:
        first = earlier.put(row("b", "first"))
        assert other.put(row("b", "second")) == first


def test_many_may_open_a_new_one_at_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """As flows do that begin together. SQLite does not wait for the lock of a change of the journal, nor PostgreSQL
    for a table that another process is creating."""
    server = str(request.getfixturevalue("postgresql"))
    for number in range(4):
        with Ledger(server) as ledger, ledger.engine.begin() as link:
            link.exec_driver_sql("DROP SCHEMA public CASCADE")
            link.exec_driver_sql("CREATE SCHEMA public")
        for address in (f"sqlite:///{tmp_path}/{number}.db", server):
            together = threading.Barrier(8)

            def opened(answer: int, address: str = address, together: threading.Barrier = together) -> Any:
                together.wait()
                with Replies(address) as ledger:
                    return ledger.put(row("k", str(answer)))

            with ThreadPoolExecutor(8) as pool:
                stored = list(pool.map(opened, range(8)))
            assert all(answer == stored[0] for answer in stored), "all have the answer of the first"


def test_nobody_waits_for_a_long_transaction_to_open_one(url: str) -> None:
    """Such as one of `make ledger`, which makes its own tables anew."""

    def read() -> Any:
        with Replies(url) as other:
            return other.get("c")

    with Replies(url) as ledger:
        stored = ledger.put(row("c", "there"))
        with ThreadPoolExecutor(1) as pool:
            assert ledger.change(lambda _: pool.submit(read).result(timeout=60)) == stored


def test_a_ledger_that_cannot_be_opened_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened") as problem:
        Ledger("postgresql://user:hunter2@127.0.0.1:1/none", patience=0.2)
    assert "hunter2" not in str(problem.value)
    assert "start the server or correct FLYWHEEL_LEDGER_URL" in str(problem.value)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot be opened"):
        Ledger(f"sqlite:///{tmp_path}/folder")


def test_a_lock_is_waited_for_which_is_said_once(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "ledger.db"
    with Replies(f"sqlite:///{path}", patience=30) as ledger, sqlite3.connect(path, check_same_thread=False) as other:
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.7, other.rollback).start()
        assert ledger.put(row("a", "late"))["reply"] == row("a", "late")["reply"]
        ledger.change(lambda _: None)
    [line] = lines
    assert line.startswith(f"waiting for the ledger sqlite:///{path}, ")
    assert "database is locked" in line


def test_a_lock_that_stays_is_one_sentence(tmp_path: Path, lines: list[str]) -> None:
    """Not a traceback: of a stage that keeps an answer, or of the flow that keeps the lineage."""
    path = tmp_path / "ledger.db"
    with Replies(f"sqlite:///{path}", patience=0.3) as ledger, sqlite3.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UserError, match=r"the ledger sqlite:.*database is locked.*stop the process that holds it"):
            ledger.put(row("a", "never"))
        with pytest.raises(UserError, match="database is locked"):
            ledger.change(lambda _: pytest.fail("nobody may write now"))
        other.rollback()
        assert ledger.get("a") is None


def test_a_server_that_comes_back_is_waited_for(postgresql: str, lines: list[str]) -> None:
    """The connections that were open are cut, as by a restart, and for a while none is accepted."""
    with Replies(postgresql, patience=30) as ledger, Ledger(postgresql) as admin:
        ledger.put(row("d", "kept"))
        connect, began = ledger.engine.dialect.connect, time.monotonic()

        def refused_for_a_while(*words: Any, **options: Any) -> Any:
            if time.monotonic() < began + 0.5:
                raise ledger.engine.dialect.loaded_dbapi.OperationalError("connection failed: Connection refused")
            return connect(*words, **options)

        ledger.engine.dialect.connect = refused_for_a_while
        with admin.engine.begin() as link:
            own = "pid <> pg_backend_pid() AND datname = current_database()"
            link.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {own}")
        assert ledger.get("d") is not None
    assert len(lines) == 1


def test_a_server_that_stays_away_is_one_sentence(postgresql: str) -> None:
    with Replies(postgresql) as ledger:
        ledger.patience = 0.2
        refused = ledger.engine.dialect.loaded_dbapi.OperationalError("connection failed: Connection refused")

        def refuse(*_: Any, **__: Any) -> Any:
            raise refused

        ledger.engine.dispose()
        ledger.engine.dialect.connect = refuse
        for work in (lambda: ledger.get("d"), lambda: ledger.put(row("e", "")), lambda: tables.counts(ledger)):
            with pytest.raises(UserError, match=r"Connection refused.*start the server or correct FLYWHEEL_LEDGER_URL"):
                work()
