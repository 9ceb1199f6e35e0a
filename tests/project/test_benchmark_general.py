"""The held-out tool sets of benchmarks.general_policy are whole and strange to the generator; verdicts by hand."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from addons.supervised.toolsets import toolsets
from benchmarks.general_policy import FILE, Verdict, verdict
from environments.base import use
from environments.kit.tools import tool_of

SETS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
TOOLS = SETS[0]["tools"]
REQUEST = {"user": "…", "tool": "search_catalogue", "arguments": {"query": "Le Guin"}}


def test_twenty_sets_with_five_requests_each_that_their_tools_accept() -> None:
    assert len(SETS) == 20
    assert len({made["trade"] for made in SETS}) == 20
    for made in SETS:
        known = {tool["function"]["name"]: tool_of(json.loads(json.dumps(tool["function"]))) for tool in made["tools"]}
        assert len(made["requests"]) == 5
        for request in made["requests"]:
            known[request["tool"]].arguments.model_validate(request["arguments"])


def test_neither_names_nor_requests_come_from_the_generator() -> None:
    """800 of its sets. An answer is given by `answer` in many tasks, and so it is there."""
    names, requests = set(), set()
    for made in itertools.islice(toolsets(1), 800):
        names |= {tool["function"]["name"] for tool in made.tools}
        requests |= {episode[0]["content"] for episode in made.episodes}
    held_out = {tool["function"]["name"] for made in SETS for tool in made["tools"]}
    assert held_out & names <= {"answer"}
    assert not requests & {request["user"] for made in SETS for request in made["requests"]}


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("search_catalogue", {"query": "le guin "}, Verdict(True, True, True)),
        ("search_catalogue", {"query": "Guin"}, Verdict(True, True, False)),
        ("renew_loan", {"barcode": "Le Guin"}, Verdict(True, False, False)),
        ("search_catalogue", {}, Verdict(False, False, False)),
        ("search_catalogue", {"query": 7}, Verdict(False, False, False)),
        ("search", {"query": "Le Guin"}, Verdict(False, False, False)),
    ],
)
def test_verdicts(name: str, arguments: dict[str, Any], expected: Verdict) -> None:
    assert verdict(use(name, **arguments)["tool_calls"], [], REQUEST, TOOLS) == expected


def test_a_turn_without_a_call_or_with_a_broken_one_is_not_valid() -> None:
    calls = use("search_catalogue", query="Le Guin")["tool_calls"]
    assert verdict([], [], REQUEST, TOOLS) == Verdict(False, False, False)
    assert verdict(calls, ["a tool call must be JSON"], REQUEST, TOOLS) == Verdict(False, False, False)
