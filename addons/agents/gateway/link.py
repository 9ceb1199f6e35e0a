"""The line between the gateway and the stage that holds the engine: JSON objects, one per line, over a Unix socket.

The stage listens in a folder that only this user can open. It says {"batch": …} to begin, then {"sampled": […]} and
{"failed": […]}. The gateway says {"listening": [host, port]}, {"sample": […]}, {"progress": [done, total, note]} and
{"finished": true, …}.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from pathlib import Path
from typing import Any

from steps.core.cores import use_allowed_cores

LONGEST = 2**28  # bytes of a line


class StageEnd:
    """The stage's end. A thread reads; messages wait in `inbox`, and None where the gateway has gone."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        path.chmod(0o600)
        self.listener.listen(1)
        self.connection: socket.socket | None = None
        self.inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def accept(self, seconds: float) -> bool:
        """Wait for the gateway; False where none came in time."""
        self.listener.settimeout(seconds)
        try:
            self.connection, _ = self.listener.accept()
        except TimeoutError:
            return False
        self.connection.settimeout(None)
        self.inbox = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self.connection, self.inbox), daemon=True).start()
        return True

    @staticmethod
    def _read(connection: socket.socket, inbox: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        use_allowed_cores()
        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    inbox.put(json.loads(line))
        except (OSError, ValueError):  # it was killed in mid-line
            pass
        inbox.put(None)

    def send(self, message: dict[str, Any]) -> None:
        """A message that cannot be delivered is dropped: the inbox says that the gateway has gone."""
        if self.connection is not None:
            try:
                self.connection.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self.hang_up()

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        self.hang_up()
        self.listener.close()
