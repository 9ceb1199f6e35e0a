"""The token graph: what is continued, what forks and why, and the trajectory that an execution leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from steps.core.params import Policy
from steps.policy.chat import Chat
from steps.policy.loading import load_tokenizer
from tests.support.forks import Agent

CAUSES = (
    *("reasoning_stripped", "json_rewritten", "system_changed", "tools_changed", "history_compacted", "sub_agent"),
    *("retry", "edited"),
)
Chats = Callable[[tuple[Any, ...]], Chat]


@pytest.fixture(scope="module")
def chats() -> Chats:
    tokenizer = load_tokenizer(Policy())
    known: dict[str, Chat] = {}

    def of(tools: tuple[Any, ...]) -> Chat:
        return known.setdefault(str(tools), Chat(tokenizer, tools)) if str(tools) not in known else known[str(tools)]

    return of


def test_300_planted_forks_are_labelled_and_98_percent_rightly(chats: Chats) -> None:
    wrong: Counter[tuple[str, str]] = Counter()
    for number in range(300):
        cause = CAUSES[number % len(CAUSES)]
        agent = Agent(chats, number, has_thoughts=True if cause == "reasoning_stripped" else None)
        agent.play(agent.draw.randrange(3, 6))
        assert [node.placement.cause for node in agent.graph.nodes] == [""] * len(agent.graph.nodes)
        label = agent.fork(cause).cause
        assert label, (number, cause)
        if label != cause:
            wrong[cause, label] += 1
        agent.play(1)
        assert agent.graph.nodes[-1].placement.cause == "", (number, cause)
    print(wrong)
    assert wrong.total() <= 6, wrong
