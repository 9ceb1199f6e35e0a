"""The anthropic package: messages with tools, every other turn streamed."""

from __future__ import annotations

from typing import Any

from tests.support.agents import _common as common

TOOLS: list[Any] = [
    {
        "name": schema["function"]["name"],
        "description": schema["function"]["description"],
        "input_schema": schema["function"]["parameters"],
    }
    for schema in common.SCHEMAS
]


async def rollout(episode: Any) -> Any:
    import anthropic
    import httpx2 as httpx

    calls = 0
    env, (system, *messages) = common.world(episode), common.messages(episode)
    async with anthropic.AsyncAnthropic(
        base_url=common.base_url(episode).removesuffix("/v1"),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    ) as client:
        for turn in range(common.TURNS):
            asked: dict[str, Any] = {"model": "policy", "max_tokens": 64, "messages": messages, "tools": TOOLS}
            asked["system"] = system["content"]
            if turn % 2:
                for _ in range(common.RETRIES):
                    try:
                        async with client.messages.stream(**asked) as stream:
                            reply = await stream.get_final_message()
                        break
                    except (anthropic.APIError, httpx.HTTPError):
                        continue
            else:
                reply = await client.messages.create(**asked)
            calls += 1
            messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})  # pyrefly: ignore[unbound-name]
            used = [block for block in reply.content if block.type == "tool_use"]
            if not used:
                messages.append({"role": "user", "content": "Call a tool."})
                continue
            messages.append(
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": block.id,
                            "content": common.run(env, block.name, block.input),
                        }
                        for block in used
                    ],
                }
            )
    return common.result(calls)
