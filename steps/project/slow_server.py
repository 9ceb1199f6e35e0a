"""A limit on how long a server may take for a whole answer.

The time-outs of requests are for each read, so a server that sends a byte now and then is waited for without end. Here a
small answer must be complete within SECONDS; a large one gets more time, as long as it arrives faster than RATE.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

from requests.adapters import HTTPAdapter

SECONDS = 20.0
RATE = 10_000.0  # bytes per second


class LimitedReader(io.RawIOBase):
    """A socket's stream that raises TimeoutError when the answer takes too long."""

    def __init__(self, stream: io.RawIOBase, connection: socket.socket, seconds: float) -> None:
        self.stream, self.connection, self.until = stream, connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self.until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the answer arrives too slowly")
        self.connection.settimeout(min(remaining, self.connection.gettimeout() or remaining))
        count = self.stream.readinto(buffer)
        self.until += (count or 0) / RATE
        return count

    def close(self) -> None:
        self.stream.close()
        super().close()


class LimitedResponse(http.client.HTTPResponse):
    """An answer that is read through a LimitedReader."""

    seconds = SECONDS

    def __init__(self, sock: socket.socket, *words: Any, **options: Any) -> None:
        super().__init__(sock, *words, **options)
        stream: Any = self.fp
        self.fp = io.BufferedReader(LimitedReader(stream.detach(), sock, self.seconds))


def limited(pool: Any) -> Any:
    """A class of connection pools like `pool`, whose answers are limited."""
    connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": LimitedResponse})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})


class LimitedAdapter(HTTPAdapter):
    """For a session of requests: answers that take too long end with an error of requests."""

    def init_poolmanager(self, *words: Any, **options: Any) -> None:
        super().init_poolmanager(*words, **options)
        pools = self.poolmanager.pool_classes_by_scheme
        self.poolmanager.pool_classes_by_scheme = {scheme: limited(pool) for scheme, pool in pools.items()}
