"""A client of the served model, who has its key and wants more: another's feedback, the disk, the memory, the operator's
paths, or other clients' answers. The guard and capture are real, in a process of their own, before an engine that answers as
vLLM does.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from addons.production.serving import capture
from addons.production.traces.records import key_of
from addons.production.traces.store import Store
from tests.conftest import ROOT, free_port

KEY = "a-key"
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Where is the book?"}]}


class Served(NamedTuple):
    """The server's process, its port, the folder of its store, and its log."""

    process: subprocess.Popen[bytes]
    port: int
    store: Path
    log: Path

    def ask(
        self, path: str, body: Any = None, method: str = "POST", **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """(status, body, headers). A body of bytes is sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        sent = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def counts(self) -> dict[str, int]:
        return dict(json.loads(self.ask("/capture", method="GET")[1])["not_stored"])

    def stored(self) -> int:
        return len([line for line in Store(self.store).lines() if line.record])

    def memory(self) -> float:
        """MiB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

    def beside(self) -> list[int]:
        """The process that masks."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(name) for task in tasks for name in (task / "children").read_text().split()]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    settings = {"FOLDER": f"{folder}/store", "RATE": "1", "DAYS": "30", "BYTES": str(2**30), "CONSENT": "header"}
    variables = {f"FLYWHEEL_CAPTURE_{name}": value for name, value in settings.items()}
    variables |= {"VLLM_API_KEY": KEY, "FLYWHEEL_SWAP_TOKEN": "a-swap-token"}
    words = [sys.executable, "-m", "benchmarks._masking_server", str(port), "0", "1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=ROOT, env=os.environ | variables, stderr=log)
    made = Served(process, port, folder / "store", folder / "log")
    try:
        until(lambda: answers(made), 60)
        until(lambda: made.ask(CHAT, HELLO, x_flywheel_consent="yes")[0] == 200 and made.stored() > 0, 60)
        yield made
    finally:
        for each in made.beside():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)
        process.terminate()
        process.wait(30)


def answers(served: Served) -> bool:
    with contextlib.suppress(OSError):
        return served.ask("/health", method="GET")[0] == 200
    return False


def until(holds: Callable[[], bool], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


# --- The disk, the folder and the process beside the server


@contextlib.contextmanager
def limited(processes: list[int], what: int, most: int) -> Iterator[None]:
    before = [resource.prlimit(process, what) for process in processes]
    for process, (_, hard) in zip(processes, before, strict=True):
        resource.prlimit(process, what, (most, hard))
    try:
        yield
    finally:
        for process, old in zip(processes, before, strict=True):
            resource.prlimit(process, what, old)


@contextlib.contextmanager
def no_room(served: Served) -> Iterator[None]:
    """No file of the server's processes grows, as on a full disk."""
    with limited([served.process.pid, *served.beside()], resource.RLIMIT_FSIZE, 0):
        yield


@contextlib.contextmanager
def no_descriptors(served: Served) -> Iterator[None]:
    with limited(served.beside(), resource.RLIMIT_NOFILE, 3):
        yield


@contextlib.contextmanager
def a_file_in_its_place(served: Served) -> Iterator[None]:
    away = served.store.rename(served.store.with_name("away"))
    served.store.write_text("a file")
    try:
        yield
    finally:
        served.store.unlink()
        away.rename(served.store)


@contextlib.contextmanager
def a_dead_process(served: Served) -> Iterator[None]:
    for each in served.beside():
        os.kill(each, signal.SIGKILL)
    yield


@contextlib.contextmanager
def a_stopped_process(served: Served) -> Iterator[None]:
    [beside] = served.beside()
    os.kill(beside, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(beside, signal.SIGCONT)


TROUBLES = {
    "a full disk": no_room,
    "no file descriptors": no_descriptors,
    "a file in place of the folder": a_file_in_its_place,
    "the process that masks is killed": a_dead_process,
    "the process that masks hangs": a_stopped_process,
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_with_the_store_costs_records_and_no_answer(served: Served, trouble: str) -> None:
    before, there, asked = sum(served.counts().values()), served.stored(), 0
    with TROUBLES[trouble](served):
        began = time.monotonic()
        for consent in ("yes", "no", "yes"):
            for stream in (True, False):
                status, body, _ = served.ask(CHAT, HELLO | {"stream": stream}, x_flywheel_consent=consent)
                assert status == 200
                assert body.rstrip().endswith(b"data: [DONE]" if stream else b"}"), "whole"
                asked += 1
        assert served.ask("/v1/completions", {"prompt": "x"})[0] == 200
        took = time.monotonic() - began
        if trouble != "the process that masks hangs":
            assert served.ask("/feedback", {"response_id": "none", "score": 1})[0] in (404, 503)
    assert took < capture.PATIENCE + 5, "not each of them waits"
    until(lambda: sum(n for why, n in served.counts().items() if "late" not in why) + served.stored() >= before + asked)
    until(lambda: json.loads(served.ask("/capture", method="GET")[1])["waiting_seconds"] == 0)
    lost = {why: n for why, n in served.counts().items() if not capture.is_usual(why) and "late" not in why}
    assert served.stored() + sum(served.counts().values()) >= there + before + asked, lost
    until(lambda: served.ask(CHAT, HELLO, x_flywheel_consent="yes")[0] == 200 and served.stored() > there)


def test_a_folder_that_is_removed_is_made_again(served: Served) -> None:
    shutil.rmtree(served.store)
    for _ in range(3):
        assert served.ask(CHAT, HELLO, x_flywheel_consent="yes")[0] == 200
    until(lambda: served.stored() == 3)
    assert served.store.stat().st_mode & 0o777 == 0o700


# --- What costs the server more than the client


@pytest.mark.parametrize("size", [15 * 2**20, 2**20 + 999, 10**6], ids=["15 MB", "just over 1 MiB", "1 MB"])
def test_feedback_for_an_unknown_id_costs_nobody_anything(served: Served, size: int) -> None:
    times, before, over = [], served.memory(), threading.Event()

    def others() -> None:
        while not over.is_set():
            began = time.monotonic()
            assert served.ask(CHAT, HELLO, x_flywheel_consent="no")[0] == 200
            times.append(time.monotonic() - began)

    thread = threading.Thread(target=others)
    thread.start()
    text, began = "mail me at a.b@example.com or +49 30 1234567; "[: min(size, 46)], time.monotonic()
    body = json.dumps({"response_id": "nobody", "score": 1, "comment": text * (size // len(text))}).encode()
    for _ in range(4):
        status, said, _ = served.ask("/feedback", body)
        assert (status, b"longer than" in said) == (413 if size > 2**20 else 400, True)
    took = time.monotonic() - began
    over.set()
    thread.join()
    assert took < 4
    assert max(times) < 2
    assert served.memory() - before < 32


def test_each_path_of_a_client_is_no_counter_of_its_own(served: Served) -> None:
    for number in range(300):
        assert served.ask(f"/v1/users/jane.doe{number}@example.com/sk-ant-api03-AbC{number}", {})[0] == 403
    assert served.ask(CHAT, HELLO | {"messages": [{"role": "user", "content": [{"type": "jane@example.com"}]}]},
                      x_flywheel_consent="yes")[0] == 200  # fmt: skip
    assert served.ask("/detokenize", {"prompt": "jane@example.com"})[0] == 200
    assert len(served.counts()) < 20
    until(lambda: Store(served.store).counts().get("not captured: another path", 0) > 0)
    for path in (served.store / "counts.json", served.log):
        assert "jane" not in path.read_text()
        assert "sk-ant" not in path.read_text()


HEADS = {
    "100,000 headers": b"".join(b"x-%d: y\r\n" % number for number in range(100_000)),
    "a header of 16 MB": b"x: " + b"a" * 2**24 + b"\r\n",
}


@pytest.mark.parametrize("head", HEADS)
def test_headers_without_a_key_have_a_limit(served: Served, head: str) -> None:
    before, answer = served.memory(), b""
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as sent, contextlib.suppress(ConnectionError):
        sent.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n" + HEADS[head] + b"\r\n")
        answer = sent.recv(100)
    assert not answer.startswith(b"HTTP/1.1 200")
    assert served.memory() - before < 8
    assert answers(served)


def test_a_body_without_a_key_is_not_read(served: Served) -> None:
    before = served.memory()
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as sent:
        sent.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {2**30}\r\n\r\n".encode())
        assert sent.recv(100).startswith(b"HTTP/1.1 401"), "before the body comes"
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                sent.sendall(b"x" * 2**20)
    assert served.memory() - before < 16


# --- Words that are no JSON, or more than it


ODD = {
    "100,000 lists": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "101 lists": b'{"messages":' + b"[" * 101 + b"]" * 101 + b"}",
    "deep objects": b'{"messages":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
    "NaN": b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "infinity": b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}',
    "a number of 5,000 digits": b'{"messages":[],"n":' + b"9" * 5000 + b"}",
    "a field twice": b'{"messages":[],"messages":[{"role":"user","content":"x"}]}',
    "half a character": b'{"messages":[{"role":"user","content":"\\ud800 x"}]}',
    "UTF-16": json.dumps(HELLO).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(HELLO).encode(),
    "no UTF-8": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "a list": b"[]",
    "nothing": b"",
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_json_is_refused_with_a_sentence(served: Served, odd: str) -> None:
    for path in (CHAT, "/feedback"):
        body = ODD[odd] if path == CHAT else ODD[odd].replace(b'"messages"', b'"comment"')
        status, said, _ = served.ask(path, body, x_flywheel_consent="yes")
        assert status == 400, said
        assert json.loads(said)["error"]["message"].startswith("the body ")
    assert b"Traceback" not in served.log.read_bytes()


# --- Names and ids


def test_a_clients_request_id_takes_no_others_feedback(served: Served) -> None:
    def asked(conversation: str, **body: Any) -> tuple[str, str]:
        headers = {"x-request-id": "R", "x-flywheel-conversation": conversation, "x-flywheel-consent": "yes"}
        _, said, got = served.ask(CHAT, HELLO | body, **headers)
        return json.loads(said)["id"], got["x-flywheel-conversation"]

    victim, key = asked("victim")
    attacker, other = asked("attacker", request_id=victim.removeprefix("chatcmpl-"))
    assert victim != attacker
    assert "R" not in (victim, attacker)
    until(lambda: served.ask("/feedback", {"response_id": attacker, "score": 0})[0] == 201)
    status, said, _ = served.ask("/feedback", {"response_id": victim, "score": 1})
    assert (status, json.loads(said)["conversation"]) == (201, key)
    assert key != other


NAMES = {
    "a path": "../../etc/passwd",
    "30,000 letters": "a" * 30_000,
    "another script": "会話".encode().decode("latin-1"),
    "a tab": "a\tb",
    "a mail address": "jane.roe@example.com",
    "another's key, almost": "capture:0123456789abcdeF",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_conversations_name_is_a_hash_everywhere(served: Served, name: str) -> None:
    headers = {"x-flywheel-conversation": NAMES[name], "x-flywheel-consent": "yes"}
    status, _, got = served.ask(CHAT, HELLO, **headers)
    assert (status, got["x-flywheel-conversation"]) == (200, key_of("capture", NAMES[name]))
    on_disk = "".join(path.read_text() for path in served.store.glob("*.json*")) + served.log.read_text()
    assert NAMES[name] not in on_disk


OPERATORS = ("/scale_elastic_ep", "/pause", "/sleep", "/collective_rpc", "/update_weights", "/v1/unload_lora_adapter")


@pytest.mark.parametrize("path", OPERATORS)
def test_a_client_is_no_operator(served: Served, path: str) -> None:
    for way in (path, f"/{path}", f"{path}/", path.upper(), path.replace("a", "%61", 1)):
        assert served.ask(way, {})[0] == 403, way
