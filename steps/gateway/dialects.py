"""The forms in which the gateway can be asked, by the end of their address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from steps.gateway import chat, completions, messages, responses
from steps.gateway.types import BadRequest, Reply, Request


class Dialect(Protocol):
    """What the module of a dialect has. `responses.parse` takes a second argument (Batch.parse gives it)."""

    def parse(self, body: Any) -> Request: ...

    def render(self, reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]: ...

    def events(self, reply: Reply, body: Mapping[str, Any]) -> Iterator[str]: ...

    def error(self, problem: BadRequest, status: int) -> dict[str, Any]: ...

    def error_event(self, problem: BadRequest, status: int) -> str: ...


DIALECTS: dict[str, Dialect] = {
    "chat/completions": cast(Dialect, chat),
    "completions": cast(Dialect, completions),
    "responses": cast(Dialect, responses),
    "messages": cast(Dialect, messages),
}
