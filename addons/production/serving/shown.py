"""What the served model is shown: the messages of a request as rollouts show them (steps/policy/rendering.py).

ASGI middleware right before vLLM's application, which would render a request's own messages: names of special tokens in
them would be tokens, and the second of two system messages would be lost. Here messages take the form in which the policy
was trained: parts as one text, one system message at the front, names of special tokens broken up in messages and tools.
What the chat template would leave out is refused with a sentence (status 400). Of vLLM's other paths the texts alone are
changed; a prompt without messages (/v1/completions) is taken as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from addons.production.serving.bodies import CHAT, refusal
from addons.production.serving.trial import rewrite
from steps.core import message_parts as parts
from steps.core import outside_json
from steps.core.params import Policy
from steps.kit.guard import Call, Middleware, drained, read
from steps.policy.loading import load_tokenizer
from steps.policy.rendering import Renderer

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp

POLICY = "FLYWHEEL_SHOWN"  # the variable of vLLM's process with the policy, as JSON
CHATS = (CHAT, f"{CHAT}/render", "/tokenize", "/invocations")
TEXTS = ("messages", "system", "tools", "functions", "input", "instructions")  # what a body shows, on any path


class Shown(Middleware):
    """Rewrites the messages of requests."""

    def __init__(self, app: ASGIApp) -> None:
        policy = Policy.model_validate_json(os.environ[POLICY])
        super().__init__(app)
        self.renderer = Renderer(load_tokenizer(policy), policy.chat_template_kwargs)

    async def answer(self, call: Call) -> Response | None:
        scope = call.scope
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        body, is_whole, call.receive = await read(call.receive)
        if not is_whole:
            await drained(call.receive)
            return refusal(413, "the request is too long")
        if not body or Headers(scope=scope).get("content-type", "").startswith("multipart/"):
            return None
        try:
            request = outside_json.read_object(body)
            if not request.keys() & set(TEXTS):
                return None
            changed = self.chat(request) if scope["path"] in CHATS else self.plain(request)
        except ValueError as problem:
            return refusal(400, str(problem))
        rewrite(call, changed)
        return None

    def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        """A request for a chat completion. ValueError says what of it cannot be shown."""
        request = self.plain(request)
        tools = request.get("tools")
        if isinstance(tools, list):
            request["tools"] = tools = [described(tool) for tool in tools]
        given = request.get("messages")
        try:
            messages = [message for each in given or () for message in parts.messages_in(each, packed=False)]
        except (ValueError, TypeError, AttributeError):
            return request  # vLLM says what is wrong, or takes what this form cannot keep
        shown = self.renderer.shown(parts.with_names(messages))
        self.renderer.refuse_lost(shown, tools or ())
        return request | {"messages": [written(message) for message in shown]}

    def plain(self, request: dict[str, Any]) -> dict[str, Any]:
        """A request in which no text is a special token."""
        return request | {name: self.renderer.plain(decoded(request[name])) for name in TEXTS if name in request}


def decoded(value: Any) -> Any:
    """The value with the arguments of calls as objects: in their JSON a letter may be written in several ways."""
    if isinstance(value, list):
        return [decoded(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    return {name: parts.decoded(part) if name == "arguments" else decoded(part) for name, part in value.items()}


def described(tool: Any) -> Any:
    """A tool as environments and the gateway describe theirs: the same fields in the same order."""
    if not isinstance(tool, dict) or not isinstance(function := tool.get("function"), dict):
        return tool
    given = function.get("parameters")
    parameters = {"type": "object", "properties": {}} if given is None else given
    fields = {"name": function.get("name"), "description": function.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": fields}


def written(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as clients write it, with arguments as JSON."""
    made = {name: part for name, part in message.items() if name != "reasoning_content"}
    calls = []
    for place, call in enumerate(message.get("tool_calls") or ()):
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({"id": f"call_{place}", **call, "function": {**call["function"], "arguments": arguments}})
    return made | ({"tool_calls": calls} if calls else {})
