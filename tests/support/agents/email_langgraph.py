"""The email task played by LangChain's ready-made ReAct agent: what is trained end to end beside the native environment.

Prompt, tools and reward are the environment's own. The agent differs where it is another program: a turn without a tool call
ends its episode, where the environment would ask for one.
"""

from __future__ import annotations

from typing import Any

from environments import Result
from environments.base import Message, Split
from environments.email_search import EmailSearch
from tests.support.agents import _common as common

sources = EmailSearch.sources


def scenarios(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    made = EmailSearch.scenarios(common.mailbox(), split, count, seed)
    return [{"messages": list(scenario.messages), **scenario.data} for scenario in made]


async def rollout(episode: Any) -> Result:
    from langchain_core.tools import StructuredTool
    from langchain_openai import ChatOpenAI
    from langgraph.errors import GraphRecursionError
    from langgraph.prebuilt import create_react_agent

    env = common.world(episode)

    def made(name: str, description: str, parameters: dict[str, Any]) -> StructuredTool:
        def call(**arguments: Any) -> str:
            return common.run(env, name, arguments)

        ends = name == "return_final_answer"
        return StructuredTool(name=name, description=description, args_schema=parameters, func=call, return_direct=ends)

    model = ChatOpenAI(
        model="policy", base_url=common.base_url(episode), api_key=episode.api_key, max_retries=20, timeout=300
    )
    agent: Any = create_react_agent(model, [made(**schema["function"]) for schema in common.SCHEMAS])
    said: list[Any] = []
    try:
        limit = {"recursion_limit": 2 * EmailSearch.max_turns + 1}
        async for state in agent.astream({"messages": common.messages(episode)}, limit, stream_mode="values"):
            said = state["messages"]
    except GraphRecursionError:
        pass
    messages = [*episode.scenario.messages, *map(native, said[len(episode.scenario.messages) :])]
    parts = EmailSearch.components(episode.scenario, messages)
    return Result(
        reward=sum(part.value for part in parts),
        success=EmailSearch.success(episode.scenario, messages),
        components={part.name: part.value for part in parts},
    )


def native(message: Any) -> Message:
    """LangChain's message in the environment's form."""
    if message.type == "tool":
        return {"role": "tool", "name": message.name, "content": message.content}
    calls = [
        {"type": "function", "function": {"name": call["name"], "arguments": call["args"]}}
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content} | ({"tool_calls": calls} if calls else {})
