"""Your own agent as a task: what a rollout function gets and returns.

    # my_package/my_agent.py, with `task: my_package.my_agent` in params.yaml
    async def rollout(episode):
        client = episode.openai()
        answer = await client.chat.completions.create(model=episode.model, messages=[...])
        return 1.0 if "Lima" in answer.choices[0].message.content else 0.0

It may be a plain function, too. It returns a reward, a `Result`, or None: then a judge scores it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Result(BaseModel):
    """What an episode of your own agent came to. A float stands for Result(reward=…)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    reward: float | None = None  # None: a judge scores the episode
    success: bool | None = None  # None: success is a reward above 0.5
    components: dict[str, float] = {}  # parts of the reward by name
    output: str = ""  # what the agent came to, for judges; its last words where it is empty
