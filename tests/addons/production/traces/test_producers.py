"""One conversation as other people's libraries recorded it (tests/addons/production/traces/producers/make.py): all of
it is read, or the loss is named here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from addons.production.traces import langfuse_traces, mlflow_traces, openai_jsonl, otel, otlp
from addons.production.traces.records import Conversation, PassedOver, Unreadable, joined

GOLDEN = Path(__file__).parent / "golden" / "producers"
TRUTH = json.loads((GOLDEN / "truth.json").read_text())
LOSES_REASONING = {  # what these do not record
    "langfuse_otlp",
    "langsmith",
    "openinference_langchain",
    "openinference_openai",
    "openllmetry_old_openai",
}
OTHER_SPANS = {  # what stands in the files beside calls
    "langsmith": {},
    "mlflow_chat": {"spans of the type AGENT": 1},
    "mlflow_responses": {"spans of the type AGENT": 1},
    "langfuse_otlp": {},
    "pydantic_ai": {"pydantic-ai, around calls": 2, "pydantic-ai, of tools": 2, "app, in which no model speaks": 1},
    "vercel": {"ai, around calls": 2, "ai, of tools": 2},
}


def parts(name: str) -> list[Conversation | Unreadable | PassedOver]:
    path = GOLDEN / f"{name}.jsonl"
    text = path.read_text(encoding="utf-8")
    if name.startswith("mlflow"):
        return list(mlflow_traces.read(langfuse_traces.export(path), path.name))
    if name == "langsmith":
        return list(openai_jsonl.read(openai_jsonl.rows(text), path.name))
    return list(otel.read(otlp.lines_or_whole(text), path.name))


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.jsonl")))
def test_all_that_was_said_is_read(name: str) -> None:
    made = parts(name)
    assert [part for part in made if isinstance(part, Unreadable)] == []
    others = Counter(part.what.removeprefix("spans of the scope ") for part in made if isinstance(part, PassedOver))
    expected = OTHER_SPANS.get(name, {"app, in which no model speaks": 1})
    assert {what: sum(n for each, n in others.items() if each.startswith(what)) for what in expected} == expected
    assert sum(others.values()) == sum(expected.values())
    [conversation], lost = joined(part for part in made if isinstance(part, Conversation))
    assert lost == []
    assert conversation.consent
    assert [shown(message, name) for message in conversation.messages] == [
        shown(message, name) for message in TRUTH["messages"]
    ]
    assert [tool_of(tool, name) for tool in conversation.tools] == [tool_of(tool, name) for tool in TRUTH["tools"]]
    places = [place for place, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    assert sorted(conversation.responses.values()) == places


def shown(message: dict[str, Any], name: str) -> dict[str, Any]:
    """A message, without what its producer does not record."""
    return {key: value for key, value in message.items() if key != "reasoning" or name not in LOSES_REASONING}


def tool_of(tool: dict[str, Any], name: str) -> dict[str, Any]:
    """A tool; pydantic-ai makes its schema by itself."""
    function = tool["function"]
    return (
        {**function, "parameters": sorted(function["parameters"]["properties"])} if name == "pydantic_ai" else function
    )
