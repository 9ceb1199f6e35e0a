"""LangChain's ready-made ReAct agent on LangGraph, with three tools."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.agents import _common as common


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
    agent = create_react_agent(model, common.TOOLS)
    try:
        await agent.ainvoke(
            {"messages": [("user", common.question(episode))]},
            {"recursion_limit": 2 * common.TURNS, "callbacks": [counter]},
        )
    except GraphRecursionError:
        await asyncio.sleep(0)
    return common.result(counter.calls)
