"""Middleware of our servers, and what they check of a request: the name that they are called by, who asks, and the key.

    class Guard(Middleware):
        async def answer(self, call: Call) -> Response | None:
            if caller_fault(Headers(scope=call.scope), {"localhost"}):
                return PlainTextResponse("not here", 403)
            return None                                              # the application gets the call

Against DNS rebinding: a foreign page whose name points at 127.0.0.1 still sends that name in `Host`. Against posts from
other sites: a browser sends the page's address in `Origin`. A body is read by `read`, which has a limit.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# uvicorn's options for every server: a request's line and headers have 64 KiB together. Its other parser, httptools, has no
# limit: a caller without a key could send 64 MB of them.
LIMITED: dict[str, Any] = {"http": "h11", "h11_max_incomplete_event_size": 65_536}
LARGEST = 16 * 2**20  # bytes of a body that is read


@dataclass
class Call:
    """What the application gets: a middleware may put something else in place of each."""

    scope: Scope
    receive: Receive
    send: Send


class Middleware(ABC):
    """ASGI middleware whose `answer` is what a call gets, or None for those that reach the application. A connection by
    WebSocket that would get an answer is refused."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.lifespan(scope, receive, send)
        call = Call(scope, receive, send)
        if (answer := await self.answer(call)) is None:
            return await self.app(call.scope, call.receive, call.send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        return await answer(scope, call.receive, send)

    @abstractmethod
    async def answer(self, call: Call) -> Response | None:
        """What a call gets in place of the application's answer; None where it goes on."""

    async def lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """From the server's start to its end."""
        await self.app(scope, receive, send)


# --- Who asks


def caller_fault(headers: Headers, names: Collection[str], any_address: bool = False) -> int:
    """The status with which a caller is refused: 421 for one that names another server than these (or an address, with
    `any_address`), 403 for a page of another site; 0 for all others."""
    hosts = headers.getlist("host")
    name = host_name(hosts[0]) if len(hosts) == 1 else ""
    if name not in names and not (any_address and is_address(name)):
        return 421
    return 403 if is_foreign(headers.getlist("origin"), hosts) else 0


def bearer(headers: Headers) -> str:
    """The key of `Authorization: Bearer`; empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def same(given: str, expected: str) -> bool:
    """Whether a secret is the right one, in a time that does not tell how much of it is."""
    return secrets.compare_digest(given.encode(), expected.encode())


def host_name(header: str) -> str:
    """The name in a Host header, without the port and the brackets of IPv6; empty where it is none."""
    parts = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::\d*)?", header.strip())
    return (parts[1] or parts[2]).lower() if parts else ""


def is_address(name: str) -> bool:
    """Whether this is an IP address, which no DNS server can point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_foreign(origins: Sequence[str], hosts: Sequence[str]) -> bool:
    """Whether a page of another server asks. `origins` and `hosts`: the values of these headers."""
    return bool(origins) and (len(hosts) != 1 or any(each.partition("://")[2] != hosts[0] for each in origins))


# --- Bodies


async def read(receive: Receive, most: int = LARGEST) -> tuple[bytes, bool, Receive]:
    """(the body, whether it is whole, what gives it to the application again). One of more than `most` bytes is not read to
    its end."""
    messages: list[Message] = []
    size, is_whole = 0, False
    while size <= most:
        messages.append(await receive())
        size += len(messages[-1].get("body", b""))
        if messages[-1]["type"] == "http.disconnect" or not messages[-1].get("more_body"):
            is_whole = messages[-1]["type"] == "http.request" and size <= most
            break
    left = iter(list(messages))

    async def again() -> Message:
        return next(left, None) or await receive()

    return b"".join(message.get("body", b"") for message in messages), is_whole, again


async def drained(again: Receive, most: int = 2 * LARGEST) -> int | None:
    """Take all of a body, as far as it has `most` bytes, and keep nothing of it: a client that is still sending would not
    see the refusal. Its bytes; None where the client has gone."""
    size = 0
    while size <= most:
        message = await again()
        size += len(message.get("body", b""))
        if message["type"] == "http.disconnect":
            return None
        if not message.get("more_body"):
            break
    return size
