"""The email task's own loop as an agent of OpenAI's package: what appends only, and must give the environment's very tokens.

With JITTER in the environment it sleeps for a random time before each call, which must change nothing in lockstep.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from environments import Result
from environments.email_search import EmailSearch
from tests.support.agents import _common as common


async def rollout(episode: Any) -> Result:
    from openai import AsyncOpenAI

    env: Any = common.world(episode)
    messages, turns = common.messages(episode), 0
    jitter = float(os.environ.get("JITTER", "0"))
    async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=20) as client:
        while not env.done and turns < EmailSearch.max_turns:
            await asyncio.sleep(random.uniform(0, jitter))
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=common.SCHEMAS)
            turns += 1
            message, calls = reply.choices[0].message, list[Any](reply.choices[0].message.tool_calls or ())
            messages.append(message.model_dump(exclude_none=True))
            if reply.choices[0].finish_reason == "length" or not calls:  # here the environment would go on otherwise
                return Result(reward=0.0, components={"differs": 1.0})
            for call in calls:
                text = common.run(env, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
                if env.done:
                    break
    return Result(reward=1.0, components={"differs": 0.0})
