"""The OpenAI Agents SDK over chat completions, with the mailbox's tools."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.support.agents import _common as common


async def rollout(episode: Any) -> Any:
    from openai import AsyncOpenAI

    from agents import Agent, FunctionTool, ModelSettings, OpenAIChatCompletionsModel, RunHooks, Runner
    from agents import set_tracing_disabled as disable_tracing
    from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError

    class Counter(RunHooks[Any]):
        calls = 0

        async def on_llm_end(self, *_: Any, **__: Any) -> None:
            self.calls += 1

    env, (system, question) = common.world(episode), common.messages(episode)

    def made(schema: dict[str, Any]) -> FunctionTool:
        name, text, parameters = (schema["function"][field] for field in ("name", "description", "parameters"))

        async def call(_: Any, arguments: str) -> str:
            return common.run(env, name, arguments)

        return FunctionTool(
            name=name, description=text, params_json_schema=parameters, on_invoke_tool=call, strict_json_schema=False
        )

    disable_tracing(True)
    counter = Counter()
    async with AsyncOpenAI(
        base_url=common.base_url(episode),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    ) as client:
        agent = Agent(
            name="reader",
            instructions=system["content"],
            model=OpenAIChatCompletionsModel(model="policy", openai_client=client),
            model_settings=ModelSettings(temperature=0.3),
            tools=[made(schema) for schema in common.SCHEMAS],
        )
        with contextlib.suppress(MaxTurnsExceeded, ModelBehaviorError):  # a call of a tool that there is not
            await Runner.run(agent, question["content"], max_turns=common.TURNS, hooks=counter)
    return common.result(counter.calls)
