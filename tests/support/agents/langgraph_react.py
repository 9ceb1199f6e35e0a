"""LangChain's ready-made ReAct agent on LangGraph, with three tools."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.agents import _common as common


def tools(env: Any) -> list[Any]:
    """The mailbox's tools as LangChain's, with the schemas that the policy was trained with."""
    from langchain_core.tools import StructuredTool

    def made(name: str, description: str, parameters: dict[str, Any]) -> StructuredTool:
        def call(**arguments: Any) -> str:
            return common.run(env, name, arguments)

        return StructuredTool(name=name, description=description, args_schema=parameters, func=call)

    return [made(**schema["function"]) for schema in common.SCHEMAS]


async def rollout(episode: Any) -> Any:
    from langchain_core.callbacks import AsyncCallbackHandler
    from langchain_openai import ChatOpenAI
    from langgraph.errors import GraphRecursionError
    from langgraph.prebuilt import create_react_agent

    class Counter(AsyncCallbackHandler):
        calls = 0

        async def on_llm_end(self, *_: Any, **__: Any) -> None:
            self.calls += 1

    counter = Counter()
    model = ChatOpenAI(
        model="policy",
        base_url=common.base_url(episode),
        api_key=episode.api_key,
        timeout=common.TIMEOUT,
        max_retries=common.RETRIES,
    )
    agent = create_react_agent(model, tools(common.world(episode)))
    try:
        await agent.ainvoke(
            {"messages": common.messages(episode)},
            {"recursion_limit": 2 * common.TURNS, "callbacks": [counter]},
        )
    except GraphRecursionError:
        await asyncio.sleep(0)
    return common.result(counter.calls)
