"""The OpenAI Agents SDK over chat completions, with three tools."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.support.agents import _common as common


async def rollout(episode: Any) -> Any:
    from openai import AsyncOpenAI

    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        RunHooks,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError

    class Counter(RunHooks[Any]):
        calls = 0

        async def on_llm_end(self, *_: Any, **__: Any) -> None:
            self.calls += 1

    set_tracing_disabled(True)
    counter = Counter()
    async with AsyncOpenAI(
        base_url=common.base_url(episode),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    ) as client:
        agent = Agent(
            name="reader",
            instructions="You look things up in mails.",
            model=OpenAIChatCompletionsModel(model="policy", openai_client=client),
            model_settings=ModelSettings(temperature=0.3),
            tools=[function_tool(tool) for tool in common.TOOLS],
        )
        with contextlib.suppress(MaxTurnsExceeded, ModelBehaviorError):  # a call of a tool that there is not
            await Runner.run(agent, common.question(episode), max_turns=common.TURNS, hooks=counter)
    return common.result(counter.calls)
