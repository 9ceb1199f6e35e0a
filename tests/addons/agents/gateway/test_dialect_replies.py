"""What the dialects write is what the official packages' own types describe, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest

from addons.agents.gateway import chat, completions, messages, responses
from addons.agents.gateway.events import KEEP_ALIVE
from addons.agents.gateway.types import BadRequest, Choice
from tests.support.canned_gateway import choice, reply

BODIES: list[dict[str, Any]] = [
    {},
    {"logprobs": True, "stream_options": {"include_usage": True}, "thinking": {"type": "adaptive"}},
]
CHOICES = [
    choice(),
    choice("", calls=2, reasoning="Hm."),
    choice(calls=1, reasoning="Hm. " * 40),
    choice("", finish_reason="length", tokens=()),
    choice("Hm", stop="\n"),
]


def types_of(dialect: Any) -> tuple[Any, Any]:
    """The official types of an answer, and of an event of its stream."""
    import anthropic.types
    import openai.types.chat
    import openai.types.responses

    event: Any = openai.types.responses.ResponseStreamEvent
    types: dict[Any, tuple[Any, Any]] = {
        chat: (openai.types.chat.ChatCompletion, openai.types.chat.ChatCompletionChunk),
        completions: (openai.types.Completion, openai.types.Completion),
        responses: (openai.types.responses.Response, event),
        messages: (anthropic.types.Message, anthropic.types.RawMessageStreamEvent),
    }
    return types[dialect]


def parsed(text: str) -> list[tuple[str | None, dict[str, Any]]]:
    """The name and the data of each event of a stream, as a reader of raw server-sent events sees them."""
    blocks = [block.splitlines() for block in text.split("\n\n")]  # splitlines cuts at U+2028, too
    assert blocks.pop() == []
    made = []
    for lines in blocks:
        fields = dict(line.split(": ", 1) for line in lines)
        assert list(fields) in (["data"], ["event", "data"])
        made.append((fields.get("event"), json.loads(fields["data"]) if fields["data"] != "[DONE]" else {}))
    return made


@pytest.mark.parametrize("made", CHOICES)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("dialect", [chat, completions, responses, messages])
def test_answers_and_events_are_of_the_official_types(dialect: Any, body: dict[str, Any], made: Choice) -> None:
    whole, part = types_of(dialect)
    rendered = json.dumps(dialect.render(reply(made), body), allow_nan=False)
    whole.model_validate_json(rendered)
    text = "".join(dialect.events(reply(made), body))
    assert text.isascii()
    events = parsed(text)
    checked = pydantic.TypeAdapter(part)
    for name, data in events:
        if dialect is completions and data:  # its type is for the whole answer, too; a piece has no reason yet
            data["choices"] = [
                {**piece, "finish_reason": piece["finish_reason"] or "stop"} for piece in data["choices"]
            ]
        if data:
            checked.validate_python(data)
        assert name in (None, data.get("type"))
    assert text.endswith("data: [DONE]\n\n") == (dialect in (chat, completions))
    assert text == "".join(dialect.events(reply(made), body))  # same inputs, same bytes


def test_the_order_of_events() -> None:
    made = reply(choice("Lima.", calls=1, reasoning="Hm."))
    named = [name for name, _ in parsed("".join(responses.events(made, {})))]
    item = ["response.output_item.added", "response.output_item.done"]
    content = ["response.content_part.added", "response.content_part.done"]
    thought = [f"response.reasoning_summary_{end}" for end in ("part.added", "text.delta", "text.done", "part.done")]
    called = [f"response.function_call_arguments.{end}" for end in ("delta", "delta", "delta", "done")]
    assert named == [
        *("response.created", "response.in_progress"),
        *(item[0], *thought, item[1]),
        *(item[0], content[0], "response.output_text.delta", "response.output_text.done", content[1], item[1]),
        *(item[0], *called, item[1]),
        "response.completed",
    ]
    numbers = [data["sequence_number"] for _, data in parsed("".join(responses.events(made, {})))]
    assert numbers == list(range(len(named)))
    named = [name for name, _ in parsed("".join(messages.events(made, {"thinking": {"type": "adaptive"}})))]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert named == [
        "message_start",
        *(block[0], block[1], block[1], block[2]),  # the words of the thought, and its signature
        *block,
        *(block[0], block[1], block[1], block[1], block[2]),
        *("message_delta", "message_stop"),
    ]


def test_usage_comes_last_in_a_stream_where_it_is_asked_for() -> None:
    counted = {"stream_options": {"include_usage": True}}
    for dialect in (chat, completions):
        *chunks, last, _ = (data for _, data in parsed("".join(dialect.events(reply(), counted))))
        assert (last["choices"], last["usage"]["total_tokens"]) == ([], 107)
        assert all(chunk.get("usage") is None for chunk in chunks)
        assert not any("usage" in data for _, data in parsed("".join(dialect.events(reply(), {}))))


def test_a_message_without_words_or_calls_comes_back() -> None:
    """Each dialect shows an empty turn in a form that it reads again."""
    empty = reply(choice(""))
    ask = {"role": "user", "content": "Where?"}
    back = [
        chat.parse({"messages": [ask, chat.render(empty, {})["choices"][0]["message"]]}),
        responses.parse({"input": [ask, *responses.render(empty, {})["output"]]}),
        messages.parse({"max_tokens": 9, "messages": [ask, messages.render(empty, {}), ask]}),
    ]
    assert [request.messages[1] for request in back] == [{"role": "assistant", "content": ""}] * 3


@pytest.mark.parametrize(
    ("status", "openai_type", "anthropic_type"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (413, "invalid_request_error", "request_too_large"),
    ],
)
def test_errors_by_status(status: int, openai_type: str, anthropic_type: str) -> None:
    problem = BadRequest("No.", "n", "too_many")
    expected = {"error": {"message": "No.", "type": openai_type, "param": "n", "code": "too_many"}}
    assert all(dialect.error(problem, status) == expected for dialect in (chat, completions, responses))
    assert messages.error(problem, status) == {"type": "error", "error": {"type": anthropic_type, "message": "No."}}


def test_a_comment_keeps_a_stream_alive() -> None:
    assert KEEP_ALIVE.startswith(":")
    assert KEEP_ALIVE.endswith("\n\n")
