"""The agent _agent_template and its scenarios. In place of a model is a canned server (tests/support/openai_server.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import environments
from addons.agents.episode import Episode
from environments import Result
from environments import _agent_template as agent
from environments.base import Scenario
from tests.conftest import ROOT
from tests.support.openai_server import Answer, Body, Server, calling, last, tool_call


def scenario() -> Scenario:
    env = environments.load("_agent_template")
    return env.scenarios(env.load(ROOT / "tasks_data" / "_template"), "train", 1, seed=1)[0]


def play(answer: Any) -> tuple[Result, list[Body]]:
    """What the agent returns where the server answers so, and what it asked."""
    with Server(answer) as server:
        episode = Episode("e", scenario(), 0, 1, server.url, "a key", seconds=30.0)
        return asyncio.run(agent.rollout(episode)), server.bodies


def test_the_agent_calls_its_tool_and_is_rewarded_for_the_right_answer() -> None:
    def answer(body: Body) -> Answer:
        if body["messages"][-1]["role"] == "user":
            return calling(tool_call("look_up", {"country": scenario().data["country"]}))
        return f"It is {last(body)}."

    result, asked = play(answer)
    capital = scenario().data["answer"]
    assert result == Result(reward=1.0, success=True, output=f"It is {capital}.")
    assert [message["role"] for message in asked[-1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert asked[0]["tools"] == agent.TOOLS
    assert asked[0]["model"] == "policy"


def test_a_wrong_answer_is_not_rewarded() -> None:
    result, _ = play(lambda body: "Perhaps Atlantis.")
    assert result == Result(reward=0.0, success=False, output="Perhaps Atlantis.")


def test_calls_that_make_no_sense_are_answered_and_come_to_an_end() -> None:
    result, asked = play(lambda body: calling(tool_call("look_up", "{"), tool_call("fly", {})))
    answers = [message["content"] for message in asked[-1]["messages"] if message["role"] == "tool"]
    assert answers[:2] == ["There is no country of this name; look up another.", "There is no tool fly."]
    assert len(asked) == agent.TURNS
    assert result.reward == 0.0
