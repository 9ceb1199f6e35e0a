"""From sampled tokens to an answer, and from a request to what the engine must keep to while it samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from addons.agents.gateway.fields import plain_object
from addons.agents.gateway.journal import Answer
from addons.agents.gateway.types import BadRequest, Choice, Request, Token
from environments.base import Message

if TYPE_CHECKING:
    from addons.agents.section import Grammar
    from steps.policy.chat import Chat

BEGIN_OF_CALL, END_OF_CALL = "<tool_call>", "</tool_call>"  # of that form; a turn that may have one call ends there
TAGGED = "hermes"  # the form of calls for which a tool can be forced
MODEL = "policy"  # the name that clients call the model by; any other name is answered, too


def limits(request: Request, chat: Chat, max_tokens: int, mode: Grammar = "exact") -> dict[str, Any]:
    """The fields of steps.sampling.turns.Limits; without a grammar where `mode`, rollout.grammar, is free. BadRequest where
    a tool cannot be forced."""
    fields: dict[str, Any] = {"max_tokens": max_tokens, "stop": list(request.stop)}
    if is_held_to_one_call(request) and chat.tool_parser == TAGGED:
        fields["stop"].append(END_OF_CALL)
    if mode != "free":
        fields |= grammar(request, chat)
    if request.top_logprobs is not None:
        fields["top_logprobs"] = max(1, request.top_logprobs)  # where the policy is greedy, nothing else has them
    return fields


def is_held_to_one_call(request: Request) -> bool:
    """Whether the policy could make several calls and may not: a forced call is one anyway."""
    return request.one_call and bool(request.tools) and request.tool_choice == "auto"


def grammar(request: Request, chat: Chat) -> dict[str, str]:
    """The grammar that a request asks for, as a field of Limits: nothing, a JSON schema, or a structural tag. Where there
    are tools, too, a schema is of the answer in the end, and the policy may call one before."""
    is_forced = request.tool_choice not in ("auto", "none")
    if not is_forced and request.schema is None:
        return {}
    if not is_forced and (not request.tools or request.tool_choice == "none"):
        return {"schema": json.dumps(request.schema)}
    if chat.tool_parser != TAGGED and is_forced:
        raise BadRequest(
            f"tool_choice: a tool can be forced only where calls are JSON between tags, and this model's are "
            f"{chat.tool_parser}; use auto",
            "tool_choice",
        )
    if chat.tool_parser != TAGGED:
        raise BadRequest(
            "response_format: beside tools the form of an answer can be set only where calls are JSON between tags, and "
            f"this model's are {chat.tool_parser}; leave one of the two out, or set rollout.grammar: free",
            "response_format",
        )
    forms = [] if is_forced else [{"type": "json_schema", "json_schema": request.schema}]
    functions = [tool["function"] for tool in request.tools]
    forms += [_tag(each) for each in functions if request.tool_choice in ("auto", "required", each["name"])]
    content = forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}
    return {"tag": json.dumps({"type": "structural_tag", "format": content})}


def _tag(function: dict[str, Any]) -> dict[str, Any]:
    """The part of vLLM's structural tag for a turn that is one call of a tool."""
    return {
        "type": "tag",
        "begin": f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": ',
        "content": {"type": "json_schema", "json_schema": function.get("parameters") or {"type": "object"}},
        "end": "}\n</tool_call>",
    }


def ended(answer: Answer, chat: Chat) -> list[int]:
    """The tokens of an answer without the one that ends it."""
    ids = list(answer.completion_ids)
    return ids[:-1] if ids[-1:] in ([chat.end], [chat.tokenizer.eos_token_id]) else ids


def spoken(answer: Answer, request: Request, chat: Chat) -> tuple[str, str | None]:
    """What an answer says, and the stop text that ended it, which is left out of the first."""
    text = chat.text(ended(answer, chat))
    places = [(text.index(stop), stop) for stop in request.stop if stop in text]
    stop = min(places)[1] if places else None
    return (text if stop is None else text.partition(stop)[0]), stop


def read(answer: Answer, request: Request, chat: Chat, name: str, mode: Grammar = "exact") -> Choice:
    """A sampled answer as a client gets it. Ids of calls follow from `name`, so that a retry has the same ones. `mode`:
    rollout.grammar."""
    ids = list(answer.completion_ids)
    text, stop = spoken(answer, request, chat)
    # Under a grammar nothing stands before the JSON: a policy that reasons has not reasoned.
    is_json = request.schema is not None and mode != "free" and not text.startswith(BEGIN_OF_CALL)
    if request.prompt is not None or is_json:
        message: Message = {"role": "assistant", "content": text}
    else:
        message = dict(chat.parse(ended(answer, chat)).message)
        written = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        if written and (request.tool_choice == "none" or not all(map(is_sendable, written))):
            message = {"role": "assistant", "content": text}
        elif stop is not None:
            message["content"] = message["content"].partition(stop)[0]
    calls = [
        {"id": f"call_{hashlib.sha256(f'{name} {place}'.encode()).hexdigest()[:20]}"} | call
        for place, call in enumerate(message.get("tool_calls") or ())
    ]
    if calls:
        message["tool_calls"] = calls
    reason: Any = "length" if answer.finish_reason == "length" else "tool_calls" if calls else "stop"
    tokens = _tokens(answer, chat, request.top_logprobs) if request.top_logprobs is not None else ()
    return Choice(message, text, reason, tokens, len(ids), stop)


def is_sendable(arguments: Any) -> bool:
    """Whether a client could send a call with these arguments back, which the gateway then reads."""
    try:
        plain_object(arguments, "arguments")
    except BadRequest:
        return False
    return True


def _tokens(answer: Answer, chat: Chat, count: int) -> tuple[Token, ...]:
    """The tokens of an answer, each with the `count` likeliest in its place."""
    top: Sequence[Sequence[tuple[int, float]]] = answer.top or [()] * len(answer.completion_ids)
    logprobs = answer.logprobs or tuple(
        dict(place).get(token, 0.0) for token, place in zip(answer.completion_ids, top, strict=True)
    )
    return tuple(
        Token(chat.text([token]), logprob, tuple((chat.text([other]), nats) for other, nats in place[:count]))
        for token, logprob, place in zip(answer.completion_ids, logprobs, top, strict=True)
    )
