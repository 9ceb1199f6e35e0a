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
    messages: list[Any] = [{"role": "user", "content": common.question(episode)}]
    async with anthropic.AsyncAnthropic(
        base_url=common.base_url(episode).removesuffix("/v1"),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    ) as client:
        for turn in range(common.TURNS):
            asked: dict[str, Any] = {"model": "policy", "max_tokens": 48, "messages": messages, "tools": TOOLS}
            asked["system"] = "You look things up."
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
            messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
            used = [block for block in reply.content if block.type == "tool_use"]
            if not used:
                break
            messages.append(
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": block.id,
                            "content": common.run(block.name, str(block.input)),
                        }
                        for block in used
                    ],
                }
            )
    return common.result(calls)
