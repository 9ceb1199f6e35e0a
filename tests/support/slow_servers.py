"""Servers that answer too slowly, on free ports of this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


@contextlib.contextmanager
def dripping_server(answer: bytes = HEAD, size: int = 1, seconds: float = 0.05) -> Iterator[str]:
    """A server that sends `size` bytes of its answer every so many seconds, and then spaces for ever; its address."""
    stopped = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            place = 0
            while not stopped.wait(seconds):
                connection.sendall(answer[place : place + size].ljust(size))
                place += size

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            stopped.set()
            server.shutdown(socket.SHUT_RDWR)
