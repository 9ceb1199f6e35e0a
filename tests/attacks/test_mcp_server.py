"""Probes by an MCP server: it lists, answers, floods and stays as it likes, and the run reads an error within its limits."""

from __future__ import annotations

import gzip
import http.server
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from environments.base import TaskProblem
from environments.kit import child
from environments.kit.tools import tool_of
from environments.kit.waiting import TookTooLong, run
from environments.mcp import server
from environments.mcp.settings import ServerSettings
from tests.conftest import ROOT

HOSTILE = str(ROOT / "tests" / "support" / "hostile_mcp.py")


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "START_SECONDS", 20.0)
    monkeypatch.setattr(server, "LIST_SECONDS", 2.0)
    monkeypatch.setattr(server, "END_SECONDS", 0.2)


@contextmanager
def connection(folder: Path, way: str, *words: str) -> Iterator[server.Server]:
    settings = ServerSettings(description="d", command=sys.executable, args=(HOSTILE, way, *words))
    made = server.Server(settings, folder)
    try:
        yield made
    finally:
        run(made.close(), 20)
        assert made._child is None or not made._child.is_alive()


def peak() -> int:
    """MiB of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("lists-nothing", "had not listed them after 2 seconds"),
        ("pages", "more than 100 pages or 1,000 tools"),
        ("many-tools", "more than 100 pages or 1,000 tools"),
        ("long-description", "bytes of JSON, and 4,194,304 are the most"),
    ],
)
def test_a_list_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, words: str) -> None:
    if way != "lists-nothing":  # what is refused for its size is not to be late on a busy machine
        monkeypatch.setattr(server, "LIST_SECONDS", 10.0)
    began = time.monotonic()
    with connection(tmp_path, way) as hostile, pytest.raises(TaskProblem, match=words):
        run(hostile.tools(), 20)
    assert time.monotonic() - began < 15


def test_a_server_that_never_starts_is_ended_and_join_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "START_SECONDS", 1.0)
    settings = ServerSettings(description="d", command=sys.executable, args=(HOSTILE, "starts-never"))
    servers, began = server.Servers(settings, tmp_path, []), time.monotonic()
    with pytest.raises(TaskProblem, match="was not ready after 1 seconds"):
        servers.join()
    assert time.monotonic() - began < 15


def test_join_does_not_wait_for_a_list(tmp_path: Path) -> None:
    settings = ServerSettings(description="d", command=sys.executable, args=(HOSTILE, "lists-nothing"))
    servers, began = server.Servers(settings, tmp_path, []), time.monotonic()
    with pytest.raises(TaskProblem, match="had not listed them"):
        servers.join()
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("way", ["line-without-end", "notices"])
def test_an_answer_without_end_ends_the_server_and_not_the_memory(tmp_path: Path, way: str) -> None:
    with connection(tmp_path, way) as hostile:
        run(hostile.tools(), 20)
        before = peak()
        try:
            said = run(hostile.call("say", {"word": "a"}, 1.0), 20)
        except TookTooLong:
            said = "late"
        assert said in ("late", f"Error: {server.STOPPED}.")
    assert peak() - before < 400


def test_what_it_writes_beside_its_answers_is_read_and_forgotten(tmp_path: Path) -> None:
    def written() -> int:
        return sum(_size(each) for each in Path("/proc/self/fd").iterdir())

    before = written()
    with connection(tmp_path, "errors") as hostile:
        run(hostile.tools(), 20)
        assert run(hostile.call("say", {"word": "a"}, 20.0), 30) == "a"
        assert hostile._child is not None
        assert len(hostile._child.words) == child.KEPT
        assert hostile._child.unread > 60_000_000
        assert written() - before < 1_000_000


def _size(descriptor: Path) -> int:
    """Bytes of a temporary file; 0 of all else."""
    try:
        return descriptor.stat().st_size if str(descriptor.readlink()).startswith(tempfile.gettempdir()) else 0
    except OSError:
        return 0


@pytest.mark.parametrize("way", ["twice", "ahead"])
def test_an_answer_to_no_question_answers_none(tmp_path: Path, way: str) -> None:
    with connection(tmp_path, way) as hostile:
        run(hostile.tools(), 20)
        assert [run(hostile.call("say", {"word": word}, 5.0), 10) for word in "abc"] == ["a", "b", "c"]
        assert hostile._child is not None
        assert hostile._child.passed_over


def test_a_late_answer_is_not_the_next_calls(tmp_path: Path) -> None:
    with connection(tmp_path, "late") as hostile:
        run(hostile.tools(), 20)
        with pytest.raises(TookTooLong):
            run(hostile.call("say", {"word": "first"}, 0.2), 20)
        assert run(hostile.call("say", {"word": "second"}, 5.0), 20) == "second"


def test_it_gets_no_model_no_folders_and_no_words_of_a_user(tmp_path: Path) -> None:
    with connection(tmp_path, "asks") as hostile:
        run(hostile.tools(), 20)
        assert run(hostile.call("say", {"word": "a"}, 5.0), 10) == "a"


def test_half_a_letter_is_a_question_mark_at_once(tmp_path: Path) -> None:
    with connection(tmp_path, "half-letter") as hostile:
        run(hostile.tools(), 20)
        began = time.monotonic()
        assert run(hostile.call("say", {"word": "a"}, 30.0), 40) == "?"
        assert time.monotonic() - began < 20, "without a wait for the rest of the letter"


def test_what_it_leaves_in_another_session_ends_with_it(tmp_path: Path) -> None:
    with connection(tmp_path, "leaves") as hostile:
        run(hostile.tools(), 20)
        assert run(hostile.call("say", {"word": str(tmp_path / "pid")}, 5.0), 10)
        for _ in range(100):
            if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
                break
            time.sleep(0.02)
        left = int((tmp_path / "pid").read_text())
        assert Path(f"/proc/{left}").exists()
    for _ in range(100):
        if not Path(f"/proc/{left}").exists():
            break
        time.sleep(0.02)
    assert not Path(f"/proc/{left}").exists()


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """An address: `/moved` leads to it, `/packed` is 300 MB in 300 KB, and what it is asked for is kept."""

    asked: ClassVar[list[tuple[str, str]]] = []

    server: http.server.HTTPServer  # pyrefly: ignore[bad-override-mutable-attribute]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("authorization", "")))
        packed = gzip.compress(bytes(2**26), 1) if self.path == "/packed" else b"{}"
        self.send_response(302 if self.path == "/moved" else 200)
        if self.path == "/moved":
            self.send_header("Location", f"http://localhost:{self.server.server_port}/taken")
        if self.path == "/packed":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(packed)))
        self.end_headers()
        self.wfile.write(packed)

    do_POST = do_GET

    def log_message(self, format: str, *_: Any) -> None: ...


@pytest.fixture
def elsewhere() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as served:
        threading.Thread(target=served.serve_forever, args=(0.05,), daemon=True).start()
        Elsewhere.asked = []
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()


def test_the_schema_of_a_tool_is_read_from_nowhere_else(tmp_path: Path, elsewhere: str) -> None:
    with connection(tmp_path, "remote-schema", f"{elsewhere}/schema") as hostile:
        [tool] = run(hostile.tools(), 20)
        tool_of(tool["function"]).arguments.model_validate({"word": "a"})
    assert Elsewhere.asked == []


def test_a_deep_schema_is_no_error_of_ours(tmp_path: Path) -> None:
    with connection(tmp_path, "deep-schema") as hostile, pytest.raises(TaskProblem, match="lists no tools"):
        run(hostile.tools(), 20)


@pytest.mark.parametrize("path", ["moved", "packed"])
def test_an_address_neither_leads_elsewhere_nor_unpacks(
    tmp_path: Path, elsewhere: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "k-of-the-user")
    settings = ServerSettings(description="d", url=f"{elsewhere}/{path}", key_env="THEIR_KEY", fresh=False)
    hostile, before = server.Server(settings, tmp_path), peak()
    try:
        with pytest.raises(TaskProblem):
            run(hostile.tools(), 20)
    finally:
        run(hostile.close(), 10)
    assert {asked for asked, _ in Elsewhere.asked} == {f"/{path}"}
    assert peak() - before < 200
