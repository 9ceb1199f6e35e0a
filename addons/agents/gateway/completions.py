"""OpenAI's completions: a prompt as a text or as token ids, without messages, tools or a chat template.

Left out: several prompts in one request, `echo`, `suffix` and `best_of`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from addons.agents.gateway import events as sse
from addons.agents.gateway import fields as read
from addons.agents.gateway.chat import usage, wants_usage
from addons.agents.gateway.events import error as error
from addons.agents.gateway.types import BadRequest, Choice, Reply, Request, Token

REFUSED = {
    "echo": "answers hold what was sampled alone",
    "suffix": "the policy writes on from the prompt",
    "best_of": "ask for n answers and choose among them",
    "messages": "messages are for chat/completions",
    "tools": "tools are for chat/completions",
    "response_format": "schemas are for chat/completions",
}
MOST_LOGPROBS = 20
KNOWN = {"prompt", "n", "max_tokens", "stop", "seed", "logprobs"}


def parse(body: Any) -> Request:
    """A request's body. BadRequest names the field that is wrong and the reason."""
    fields = read.checked(body, REFUSED)
    top = fields.get("logprobs")
    return Request(
        prompt=_prompt(fields.get("prompt")),
        n=read.integer(fields.get("n", 1), "n", 1, read.MOST_ANSWERS),
        max_tokens=read.limit(fields, "max_tokens"),
        stop=read.stops(fields, "stop"),
        seed=read.integer(fields["seed"], "seed", -(2**63), 2**63 - 1) if "seed" in fields else None,
        top_logprobs=None if top is None else read.integer(top, "logprobs", 0, MOST_LOGPROBS),
        ignored=read.ignored(fields, KNOWN),
    )


def _prompt(given: Any) -> str | tuple[int, ...]:
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        if len(given) > 1:
            raise BadRequest(f"prompt holds {len(given)} prompts; send a request for each", "prompt")
        given = given[0]
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given:
        return tuple(read.integer(token, f"prompt[{place}]", 0, 2**31 - 1) for place, token in enumerate(given))
    raise BadRequest("prompt must be a text, a list of token ids, or a list of one of them, and not empty", "prompt")


def render(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    """A finished answer as `openai.types.Completion`."""
    choices = [_choice(index, choice.text, body, choice) for index, choice in enumerate(reply.choices)]
    return _head(reply) | {"choices": choices, "usage": usage(reply)}


def events(reply: Reply, body: Mapping[str, Any]) -> Iterator[str]:
    """The same answer as a stream of `openai.types.Completion`, one answer after another."""
    counted, head = wants_usage(body), _head(reply)
    for index, choice in enumerate(reply.choices):
        for piece in sse.pieces(choice.text):
            yield sse.event(head | {"choices": [_choice(index, piece, body)]})
        yield sse.event(head | {"choices": [_choice(index, "", body, choice)]})
    if counted:
        yield sse.event(head | {"choices": [], "usage": usage(reply)})
    yield sse.DONE


def _head(reply: Reply) -> dict[str, Any]:
    return {"id": f"cmpl-{reply.id}", "object": "text_completion", "created": reply.created, "model": reply.model}


def _choice(index: int, text: str, body: Mapping[str, Any], ended: Choice | None = None) -> dict[str, Any]:
    """A piece of an answer; `ended` is the whole answer where the piece is its last."""
    logprobs = _logprobs(ended.tokens) if ended is not None and body.get("logprobs") is not None else None
    reason = None if ended is None else "length" if ended.finish_reason == "length" else "stop"
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
    """The legacy form: parallel lists, with the place in the text where each token begins."""
    offsets = [0, *itertools.accumulate(len(token.text) for token in tokens)][:-1]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [max(token.logprob, sse.LEAST) for token in tokens],
        "top_logprobs": [{text: max(value, sse.LEAST) for text, value in token.top} for token in tokens],
        "text_offset": offsets,
    }
