"""The agents in docs/agents.md run as they stand there, against a canned server in place of a model."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from addons.agents.episode import Episode
from addons.agents.worker import as_result
from environments.base import Scenario
from environments.kit.agents import read_row
from tests.conftest import ROOT
from tests.project.test_readme import blocks
from tests.support.openai_server import Answer, Body, Server, calling, last, tool_call

PAGE = (ROOT / "docs" / "agents.md").read_text()


def answer(body: Body) -> Answer:
    """Calls the tool, where there is one, then says what it was told."""
    if body.get("tools") and body["messages"][-1]["role"] != "tool":
        return calling(tool_call("look_up", {"country": "Peru"}))
    return f"It is {last(body)}." if body.get("tools") else "It is Lima."


@pytest.mark.parametrize("place", range(2))
def test_the_rollout_functions_of_the_page_run(place: int) -> None:
    module: dict[str, Any] = {}
    exec(blocks(PAGE, "python")[place], module)
    messages, data = read_row(blocks(PAGE, "json")[0].splitlines()[0])
    scenario = Scenario.make("docs", "train", messages, data)
    with Server(answer) as server:
        returned = module["rollout"](Episode("e", scenario, 0, 1, server.url, "a key", 30.0))
        if inspect.isawaitable(returned):

            async def wait() -> Any:
                return await returned

            returned = asyncio.run(wait())
        assert server.calls == place + 1
    assert as_result(returned).reward == 1.0


def test_the_page_s_scenario_with_a_picture_is_one(tmp_path: Path) -> None:
    from tests.support.seeing import picture

    (tmp_path / "maps").mkdir()
    (tmp_path / "maps/7.png").write_bytes(picture(7))
    [message], _ = read_row(blocks(PAGE, "json")[1], tmp_path)
    assert (message["content"], len(message["pictures"])) == ("Which way?", 1)


def test_the_scenarios_of_the_page_are_scenarios() -> None:
    for line in blocks(PAGE, "json")[0].splitlines():
        messages, data = read_row(line)
        assert messages[-1]["role"] == "user"
        assert data["answer"]
        assert json.loads(line)
