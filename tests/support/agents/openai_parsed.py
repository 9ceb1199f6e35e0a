"""The openai package's parsed outputs: an answer that a schema rules."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from tests.support.agents import _common as common


class Verdict(BaseModel):
    mails: Literal[1, 2, 3]
    is_found: bool


async def rollout(episode: Any) -> Any:
    from openai import AsyncOpenAI

    messages = common.messages(episode)
    async with AsyncOpenAI(
        base_url=common.base_url(episode),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    ) as client:
        first = await client.chat.completions.create(model="policy", messages=messages, n=2)
        reply = await client.chat.completions.parse(model="policy", messages=messages, response_format=Verdict)
    assert len(first.choices) == 2
    assert reply.choices[0].message.parsed is not None
    return common.result(3)  # two answers and one
