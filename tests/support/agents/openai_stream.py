"""The openai package's streams of chat completions with tools. A stream that breaks is asked for again."""

from __future__ import annotations

from typing import Any

from tests.support.agents import _common as common


async def rollout(episode: Any) -> Any:
    import httpx2 as httpx
    import openai

    calls = 0
    env, messages = common.world(episode), common.messages(episode)
    async with openai.AsyncOpenAI(
        base_url=common.base_url(episode),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    ) as client:
        for turn in range(common.TURNS):
            headers = {"Idempotency-Key": f"{episode.api_key[:8]}-{turn}"}
            for _ in range(common.RETRIES):
                try:
                    async with client.chat.completions.stream(
                        model="policy", messages=messages, tools=common.SCHEMAS, extra_headers=headers
                    ) as stream:
                        async for _event in stream:
                            pass
                        final = await stream.get_final_completion()
                    break
                except openai.LengthFinishReasonError:  # a call that was cut off: the SDK does not hand it on
                    return common.result(calls + 1)
                except (openai.APIError, httpx.HTTPError):  # the SDK does not retry a stream that has begun
                    continue
            else:
                raise RuntimeError("the stream never came to its end")
            calls += 1
            message = final.choices[0].message
            written: dict[str, Any] = {"role": "assistant", "content": message.content}
            if message.tool_calls:
                written["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments},
                    }
                    for call in message.tool_calls
                ]
            messages.append(written)
            if not message.tool_calls:
                messages.append({"role": "user", "content": "Call a tool."})
            for call in message.tool_calls or ():
                text = common.run(env, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return common.result(calls)
