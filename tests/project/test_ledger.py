"""The ledger on SQLite and on a real PostgreSQL: what is stored stays, and the first answer to a request counts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from steps.core.errors import UserError
from steps.lineage import tables
from steps.project.ledger import Ledger


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db"
    return str(request.getfixturevalue("postgresql"))


def row(key: str, text: str) -> dict[str, Any]:
    reply = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", "model": "m"}
    counts = {"input_tokens": 3, "output_tokens": 5, "cost": 0.25, "latency_seconds": 0.5, "retries": 1}
    return {"key": key, "model": "m", "request": {"messages": [text]}, "reply": reply, **counts}


def test_what_is_stored_is_found_again_by_another_process(url: str) -> None:
    with Ledger(url) as ledger:
        assert ledger.get("a") is None
        stored = ledger.put(row("a", "네, مرحبا"))
    with Ledger(url) as again:
        reread = again.get("a")
    assert reread == stored
    assert reread is not None
    assert {name: reread[name] for name in row("a", "")} == row("a", "네, مرحبا")
    assert reread["created"] is not None


def test_the_first_answer_counts(url: str) -> None:
    with Ledger(url) as earlier, Ledger(url) as other:
        first = earlier.put(row("b", "first"))
        assert other.put(row("b", "second")) == first


def test_many_may_open_a_new_one_at_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """As flows do that begin together. SQLite does not wait for the lock of a change of the journal, nor PostgreSQL
    for a table that another process is creating."""
    server = str(request.getfixturevalue("postgresql"))
    for number in range(10):
        with Ledger(server) as ledger, ledger.engine.begin() as link:
            link.exec_driver_sql("DROP TABLE IF EXISTS replies")
        for address in (f"sqlite:///{tmp_path}/{number}.db", server):
            together = threading.Barrier(8)

            def opened(answer: int, address: str = address, together: threading.Barrier = together) -> Any:
                together.wait()
                with Ledger(address) as ledger:
                    return ledger.put(row("k", str(answer)))

            with ThreadPoolExecutor(8) as pool:
                stored = list(pool.map(opened, range(8)))
            assert all(answer == stored[0] for answer in stored), "all have the answer of the first"


def test_nobody_waits_for_a_long_transaction_to_open_one(url: str) -> None:
    """Such as one of `make ledger`, which makes its own tables anew."""

    def read() -> Any:
        with Ledger(url) as other:
            return other.get("c")

    with Ledger(url) as ledger:
        stored = ledger.put(row("c", "there"))
        with ThreadPoolExecutor(1) as pool, tables.changing(ledger):
            assert pool.submit(read).result(timeout=60) == stored


def test_a_ledger_that_cannot_be_opened_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened") as problem:
        Ledger("postgresql://user:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(problem.value)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot be opened"):
        Ledger(f"sqlite:///{tmp_path}/folder")
