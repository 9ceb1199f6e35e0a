"""An OpenAI-compatible server on this machine, in a thread: answers by a Python function, fails as it is told, counts.

with Server(lambda body: "5") as server:
    Endpoint(model="m", base_url=server.url)
    assert server.calls == 0
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Answer = str | dict[str, Any]  # the text, or the whole assistant's message
DROP, BROKEN, NO_CHOICE, SLOW = "drop", "broken", "no choice", "slow"  # ways to fail, beside a status


class QuietServer(ThreadingHTTPServer):
    """Says nothing of clients that go away, which may be in the middle of a request."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """`fail` says, call by call (from 1), how: a status, DROP, BROKEN, NO_CHOICE, SLOW or None for an answer."""

    def __init__(
        self,
        answer: Callable[[Body], Answer],
        fail: Callable[[int, Body], int | str | None] = lambda number, body: None,
        *,
        seconds: float | Callable[[Body], float] = 0.0,  # an answer takes
        retry_after: str | None = None,
        key: str | None = None,  # the only one that is let in
        usage: tuple[int, int] | None = (100, 10),
        finish_reason: str | None = None,
        models: dict[str, str] | None = None,  # name -> path, as /v1/models lists them
    ) -> None:
        self.answer, self.fail, self.seconds = answer, fail, seconds
        self.retry_after, self.key, self.usage, self.finish_reason = retry_after, key, usage, finish_reason
        self.models = models or {}
        self.bodies: list[Body] = []
        self.times: list[float] = []  # of each call's arrival
        self.answered: list[Body] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement
            wbufsize = -1

            def do_POST(self) -> None:
                server.handle(self)

            def do_GET(self) -> None:
                server.list_models(self)

            def log_message(self, format: str, *_: object) -> None:
                pass

        self.http = QuietServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    @property
    def calls(self) -> int:
        return len(self.bodies)

    def __enter__(self) -> Server:
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        with self.lock:
            self.bodies.append(body)
            self.times.append(time.monotonic())
            number = len(self.bodies)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.respond(request, body, number)
        except (BrokenPipeError, ConnectionResetError):
            request.close_connection = True
        finally:
            with self.lock:
                self.at_once -= 1

    def list_models(self, request: BaseHTTPRequestHandler) -> None:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return send(request, 401, {"error": {"message": "no key"}})
        return send(request, 200, {"data": [{"id": name, "root": path} for name, path in self.models.items()]})

    def respond(self, request: BaseHTTPRequestHandler, body: Body, number: int) -> None:
        given = request.headers.get("Authorization")
        if request.path != "/v1/chat/completions":
            return send(request, 404, {"error": {"message": "no such path"}})
        if self.key is not None and given != f"Bearer {self.key}":
            return send(request, 401, {"error": {"message": f"Incorrect API key provided: {given}"}})
        how = self.fail(number, body)
        if how == SLOW:
            time.sleep(1.5)
        elif how == DROP:
            request.close_connection = True
            return request.connection.close()
        elif how == BROKEN:
            return send(request, 200, b'{"choices": [{"mess')
        elif how == NO_CHOICE:
            return send(request, 200, {"choices": []})
        elif isinstance(how, int):
            headers = {"Retry-After": self.retry_after} if self.retry_after is not None and how == 429 else {}
            return send(request, how, {"error": {"message": f"failed as told, key {given}"}}, headers)
        time.sleep(self.seconds(body) if callable(self.seconds) else self.seconds)
        answer = self.answer(body)
        message = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
        reason = self.finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
        completion: Body = {
            "object": "chat.completion",
            "model": f"{body['model']}-2026",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        }
        if self.usage:
            completion["usage"] = {"prompt_tokens": self.usage[0], "completion_tokens": self.usage[1]}
        with self.lock:
            self.answered.append(body)
        return send(request, 200, completion)


def send(request: BaseHTTPRequestHandler, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    request.send_response(status)
    for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)


def last(body: Body) -> str:
    """What the last message says."""
    return str(body["messages"][-1]["content"])


def tool_call(name: str, arguments: dict[str, Any] | str, call_id: str = "call_x") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def in_turn(*ways: int | str | None) -> Callable[[int, Body], int | str | None]:
    """Fail so, call by call, and answer all after them."""
    rest: Iterator[int | str | None] = iter(ways)
    lock = threading.Lock()

    def how(number: int, body: Body) -> int | str | None:
        with lock:
            return next(rest, None)

    return how
