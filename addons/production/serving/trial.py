"""A canary: a share of the conversations goes to a second version, and each answer says which version gave it.

ASGI middleware between capture and vLLM's application. What is served is in a small file that
addons/production/serve.py writes: the champion's version, and the canary's with its share and the name that its adapter
has in vLLM. A conversation stays with one version: a hash of its key decides. An answer names its version in the header
`x-flywheel-version`, and capture stores it. While the champion's adapter is being swapped nobody can tell which one
answers: then the header is missing, and capture stores none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.datastructures import Headers, MutableHeaders

from addons.production.serving.bodies import CHAT, asked, named, refusal
from addons.production.serving.capture import ANSWERED
from steps.core.files import write_text
from steps.kit.guard import Call, Middleware, read

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message

FILE = "FLYWHEEL_SERVED"  # the variable that names the file
VERSION_HEADER = "x-flywheel-version"


class Served(NamedTuple):
    """What is served now."""

    name: str  # under which clients ask for the champion
    champion: str | None  # version; None while its adapter is swapped
    canary: str | None = None
    canary_name: str = ""  # of its adapter in vLLM
    share: float = 0.0  # of conversations that the canary gets

    def write(self, path: Path) -> None:
        write_text(path, json.dumps(self._asdict()) + "\n")

    def gets_canary(self, key: str) -> bool:
        """Whether a conversation goes to the canary. Another hash than that of capture's sample."""
        place = int(hashlib.sha256(f"canary {self.canary} {key}".encode()).hexdigest()[:8], 16) / 16**8
        return self.canary is not None and place < self.share


class Trial(Middleware):
    """Sends conversations to the version that they belong to."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.path = Path(os.environ[FILE])
        self.state: tuple[int, int] | None = None  # of the file that was read
        self.served = Served("", None)

    async def answer(self, call: Call) -> Response | None:
        scope = call.scope
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != CHAT:
            return None
        body, is_whole, call.receive = await read(call.receive)
        try:
            request, served = asked(body) if is_whole else None, self.now()
        except ValueError as problem:
            return refusal(400, str(problem))
        if request is None or request.get("model") != served.name:
            return None
        version, send = served.champion, call.send
        answered = scope.get(ANSWERED, {})  # capture's own, where it stores the answer
        if is_canary := served.gets_canary(named(Headers(scope=scope), request)):
            rewrite(call, request | {"model": served.canary_name})
            version = served.canary

        async def name_version(message: Message) -> None:
            """Name the version that gives the answer, while that is sure."""
            nonlocal version
            if not is_canary and version != self.now().champion:
                version = None  # the champion's adapter was swapped meanwhile; a canary's has a name of its own
            answered["version"] = version
            if message["type"] == "http.response.start" and message["status"] == 200 and version:
                MutableHeaders(raw=message["headers"])[VERSION_HEADER] = version
            await send(message)

        call.send = name_version
        return None

    def now(self) -> Served:
        """What is served, by the file, which is read again when it has changed. Where it cannot be read, requests go where
        they went, and nobody can tell which version that is."""
        try:
            status = self.path.stat()
            if (state := (status.st_mtime_ns, status.st_ino)) != self.state:
                self.served, self.state = Served(**json.loads(self.path.read_text())), state
        except (OSError, ValueError, TypeError):
            self.served, self.state = self.served._replace(champion=None), None
        return self.served


def rewrite(call: Call, content: Mapping[str, Any]) -> None:
    """Give a call another body, as JSON."""
    body, rest = json.dumps(content).encode(), call.receive
    length = (b"content-length", str(len(body)).encode())
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if parts:
            return parts.pop()
        message = await rest()
        while message["type"] == "http.request":  # of the body that was replaced
            message = await rest()
        return message

    kept = [pair for pair in call.scope["headers"] if pair[0] != length[0]]
    call.scope, call.receive = {**call.scope, "headers": [*kept, length]}, receive
