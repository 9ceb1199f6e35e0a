"""Posts traces and scores to a server from threads of their own, so that a run never waits for the server.

A server that refuses, hangs or is slow costs a run only what `settle` waits at its end. Its failure causes one warning,
and what did not arrive is counted. A server that takes a request and answers too late is asked again, ATTEMPTS times in
all: what arrives twice has the same ids. After a failed connection nothing is sent for PAUSE seconds; deliveries of that
time are lost.
"""

from __future__ import annotations

import gzip
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from environments.kit.http_client import Client, Late, NoAnswer
from steps.core.masking import masked

SECONDS = 1.5  # that a run waits at its end for each iteration's deliveries; tracing may cost 2 s per iteration
PATIENCE = 5.0  # seconds for an answer
PAUSE = 20.0  # seconds without requests after a failed connection
LEAST = 10.0  # seconds that a run waits at its end for a server that answers, however few its iterations
ATTEMPTS = 3
THREADS = 4
LARGEST = 3_000_000  # bytes of a body, before compression; well below the default limits of servers


class Post(NamedTuple):
    """One request; `other` is sent where the server does not know this one (400, 404, 405)."""

    url: str
    body: bytes
    headers: dict[str, str]
    other: Post | None = None


class Delivery(NamedTuple):
    """Requests that are sent in order, and what they carry: so many traces, or so many scores."""

    posts: list[Post]
    kind: str
    number: int


class Refused(Exception):
    """The server answered with an error."""


class Deliveries:
    """The deliveries to one server."""

    def __init__(self, host: str, log_message: Callable[[str], None]) -> None:
        self.host, self.log_message = host, log_message
        self.lost: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self._queue: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._open: Counter[str] = Counter()  # neither delivered nor lost yet
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._paused_until = 0.0  # time.monotonic()
        self._warned = False

    def send(self, delivery: Delivery) -> None:
        """Queue a delivery; returns at once."""
        with self._changed:
            self._open[delivery.kind] += delivery.number
            if len(self._threads) < THREADS:
                self._threads.append(threading.Thread(target=self._work, name=f"to {self.host}", daemon=True))
                self._threads[-1].start()
        self._queue.put(delivery)

    def settle(self, seconds: float) -> bool:
        """Wait at most so long until everything is delivered or lost, and log what was lost; True if all arrived."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._open.total() and (remaining := until - time.monotonic()) > 0:
                self._changed.wait(remaining)
            missing = self.lost + self._open
            if self._open.total():
                self._warn(f"it did not answer within {seconds:.0f} s")
        if missing:
            what = " and ".join(f"{number} {kind}" for kind, number in sorted(missing.items()))
            self.log_message(
                masked(f"{what} did not reach {self.host}; `.venv/bin/python -m steps.tracking` sends them again")
            )
        return not missing

    def _work(self) -> None:
        client: Client | None = None
        while True:
            delivery = self._queue.get()
            arrived = False
            try:
                if time.monotonic() >= self._paused_until:
                    client = client or Client(delivery.posts[0].url)
                    for post in delivery.posts:
                        send_patiently(client, post)
                    arrived = True
            except Refused as problem:
                self._fail(str(problem))
            except (NoAnswer, ValueError) as problem:
                self._fail(" ".join(str(problem).split())[:300], pause=PAUSE)
            finally:
                with self._changed:
                    self._open[delivery.kind] -= delivery.number
                    (self.delivered if arrived else self.lost)[delivery.kind] += delivery.number
                    self._changed.notify_all()

    def _fail(self, reason: str, pause: float = 0.0) -> None:
        with self._changed:
            self._paused_until = max(self._paused_until, time.monotonic() + pause)
            self._warn(reason)

    def _warn(self, reason: str) -> None:
        """Log the first failure; the caller holds the lock."""
        if not self._warned:
            self._warned = True
            self.log_message(masked(f"{self.host} does not take traces: {reason}; the run goes on without it"))


def send_patiently(client: Client, post: Post) -> None:
    """Send one request, and again where the server has not answered in time. NoAnswer and Refused as `send_post`."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            send_post(client, post)
            return
        except Late:
            if attempt == ATTEMPTS:
                raise


def send_post(client: Client, post: Post) -> None:
    """Send one request: Refused for an answer with an error, NoAnswer for none."""
    body, headers = post.body, post.headers
    if headers["Content-Type"] == "application/x-protobuf":  # OpenTelemetry accepts compression, MLflow's JSON does not
        body, headers = gzip.compress(body, 1), {**headers, "Content-Encoding": "gzip"}
    answer = client.asked("POST", post.url, content=body, headers=headers, seconds=PATIENCE, most=LARGEST)
    if answer.status in (400, 404, 405) and post.other is not None:
        send_post(client, post.other)
    elif not 200 <= answer.status < 300:
        raise Refused(f"HTTP {answer.status} from {post.url}: {' '.join(answer.text[:200].split())}")
