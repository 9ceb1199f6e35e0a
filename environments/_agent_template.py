"""Capitals: "What is the capital of Peru?", answered by an agent of your own: OpenAI's package, and one tool.

A small agent to start from. EDIT marks what an agent of your own changes; its test says that it works:

    make check-task NAME=_agent_template
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from environments import Result

FOLDER = Path(__file__).resolve().parent.parent / "tasks_data" / "_template"  # EDIT: what your tools need
TURNS = 4  # answers of the model
SYSTEM = "Look the country up, then answer with the name of its capital."  # EDIT
COUNTRY = {"type": "string", "description": "the name of the country"}
TOOLS: list[dict[str, Any]] = [  # EDIT
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look up the capital of a country.",
            "parameters": {"type": "object", "properties": {"country": COUNTRY}, "required": ["country"]},
        },
    }
]


def use(name: str, arguments: str) -> str:  # EDIT: your tools
    """What a tool answers. Whatever the model made of a call, it gets an answer from which it can learn."""
    capitals = json.loads((FOLDER / "capitals.json").read_text(encoding="utf-8"))
    try:
        return str(capitals[json.loads(arguments)["country"]]) if name == "look_up" else f"There is no tool {name}."
    except (ValueError, LookupError, TypeError):
        return "There is no country of this name; look up another."


async def rollout(episode: Any) -> Result:  # EDIT: your agent; a plain `def` and any framework will do, too
    """One episode: the reward is 1 where the last answer names the capital, else 0."""
    messages = [{"role": "system", "content": SYSTEM}, *episode.messages]
    answer = ""
    async with episode.openai() as client:
        for _ in range(TURNS):
            completion = await client.chat.completions.create(model=episode.model, messages=messages, tools=TOOLS)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            answer = message.content or ""
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                text = use(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    is_right = episode.data["answer"].casefold() in answer.casefold()  # EDIT; return None if only a judge can tell
    return Result(reward=float(is_right), success=is_right, output=answer)
