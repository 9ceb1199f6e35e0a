"""The one way to speak to a server over HTTP. All that it may answer has an end, and no answer leads elsewhere.

    client = Client("https://example.org", headers={"Authorization": f"Bearer {key}"})
    answer = await client.ask("GET", "/v1/models", seconds=30.0)      # or client.asked(…), in code that is not asynchronous
    answer.status, answer.json()

What is limited: the time from the request to the last byte of the answer; its bytes, decompressed, and how many of them a
byte that arrives may become. Redirects are answers like any other and are not followed, so that a key reaches nobody else.
Servers on this machine are asked without a proxy. Left out: retries, whose rules differ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from environments.kit.waiting import run

if TYPE_CHECKING:
    import httpx2

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST = 2**26  # bytes of an answer
RATIO, FREE = 200, 2**20  # bytes that one may become (JSON becomes 10 to 50), and bytes from which on that counts


class NoAnswer(OSError):
    """There is no whole answer: why, in words without a full stop."""


class Unreachable(NoAnswer):
    """No connection: the server has had nothing of the request."""


class Late(NoAnswer, TimeoutError):
    """The time was over."""


class TooMuch(NoAnswer):
    """The answer was not read to its end."""


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]  # found in any case
    body: bytes  # decompressed

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")  # JSON is in UTF-8, whatever the headers say

    def json(self) -> Any:
        """ValueError where it is no JSON, or nested too deeply."""
        try:
            return json.loads(self.text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


class Client:
    """Connections to one server, by paths or whole addresses. It belongs to the event loop that it is first used in;
    `asked` uses that of environments/kit/waiting.py."""

    def __init__(
        self,
        base: str,  # scheme and host, and what all paths begin with
        *,
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,  # user, password
        connections: int = 10,
    ) -> None:
        self.base, self.headers, self.auth, self.connections = base.rstrip("/"), dict(headers or {}), auth, connections
        self._http: httpx2.AsyncClient | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        seconds: float,
        body: Any = None,  # sent as JSON
        content: bytes | None = None,  # sent as it is
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        most: int = MOST,
    ) -> Answer:
        """The answer, whatever its status. NoAnswer where there is none in time, or not all of it."""
        import httpx2

        http = self._opened()
        request: dict[str, Any] = {"json": body, "content": content, "headers": headers, "timeout": seconds}
        if query is not None:
            request["params"] = dict(query)
        try:
            async with asyncio.timeout(seconds):
                url = path if "://" in path else f"{self.base}{path}"
                async with http.stream(method, url, **request) as answer:
                    read = bytearray()
                    async for piece in answer.aiter_bytes():  # decompressed, in pieces of at most 1 MiB
                        read += piece
                        if len(read) > most:
                            raise TooMuch(f"the answer has more than {most:,} bytes")
                        if len(read) > max(FREE, RATIO * answer.num_bytes_downloaded):
                            raise TooMuch(f"the answer is compressed to less than 1/{RATIO} of its bytes")
                    return Answer(answer.status_code, answer.headers, bytes(read))
        except (TimeoutError, httpx2.ReadTimeout, httpx2.WriteTimeout):
            raise Late(f"no answer within {seconds:g} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.InvalidURL) as problem:
            raise Unreachable(str(problem) or type(problem).__name__) from None
        except (httpx2.HTTPError, httpx2.StreamError) as problem:
            raise NoAnswer(str(problem) or type(problem).__name__) from None

    def asked(self, method: str, path: str, **given: Any) -> Answer:
        """As `ask`, for code that is not asynchronous."""
        return run(self.ask(method, path, **given))

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        run(self.close())

    def _opened(self) -> httpx2.AsyncClient:
        if self._http is None:
            import httpx2

            limits = httpx2.Limits(max_connections=self.connections, max_keepalive_connections=self.connections)
            auth = httpx2.BasicAuth(*self.auth) if self.auth else None
            self._http = httpx2.AsyncClient(headers=self.headers, auth=auth, limits=limits, **_way(self.base))
        return self._http


def asked(method: str, url: str, *, seconds: float, auth: tuple[str, str] | None = None, **given: Any) -> Answer:
    """One request to a whole address, as `Client.ask`; `auth` as a client's."""
    with Client(url, auth=auth) as client:
        return client.asked(method, url, seconds=seconds, **given)


def _way(url: str) -> dict[str, Any]:
    """How a server is reached: this machine without a proxy; and without TLS no certificates are read, which takes 20 ms."""
    try:
        parts = urlsplit(url)
    except ValueError as problem:
        raise Unreachable(f"{url} is no address ({problem})") from None
    return {"trust_env": parts.hostname not in LOOPBACK, "verify": parts.scheme == "https", "follow_redirects": False}


def limited(url: str, headers: Mapping[str, str], seconds: float, most: int = MOST) -> httpx2.AsyncClient:
    """A client for packages that want one of httpx2's: each answer is uncompressed and has at most `most` bytes; `seconds`
    are for all but the reading of an answer, which goes on as long as a stream of events does."""
    import httpx2

    class Counted(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self.stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            count = 0
            async for piece in self.stream:
                count += len(piece)
                if count > most:
                    raise httpx2.ReadError(f"the answer has more than {most:,} bytes")
                yield piece

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def check(answer: httpx2.Response) -> None:
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("the answer is compressed, which was not asked for")
        stream: Any = answer.stream
        answer.stream = Counted(stream)

    return httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(seconds, read=None),
        event_hooks={"response": [check]},
        **_way(url),
    )
