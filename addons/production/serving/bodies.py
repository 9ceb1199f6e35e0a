"""The bodies of requests and answers of the served model: read, understood, and given on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from addons.production.traces.messages import conversation_of
from addons.production.traces.records import content_hash, mapping
from steps.core import outside_json

if TYPE_CHECKING:
    from starlette.datastructures import Headers

CHAT = "/v1/chat/completions"
CONVERSATION_HEADER = "x-flywheel-conversation"


def refusal(status: int, text: str) -> JSONResponse:
    """An answer in the form of vLLM's own errors."""
    return JSONResponse({"error": {"message": text, "type": "BadRequestError", "code": status}}, status)


def asked(body: bytes) -> dict[str, Any] | None:
    """The request in a body; None where it has no list of messages, which the application will say. ValueError with a
    sentence where it is no JSON object."""
    request = outside_json.read_object(body)
    return request if isinstance(request.get("messages"), list) else None


def named(headers: Headers, request: Mapping[str, Any]) -> str:
    """What names a conversation: the client, or its messages up to the first of the user."""
    inside = mapping(request.get("metadata")).get("conversation_id")
    if name := headers.get(CONVERSATION_HEADER) or inside:
        return str(name)
    try:
        messages = conversation_of(request["messages"])
    except Exception:  # whatever a client writes
        return json.dumps(request["messages"], sort_keys=True, default=str)
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), len(messages))
    return content_hash(messages[: first + 1])


def answers(body: bytes) -> list[dict[str, Any]]:
    """The answers in a response, {"id", "message"}: of JSON, or joined from a stream's deltas. None of one that is cut
    off."""
    if body.lstrip().startswith(b"{"):
        content = _object(body)
        choices = (choice for choice in content.get("choices") or () if choice.get("message"))
        ended = ({"finish_reason": choice.get("finish_reason"), **choice["message"]} for choice in choices)
        return [{"id": content.get("id"), "message": message} for message in ended]
    name = ""
    made: dict[int, dict[str, Any]] = {}
    for line in body.decode("utf-8", "replace").split("\n"):
        chunk = _object(line.removeprefix("data:").strip().encode()) if line.startswith("data:") else {}
        name = str(chunk.get("id") or name)
        for choice in chunk.get("choices") or ():
            number, delta = int(choice.get("index") or 0), choice.get("delta") or {}
            message = made.setdefault(number, {"role": "assistant", "content": "", "reasoning": "", "calls": {}})
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                entry = message["calls"].setdefault(
                    int(call.get("index") or 0), {"function": {"name": "", "arguments": ""}}
                )
                entry |= {"id": call["id"]} if call.get("id") else {}
                entry["function"]["name"] += function.get("name") or ""
                entry["function"]["arguments"] += function.get("arguments") or ""
            if reason := choice.get("finish_reason"):
                message["finish_reason"] = reason
    listed = []
    for _, message in sorted(made.items(), key=lambda pair: pair[0]):
        if "finish_reason" not in message:
            continue
        calls = [call for _, call in sorted(message.pop("calls").items())]
        listed.append({"id": name, "message": message | ({"tool_calls": calls} if calls else {})})
    return listed


def _object(body: bytes) -> dict[str, Any]:
    try:
        return outside_json.read_object(body)
    except ValueError:
        return {}
