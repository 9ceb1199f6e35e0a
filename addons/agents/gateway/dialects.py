"""The dialects by their routes under /episodes/<id>/v1/."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from addons.agents.gateway import chat, completions, messages, responses
from addons.agents.gateway import events as sse
from addons.agents.gateway.types import BadRequest, Reply, Request


class Dialect(NamedTuple):
    """What a route does with bodies and replies; the modules of the dialects say more."""

    parse: Callable[..., Request]  # of a body; of responses also what is `Recorded`
    render: Callable[[Reply, dict[str, Any]], dict[str, Any]]  # an answer as JSON, to the body that asked for it
    events: Callable[[Reply, dict[str, Any]], Iterator[str]]  # the same as server-sent events
    error: Callable[[BadRequest, int], dict[str, Any]] = sse.openai_error  # a refusal with its status
    error_name: str | None = None  # of the event of an error

    def error_event(self, problem: BadRequest, status: int) -> str:
        """An error after the stream has begun; the official clients raise APIError or APIStatusError from it. That of
        responses only hands on the event `error` that OpenAI describes, so it has the form of the others."""
        return sse.event(self.error(problem, status), self.error_name)


DIALECTS = {
    "chat/completions": Dialect(chat.parse, chat.render, chat.events),
    "completions": Dialect(completions.parse, completions.render, completions.events),
    "responses": Dialect(responses.parse, responses.render, responses.events),
    "messages": Dialect(messages.parse, messages.render, messages.events, messages.error, "error"),
}
