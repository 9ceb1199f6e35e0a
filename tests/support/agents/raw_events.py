"""No SDK at all: requests of server-sent events over a socket, read line by line; asked again by the same body."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.support.agents import _common as common


async def rollout(episode: Any) -> Any:
    calls = 0
    messages = common.messages(episode)
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=common.TIMEOUT) as client:
        for turn in range(common.TURNS):
            body = {"model": "policy", "stream": True, "max_tokens": 10, "messages": messages}
            text = None
            for _ in range(common.RETRIES):
                try:
                    text = await stream(client, f"{common.base_url(episode)}/chat/completions", body)
                    break
                except (httpx.HTTPError, ConnectionError):
                    continue
            if text is None:
                raise RuntimeError("the stream never came to its end")
            calls += 1
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"More ({turn})."}]
    return common.result(calls)


async def stream(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> str:
    """The text of a streamed answer. ConnectionError where the stream ends too early."""
    parts: list[str] = []
    async with client.stream("POST", url, json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return "".join(parts)
            if line.startswith("data: "):
                choices = json.loads(line[6:])["choices"]
                parts += [choice["delta"].get("content") or "" for choice in choices]
    raise ConnectionError("the stream ended before its last event")
