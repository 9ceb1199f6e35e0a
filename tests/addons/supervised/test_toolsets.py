"""Made-up tool sets: their tools are as a task's are, each call fits its tool, and what is copied was read before."""

from __future__ import annotations

import itertools
import json
from random import Random
from typing import Any

import pytest

from addons.supervised import frames, phrases, words
from addons.supervised.toolsets import ToolSet, toolsets
from environments.base import is_error
from environments.kit import tools


@pytest.fixture(scope="module")
def sets() -> list[ToolSet]:
    return list(itertools.islice(toolsets(1), 400))


def functions(made: ToolSet) -> dict[str, Any]:
    return {tool["function"]["name"]: tool["function"] for tool in made.tools}


def test_the_same_seed_gives_the_same_sets(sets: list[ToolSet]) -> None:
    assert list(itertools.islice(toolsets(1), 20)) == sets[:20]
    assert next(toolsets(2)) != sets[0]


def test_schemas_are_those_of_a_tasks_methods(sets: list[ToolSet]) -> None:
    class Example:
        def look(self, name: str, count: int, kinds: list[str], fast: bool = False) -> str:
            """Look something up.

            Args:
                name: what it is
                count: how many
                kinds: which kinds
                fast: whether at once
            """
            return ""

    written = tools.make_tool(Example.look).schema
    forms = {json.dumps(list(part)) for part in written["function"]["parameters"]["properties"].values()}
    for made in sets:
        assert 0 <= len(made.tools) <= 5
        assert len(functions(made)) == len(made.tools), "two tools have one name"
        for tool in made.tools:
            assert list(tool) == list(written)
            assert list(tool["function"]) == list(written["function"])
            assert list(tool["function"]["parameters"]) == list(written["function"]["parameters"])
            for part in tool["function"]["parameters"]["properties"].values():
                assert json.dumps(list(part)) in forms or list(part) == ["type", "enum", "description"]
                assert part["type"] in {"string", "integer", "number", "boolean", "array"}
                assert "{" not in part["description"]
            assert "{" not in tool["function"]["description"]


def test_each_call_that_is_learnt_fits_its_tool_and_flawed_ones_are_answered_by_an_error(sets: list[ToolSet]) -> None:
    flawed = 0
    for made in sets:
        known = functions(made)
        for episode in made.episodes:
            assert episode[0]["role"] == "user"
            assert "{" not in str(episode[0]["content"]) or not made.tools
            assert not episode[-1].get("flawed")
            for message, answer in itertools.zip_longest(episode, episode[1:]):
                for call in message.get("tool_calls") or ():
                    function = call["function"]
                    if message.get("flawed"):
                        flawed += 1
                        assert is_error(answer)
                        continue
                    tool = tools.tool_of(json.loads(json.dumps(known[function["name"]])))
                    tool.arguments.model_validate(function["arguments"])
    assert flawed > 50


def test_values_stand_in_what_was_read_before_the_call(sets: list[ToolSet]) -> None:
    """Numbers at times in letters; booleans and choices are told in words."""
    copied = missing = 0
    for made in sets:
        known = functions(made)
        for episode in made.episodes:
            for place, message in enumerate(episode):
                read = "\n".join(str(earlier["content"]) for earlier in episode[:place])
                for call in () if message.get("flawed") else message.get("tool_calls") or ():
                    kinds = known[call["function"]["name"]]["parameters"]["properties"]
                    for name, value in call["function"]["arguments"].items():
                        if isinstance(value, bool) or "enum" in kinds[name]:
                            continue
                        for part in value if isinstance(value, list) else [value]:
                            spelled = isinstance(part, int) and part in range(1, 13) and words.NUMBERS[part - 1] in read
                            is_read = str(part) in read or json.dumps(part, ensure_ascii=False)[1:-1] in read or spelled
                            copied, missing = copied + is_read, missing + (not is_read)
    assert copied > 3000
    assert missing == 0


def test_there_are_episodes_of_one_to_five_turns_some_without_a_call(sets: list[ToolSet]) -> None:
    turns = [sum(message["role"] == "assistant" for message in episode) for made in sets for episode in made.episodes]
    assert {1, 2, 3} <= set(turns) <= set(range(1, 6))
    assert any(not made.tools for made in sets)
    assert any(made.system for made in sets)
    assert any(not made.system for made in sets)


@pytest.mark.parametrize("kind", words.VALUES)
def test_values_are_many_and_plain(kind: str) -> None:
    rng = Random(1)
    values = [str(words.value(kind, rng)) for _ in range(300)]
    assert len(set(values)) > 60
    assert all(value == value.strip() and value and '"' not in value and "\n" not in value for value in values)


def test_tables_have_as_many_columns_in_each_row() -> None:
    tables = {"ACTIONS": 4, "SLOTS": 4, "CHOICES": 3, "FLAGS": 3, "FRAMES": 4, "ATTRIBUTES": 3, "ANSWERS": 2, "CHAT": 2}
    for name, columns in tables.items():
        table = getattr(frames, name, "") or getattr(phrases, name)
        assert {len(row) for row in frames.rows(table)} == {columns}, name


def test_plurals_and_articles() -> None:
    assert [words.plural(noun) for noun in ("box", "day", "city", "bench", "mug")] == [
        "boxes",
        "days",
        "cities",
        "benches",
        "mugs",
    ]
    assert (words.a("egg"), words.a("mug")) == ("an egg", "a mug")
