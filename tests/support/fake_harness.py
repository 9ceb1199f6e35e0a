#!/usr/bin/env python3
"""A fake coding agent: it does what its question says in JSON, and writes what came of it to report.json.

{"write": {path: text}, "link": {path: target}, "read": [paths], "connect": [ports], "leave": seconds, "sleep": seconds,
"status": number}. `leave` starts a process in a session of its own, whose id is in the file `left`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def attempt(action: Callable[..., object], *words: object) -> str:
    try:
        return str(action(*words))
    except OSError as problem:
        return type(problem).__name__


def connect(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return "connected"


def make_socket(name: str) -> str:
    """A socket by the names of its family, its kind and perhaps its protocol."""
    family, kind, *protocol = name.split()
    with socket.socket(getattr(socket, family), getattr(socket, kind), *map(int, protocol)):
        return "made"


def main() -> int:
    orders = json.loads(sys.argv[-1])
    if "leave" in orders:
        words = ["-c", f"import time; time.sleep({orders['leave']})"]
        left = subprocess.Popen([sys.executable, *words], start_new_session=True)
        Path("left").write_text(str(left.pid))
    report = {
        "arguments": sys.argv[1:],
        "variables": dict(os.environ),
        "folder": str(Path.cwd()),
        "files": sorted(str(path) for path in Path().rglob("*") if path.is_file()),
        "home": {str(path): path.read_text() for path in Path.home().rglob("*") if path.is_file()},
        "wrote": {path: attempt(Path(path).write_text, text) for path, text in orders.get("write", {}).items()},
        "read": {path: attempt(Path(path).read_text) for path in orders.get("read", ())},
        "made": {name: attempt(make_socket, name) for name in orders.get("make", ())},
        "connected": {port: attempt(connect, port) for port in orders.get("connect", ())},
    }
    for path, target in orders.get("link", {}).items():
        Path(path).symlink_to(target)
    Path("report.json").write_text(json.dumps(report))
    time.sleep(orders.get("sleep", 0))
    return int(orders.get("status", 0))


if __name__ == "__main__":
    sys.exit(main())
