"""The openai package's responses, with a tool, and with the previous response named instead of sent."""

from __future__ import annotations

from typing import Any

from tests.support.agents import _common as common

TOOLS: list[Any] = [{"type": "function", **schema["function"], "strict": False} for schema in common.SCHEMAS]


async def rollout(episode: Any) -> Any:
    from openai import AsyncOpenAI

    calls, env = 0, common.world(episode)
    async with AsyncOpenAI(
        base_url=common.base_url(episode),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    ) as client:
        response: Any = None
        items: Any = common.messages(episode)
        for _ in range(common.TURNS):
            previous = {"previous_response_id": response.id} if response is not None else {}
            response = await client.responses.create(model="policy", input=items, tools=TOOLS, **previous)  # pyrefly: ignore[no-matching-overload]
            calls += 1
            items = [
                {
                    "type": "function_call_output",
                    "call_id": item.call_id,
                    "output": common.run(env, item.name, item.arguments),
                }
                for item in response.output
                if item.type == "function_call"
            ]
            items = items or [{"role": "user", "content": "Call a tool."}]
    return common.result(calls)
