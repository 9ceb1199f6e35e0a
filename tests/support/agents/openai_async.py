"""The openai package, asynchronous, with tools."""

from __future__ import annotations

from typing import Any

from tests.support.agents import _common as common


async def rollout(episode: Any) -> Any:
    from openai import AsyncOpenAI

    calls = 0
    env, messages = common.world(episode), common.messages(episode)
    async with AsyncOpenAI(
        base_url=common.base_url(episode),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    ) as client:
        for _ in range(common.TURNS):
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=common.SCHEMAS)
            calls += 1
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            calls_made: list[Any] = list(message.tool_calls or ())
            if not calls_made or env.done:
                messages.append({"role": "user", "content": "Call a tool."})
            for call in calls_made:
                text = common.run(env, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return common.result(calls)
