"""The agent of benchmarks/gateway.py: so many calls one after another on one connection, each timed, with a tool between."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx2

from environments.kit.agents import Result

CONTEXT = httpx2.create_ssl_context()  # for all episodes: to make it takes 20 ms


async def rollout(episode: Any) -> Result:
    data = episode.scenario.data
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    seconds = []
    if huge := data.get("huge"):
        return await oversized(episode, headers, huge)
    async with httpx2.AsyncClient(headers=headers, timeout=600, verify=CONTEXT) as client:
        for call in range(data["calls"]):
            words = f"{data['text']} Question {call} of episode {episode.scenario.id}-{episode.attempt}."
            body = {"model": "policy", "max_tokens": data["tokens"], "messages": [{"role": "user", "content": words}]}
            began = time.perf_counter()
            response = await client.post(f"{episode.base_url}/chat/completions", json=body)
            seconds.append(time.perf_counter() - began)
            response.raise_for_status()
            if data["tool_seconds"]:
                await asyncio.sleep(data["tool_seconds"])
    return Result(reward=0.0, components={f"call {place}": value for place, value in enumerate(seconds)})


async def oversized(episode: Any, headers: dict[str, str], letters: int) -> Result:
    """Ask again and again with a message that no context holds, which the gateway refuses."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "a " * (letters // 2)}]}
    async with httpx2.AsyncClient(headers=headers, timeout=600, verify=CONTEXT) as client:
        for _ in range(episode.scenario.data["calls"]):
            response = await client.post(f"{episode.base_url}/chat/completions", json=body)
            assert response.json()["error"]["code"] == "context_length_exceeded", response.text[:200]
    return Result(reward=0.0)
