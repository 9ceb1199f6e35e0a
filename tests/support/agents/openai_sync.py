"""The openai package, synchronous, in a plain function: streamed turns without tools, with a seed and log probabilities."""

from __future__ import annotations

from typing import Any

from tests.support.agents import _common as common


def rollout(episode: Any) -> Any:
    from openai import OpenAI

    messages = common.messages(episode)
    with OpenAI(
        base_url=common.base_url(episode),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    ) as client:
        for turn in range(common.TURNS):
            reply = client.chat.completions.create(
                model="policy", messages=messages, max_tokens=12, seed=turn, logprobs=True, top_logprobs=2
            )
            logprobs = reply.choices[0].logprobs
            assert logprobs is not None
            assert logprobs.content
            messages += [
                {"role": "assistant", "content": reply.choices[0].message.content},
                {"role": "user", "content": f"Go on ({turn})."},
            ]
    return common.result(common.TURNS)
