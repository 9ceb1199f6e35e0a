"""The dialects by their routes under /episodes/<id>/v1/."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from addons.agents.gateway import chat, completions, messages, responses
from addons.agents.gateway.types import BadRequest, Reply, Request


class Dialect(NamedTuple):
    """What a route does with bodies and replies; the modules of the dialects say more."""

    parse: Callable[..., Request]  # of a body; of responses also a `History`
    render: Callable[[Reply, dict[str, Any]], dict[str, Any]]  # an answer as JSON, to the body that asked for it
    events: Callable[[Reply, dict[str, Any]], Iterator[str]]  # the same as server-sent events
    error: Callable[[BadRequest, int], dict[str, Any]]  # a refusal with its status
    error_event: Callable[[BadRequest, int], str]  # the same where a stream has begun


DIALECTS = {
    name: Dialect(module.parse, module.render, module.events, module.error, module.error_event)
    for name, module in (
        ("chat/completions", chat),
        ("completions", completions),
        ("responses", responses),
        ("messages", messages),
    )
}
