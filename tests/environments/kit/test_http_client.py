"""The client of servers: what it takes of an answer, and for how long."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import re
import resource
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from addons.fleet.replica import Replica
from addons.fleet.section import Servers
from environments.kit.http_client import Client, Late, NoAnswer, TooMuch, Unreachable, asked
from environments.kit.waiting import run
from steps.core.errors import UserError
from tests.conftest import ROOT, free_port
from tests.support.slow_servers import dripping_server

PACKED = gzip.compress(bytes(2**28), 1)  # 256 MiB in 1.2 MB


class Odd(http.server.BaseHTTPRequestHandler):
    """Answers as the path says, and keeps what it is asked."""

    seen: ClassVar[list[tuple[str, str]]] = []
    protocol_version = "HTTP/1.1"

    server: http.server.HTTPServer  # pyrefly: ignore[bad-override-mutable-attribute]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("authorization", "")))
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body, headers = json.dumps({"path": self.path}).encode(), {}
        if "packed" in self.path or "generate" in self.path:
            body, headers = PACKED, {"Content-Encoding": "gzip"}
        if self.path == "/twice":
            body, headers = gzip.compress(PACKED), {"Content-Encoding": "gzip, gzip"}
        if self.path == "/json":
            body, headers = (
                gzip.compress(json.dumps([{"logprob": -0.5}] * 20_000).encode()),
                {"Content-Encoding": "gzip"},
            )
        if self.path == "/deep":
            body = b"[" * 100_000
        if self.path == "/damaged":
            body, headers = b"no gzip", {"Content-Encoding": "gzip"}
        if self.path == "/moved":
            headers = {"Location": f"http://localhost:{self.server.server_port}/taken"}
        self.send_response(302 if headers.keys() == {"Location"} else 200)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as served:
        served.daemon_threads = True
        threading.Thread(target=served.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()


@pytest.mark.parametrize("path", ["/packed", "/twice"])
def test_what_unpacks_to_much_is_not_read_to_its_end(address: str, path: str) -> None:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(TooMuch):
        asked("GET", f"{address}{path}", seconds=30)
    assert time.monotonic() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    with pytest.raises(TooMuch, match="more than 100 bytes"):
        asked("GET", f"{address}/json", seconds=30, most=100)


def test_a_server_of_vllms_that_unpacks_to_much_is_none(address: str) -> None:
    """1.4 GB and 36 s, before the answers of servers had a limit."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    replica = Replica(address, Servers(urls=(address,)))
    with pytest.raises(UserError, match="is no server of vLLM's, for the answer"):
        run(replica.generate("flywheel-a", [1, 2], {"max_tokens": 16, "logprobs": 1}, 5.0), 30)
    assert time.monotonic() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_usual_compression_is_read(address: str) -> None:
    assert len(asked("GET", f"{address}/json", seconds=30).json()) == 20_000


@pytest.mark.parametrize("path", ["/deep"])
def test_json_that_cannot_be_read_is_a_value_error(address: str, path: str) -> None:
    with pytest.raises(ValueError, match=r"nested|recursion|Expecting"):
        asked("GET", f"{address}{path}", seconds=30).json()


def test_a_damaged_answer_is_none(address: str) -> None:
    with pytest.raises(NoAnswer):
        asked("GET", f"{address}/damaged", seconds=30)


def test_a_key_is_not_taken_elsewhere(address: str) -> None:
    with Client(address, headers={"Authorization": "Bearer k"}) as client:
        assert client.asked("GET", "/moved", seconds=10).status == 302
    assert ("/taken", "Bearer k") not in Odd.seen
    assert "/taken" not in {path for path, _ in Odd.seen}


def test_an_answer_that_drips_is_late_by_the_whole_of_it() -> None:
    with dripping_server() as slow:
        began = time.monotonic()
        with pytest.raises(Late, match=r"no answer within 0\.4 s"):
            asked("GET", slow, seconds=0.4)
        assert time.monotonic() - began < 10


def test_nobody_there_is_another_failure() -> None:
    with pytest.raises(Unreachable):
        asked("GET", f"http://127.0.0.1:{free_port()}/", seconds=5)
    with pytest.raises(NoAnswer):
        asked("GET", "http://[not an address/", seconds=5)


# Others, and why: MLflow's own client, with limits of its own, and the certificates that an agent may pass on.
OTHERS = {"steps/project/slow_server.py", "addons/agents/episode.py"}
ANOTHER = re.compile(
    r"^\s*(?:import|from) (?:requests|httpx2?|aiohttp|urllib\.request|urllib3|http\.client)\b", re.MULTILINE
)


def test_no_other_client_is_made() -> None:
    files = [
        file
        for folder in ("environments", "addons", "steps", "flows", "viewer")
        for file in (ROOT / folder).rglob("*.py")
    ]
    found = {file.relative_to(ROOT).as_posix() for file in files if ANOTHER.search(file.read_text())}
    assert found == {"environments/kit/http_client.py", *OTHERS}
