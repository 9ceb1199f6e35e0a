"""A fake gateway: the routes for clients, with the real addons/agents/gateway/leases.py behind them and no model. It
keeps a journal in memory, so that it can be killed and started again at the same port.

    with FakeGateway("tests.support.rollouts", [{"do": "number"}]) as gateway:
        start a client at gateway.url with gateway.key, then gateway.wait()
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from addons.agents.gateway.leases import Leases, Loss
from environments.base import Scenario

MOST = 100_000  # letters of an output that it takes


class FakeGateway:
    """A batch with an episode for each entry of `data`, named e0, e1, …"""

    key = "a key of the test's"

    def __init__(self, task: str, data: list[dict[str, Any]], *, heartbeat: float = 2.0, seconds: float = 30.0) -> None:
        self.task, self.heartbeat, self.seconds = task, heartbeat, seconds
        ask = [{"role": "user", "content": "What now?"}]
        self.scenarios = {f"e{place}": Scenario.make(task, "train", ask, entry) for place, entry in enumerate(data)}
        self.keys: dict[str, tuple[int, str]] = {}  # the journal: episode -> (lease, its key)
        self.results: dict[str, Any] = {}  # the journal: what came of each episode
        self.ends: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()  # by status
        self.served: Counter[str] = Counter()  # leases by client
        self.is_whole = threading.Event()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server: uvicorn.Server | None = None

    def start(self) -> None:
        """Start, or go on after `kill` with what the journal has."""
        self.leases = Leases(list(self.scenarios), 64, 1, self.heartbeat)
        for episode, (lease, _) in self.keys.items():
            if episode not in self.results:
                self.leases.restore_lease(episode, lease, 0, time.monotonic())
        for episode, (_, error) in self.results.items():
            self.leases.restore_ended(episode, error)
        routes = [
            Route("/clients", self.checked(self.register), methods=["POST"]),
            Route("/clients/{client}", self.checked(self.leave), methods=["DELETE"]),
            Route("/clients/{client}/leases", self.checked(self.lease), methods=["POST"]),
            Route("/clients/{client}/heartbeat", self.checked(self.beat), methods=["POST"]),
            Route("/clients/{client}/results", self.checked(self.report), methods=["POST"]),
        ]
        options = uvicorn.Config(Starlette(routes=routes), port=self.port, log_config=None, lifespan="off")
        self.server = uvicorn.Server(options)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def kill(self) -> None:
        """End without a word to anybody."""
        assert self.server is not None
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(10)

    def __enter__(self) -> FakeGateway:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self, seconds: float = 30.0) -> None:
        """Wait until all episodes have ended."""
        assert self.is_whole.wait(seconds), (self.results, self.leases.status(time.monotonic()))

    def checked(self, handle: Any) -> Any:
        async def respond(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {self.key}":
                answer: Response = JSONResponse({"error": "key"}, 401)
            else:
                self.lose(self.leases.sweep(time.monotonic()))
                client = request.path_params.get("client")
                body = await request.json() if request.method == "POST" else {}
                is_known = client is None or self.leases.knows(client)
                answer = await handle(client, body) if is_known else JSONResponse({}, 404)
            self.answers[answer.status_code] += 1
            return answer

        return respond

    async def register(self, client: None, body: dict[str, Any]) -> Response:
        if body["task"] not in (None, self.task):
            return JSONResponse({}, 409)
        held = [(episode, lease) for episode, lease in body["held"]]
        self.leases.register(body["client"], body["name"], body["capacity"], time.monotonic(), held)
        said = {"client": body["client"], "heartbeat_seconds": self.heartbeat, "task": self.task, "batch": "1"}
        return JSONResponse(said)

    async def leave(self, client: str, body: dict[str, Any]) -> Response:
        self.lose(self.leases.leave(client))
        return JSONResponse({})

    async def lease(self, client: str, body: dict[str, Any]) -> Response:
        held = [(episode, lease) for episode, lease in body["held"]]
        self.lose(self.leases.missing(client, held, time.monotonic()))
        until = time.monotonic() + min(body["wait"], 1.0)
        while not (given := self.leases.lease(client, body["free"], time.monotonic())) and time.monotonic() < until:
            await asyncio.sleep(0.05)
            self.lose(self.leases.sweep(time.monotonic()))
            if not self.leases.knows(client):
                return JSONResponse({}, 404)
        self.served[client] += len(given)
        self.keys |= {episode: (lease, f"secret-of-{episode}-{lease}") for episode, lease in given}
        entries = [
            {
                "episode": episode,
                "lease": lease,
                "scenario": self.scenarios[episode].model_dump(mode="json"),
                "attempt": place,
                "seed": 5,
                "api_key": self.keys[episode][1],
                "seconds": self.seconds,
                "suspect": episode in self.leases.suspects,
            }
            for place, (episode, lease) in enumerate(given)
        ]
        return JSONResponse(entries)

    async def beat(self, client: str, body: dict[str, Any]) -> Response:
        held = [(episode, lease) for episode, lease in body["held"]]
        return JSONResponse({"cancelled": self.leases.heartbeat(client, held, time.monotonic())})

    async def report(self, client: str, body: dict[str, Any]) -> Response:
        episode, lease, error, now = body["episode"], body["lease"], body.get("error"), time.monotonic()
        if self.keys[episode] != (lease, body["api_key"]):
            return JSONResponse({}, 409)
        if len(str((body.get("result") or {}).get("output"))) > MOST:
            return JSONResponse({"error": "too large"}, 413)
        if body.get("lost"):
            loss = self.leases.give_back(episode, lease, error, now)
            self.lose([loss] if loss else [])
            return JSONResponse({}, 200 if loss else 409)
        if not self.leases.report(episode, lease, now, error):
            return JSONResponse({}, 409)
        self.end(episode, body["result"], error)
        return JSONResponse({})

    def lose(self, losses: list[Loss]) -> None:
        for loss in losses:
            if loss.error is not None:
                self.end(loss.episode, None, loss.error)

    def end(self, episode: str, result: Any, error: str | None) -> None:
        self.ends[episode] += 1
        self.results[episode] = result, error
        if len(self.results) == len(self.scenarios):
            self.is_whole.set()
