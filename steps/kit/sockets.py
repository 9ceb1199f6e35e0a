"""Sockets: whether a port is free or answers, and connections between processes of this machine by a path.

Only the standard library is imported, because the command of each stage loads this module.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from socket import SHUT_RDWR as SHUT_RDWR
from socket import SHUT_WR as SHUT_WR
from socket import gaierror as gaierror

ANY, IPV4 = socket.AF_UNSPEC, socket.AF_INET


def listen(host: str, port: int, family: int = ANY, backlog: int = 128) -> socket.socket:
    """A socket that listens at an address of this machine; port 0 is any that is free. OSError where it is taken or the
    address is none of these, OverflowError for a port that there is not."""
    family = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][0]
    # With the protocol named, asyncio sends small packets at once (TCP_NODELAY): otherwise each answer takes 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may start again at once
        listener.bind((host, port))
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def hold(host: str) -> socket.socket:
    """A socket with a free port, which does not listen yet: until it does, a connection is refused, and nobody else gets the
    port. A process that is given its number (`pass_fds`) has it by `handed`."""
    holder = socket.socket(IPV4, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    holder.bind((host, 0))
    return holder


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection, of which a process that is started is handed one (`pass_fds`)."""
    return socket.socketpair()


def handed(number: int) -> socket.socket:
    """The socket that the parent has handed to this process."""
    return socket.socket(fileno=number)


def check_server(host: str, port: int, seconds: float) -> None:
    """OSError where nothing accepts a connection there in this time."""
    socket.create_connection((host, port), seconds).close()


def listen_at(path: Path) -> socket.socket:
    """A socket that listens at a path, for this user alone. OSError where there is such a file."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)  # before it listens, so that nobody else was let in
    listener.listen(128)
    return listener


def dial(path: Path) -> socket.socket | None:
    """A connection to the process that listens at a path; None where nobody does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
        return connection
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None


def peer(connection: socket.socket) -> tuple[int, int]:
    """(process id, user id) of the other end of a connection by a path, from the kernel."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
