"""Runs one command with walls around it, and ends all that it started. Only confined.py starts it.

The first line of stdin is the request, in JSON; stdin stays open as long as the command may run. When it closes, or when the
command has ended, every process that came of the command is killed, whatever session or group it has made for itself: this
process is the one to which orphans are given. It ends with the command's status.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from typing import Any, NoReturn

HERE, KEEPER = os.path.dirname(os.path.abspath(__file__)), "../keeper.py"  # noqa: PTH100, PTH120 (pathlib takes 8 ms)
sys.path[:0] = [HERE, os.path.dirname(os.path.join(HERE, KEEPER))]  # noqa: PTH118, PTH120
import _runner  # pyrefly: ignore[missing-import]  # noqa: E402
import keeper  # pyrefly: ignore[missing-import]  # noqa: E402

EXECUTE, SPECIAL = 1 << 0, 1 << 9 | 1 << 10 | 1 << 12 | 1 << 15  # sockets, pipes, links, and ioctl on devices
CONNECT = 2  # to bind is not forbidden: a harness may talk to itself by a server of its own
NOT_CONFINED = 125  # the status where the walls cannot stand


def become(request: dict[str, Any]) -> NoReturn:
    """Put up the walls and become the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    if request["confined"]:
        _runner.drop_privileges(libc)
        allowed = [(path, _runner.READ | EXECUTE) for path in request["readable"]]
        allowed += [(path, _runner.READ | _runner.CHANGE | EXECUTE | SPECIAL) for path in request["writable"]]
        if not _runner.allow_files(libc, allowed, CONNECT, request["ports"]):
            os._exit(NOT_CONFINED)
        if request["sockets"] and _runner.install(libc, bytes.fromhex(request["sockets"]), 0) != 0:
            os._exit(NOT_CONFINED)
    command = request["command"]
    try:
        os.execve(command[0], command, request["variables"])
    except OSError as problem:
        os.write(2, f"{command[0]} cannot be run: {problem.strerror}\n".encode())
        os._exit(126)


def main() -> int:
    request = json.loads(sys.stdin.buffer.readline())
    keeper.adopt()
    child = os.fork()
    if child == 0:
        become(request)
    status: int = keeper.kept(child, 0)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
