"""An agent that is shown pictures, in its scenario and by what it does: each answer is followed by another picture."""

from __future__ import annotations

import base64
from typing import Any

from environments.kit.agents import Result

TURNS = 2


def rollout(episode: Any) -> Any:
    from tests.support.seeing import picture

    messages, text = episode.messages, ""
    with episode.openai() as client:
        for turn in range(TURNS):
            reply = client.chat.completions.create(model=episode.model, messages=messages, max_tokens=12)
            text += reply.choices[0].message.content or ""
            url = f"data:image/png;base64,{base64.b64encode(picture(episode.attempt * 10 + turn)).decode()}"
            shown = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "And this?"}]
            messages += [
                {"role": "assistant", "content": reply.choices[0].message.content},
                {"role": "user", "content": shown},
            ]
    share = sum(letter in "aeiou" for letter in text) / max(len(text), 1)
    return Result(reward=share, success=share > 0.3)
