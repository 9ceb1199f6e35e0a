"""Deliveries: posts to a server from threads of their own, so that nobody waits for it: for traces and scores.

A host that refuses, hangs or is slow costs a run nothing but what `settle` waits for at its end. It is said once; what did
not arrive is counted. After a failure the host is left alone for a while, and what would have been sent meanwhile is lost.
"""

from __future__ import annotations

import gzip
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

SECONDS = 1.5  # that an iteration's parcels are waited for at the end of a run; of the 2 s that tracing may cost it
PATIENCE = (2.0, 5.0)  # seconds to connect, and until an answer begins: of a thread, which nobody waits for
REST = 20.0  # seconds that a host is left alone after it failed
THREADS = 4
LARGEST = 3_000_000  # bytes of a body, before compression: what servers take by default, with room
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Post(NamedTuple):
    """One request; `other` is tried where the server does not know the first (400, 404, 405)."""

    url: str
    body: bytes
    headers: dict[str, str]
    other: Post | None = None


class Parcel(NamedTuple):
    """Posts in their order, and what they carry: a kind and how many of it."""

    posts: list[Post]
    kind: str
    number: int


class Refused(Exception):
    """The server answered, and did not take it."""


class Deliveries:
    """What goes to one host."""

    def __init__(self, host: str, tell: Callable[[str], None]) -> None:
        self.host, self.tell = host, tell
        self.lost: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self._queue: queue.SimpleQueue[Parcel] = queue.SimpleQueue()
        self._open: Counter[str] = Counter()  # handed over, and neither delivered nor lost
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._rests_until = 0.0
        self._warned = False

    def send(self, parcel: Parcel) -> None:
        """Hand over; returns at once."""
        with self._changed:
            self._open[parcel.kind] += parcel.number
            if len(self._threads) < THREADS:
                self._threads.append(threading.Thread(target=self._work, name=f"to {self.host}", daemon=True))
                self._threads[-1].start()
        self._queue.put(parcel)

    def settle(self, seconds: float) -> bool:
        """Wait until all has been delivered or lost, at most so long, and say what was lost. Whether all arrived."""
        from steps.core.masking import masked

        until = time.monotonic() + seconds
        with self._changed:
            while self._open.total() and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            missing = self.lost + self._open
            if self._open.total():
                self._warn(f"it did not answer within {seconds:.0f} s")
        if missing:
            what = " and ".join(f"{number} {kind}" for kind, number in sorted(missing.items()))
            self.tell(masked(f"{what} did not reach {self.host}; `python -m steps.tracking` sends them again"))
        return not missing

    def _work(self) -> None:
        import requests

        with requests.Session() as session:
            session.auth = lambda request: request  # our headers, not those of a .netrc
            while True:
                parcel = self._queue.get()
                arrived = False
                try:
                    if time.monotonic() >= self._rests_until:
                        for post in parcel.posts:
                            deliver(session, post)
                        arrived = True
                except Refused as problem:
                    self._fail(str(problem))
                except (OSError, ValueError) as problem:  # requests' own errors are of these
                    self._fail(" ".join(str(problem).split())[:300], rest=REST)
                finally:
                    with self._changed:
                        self._open[parcel.kind] -= parcel.number
                        (self.delivered if arrived else self.lost)[parcel.kind] += parcel.number
                        self._changed.notify_all()

    def _fail(self, why: str, rest: float = 0.0) -> None:
        with self._changed:
            self._rests_until = max(self._rests_until, time.monotonic() + rest)
            self._warn(why)

    def _warn(self, why: str) -> None:
        """Once. The lock is held."""
        from steps.core.masking import masked

        if not self._warned:
            self._warned = True
            self.tell(masked(f"{self.host} does not take traces: {why}; the run goes on without it"))


def deliver(session: Any, post: Post) -> None:
    """Send it. Refused where the answer is no, OSError where there is none. Proxies are for other machines than this one."""
    session.trust_env = (urlsplit(post.url).hostname or "") not in LOOPBACK
    body, headers = post.body, post.headers
    if (
        headers["Content-Type"] == "application/x-protobuf"
    ):  # of OpenTelemetry's, which allows it; MLflow's JSON does not
        body, headers = gzip.compress(body, 1), {**headers, "Content-Encoding": "gzip"}
    answer = session.post(post.url, data=body, headers=headers, timeout=PATIENCE, allow_redirects=False)
    if answer.status_code in (400, 404, 405) and post.other is not None:
        deliver(session, post.other)
    elif not 200 <= answer.status_code < 300:
        raise Refused(f"HTTP {answer.status_code} from {post.url}: {' '.join(answer.text[:200].split())}")
