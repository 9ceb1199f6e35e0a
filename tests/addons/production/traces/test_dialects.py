"""Random conversations, written as each producer writes them, are read as they were; what cannot be is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addons.production.traces import langfuse_traces, mlflow_traces, openai_jsonl, otel
from addons.production.traces.records import Conversation, Unreadable
from addons.production.traces.spans import REDACTED
from steps.core.message_parts import is_cut_off, unpacked

Row = dict[str, Any]
LIKE_JSON = [
    '{"bed": 4}',
    "[1, 2]",
    '[{"bed": 4}]',
    '{"role": "user"}',
    '[{"bed": 4}] is what I have',
    '{"type": "rose", "n": 3}',
    '{"messages": []}',
    "null",
    '"quoted"',
    "[INST] hello",
    "{name}, hello",
    "data: [DONE]",
    "\u2028two\u0085lines\u2029",
    "<|im_end|>",
    "  spaces  ",
    "\x00nul",
    "🌱",
]
CUT_OFF = ['[{"type": "text", "te', '{"role": "assistant", "content', "[{'type': 'text', 'text': 'x'}]"]
letters = st.characters(exclude_categories=["Cs"])


def is_plain(text: str) -> bool:
    """Whether a text is neither blank nor what stands for something else in spans: blocks as JSON, cut off or not."""
    return bool(text.strip()) and text != REDACTED and not is_cut_off(text) and unpacked(text, "user") == text


words = st.sampled_from(LIKE_JSON) | st.text(letters, min_size=1, max_size=12).filter(is_plain)
names = st.sampled_from(["read_bed", "is_dry", "log-it"])
arguments = st.dictionaries(st.sampled_from(["bed", "unit"]), st.integers(0, 9) | words, max_size=2)


@st.composite
def conversations(draw: Callable[..., Any]) -> list[Row]:
    """A conversation in the product's own form, with what the assistant says at the end."""
    made: list[Row] = [{"role": "system", "content": draw(words)}] if draw(st.booleans()) else []
    count = 0
    for _ in range(draw(st.integers(1, 2))):
        made.append({"role": "user", "content": draw(words)})
        for _ in range(draw(st.integers(0, 2))):
            calls = [
                (f"call_{(count := count + 1)}", draw(names), draw(arguments)) for _ in range(draw(st.integers(1, 2)))
            ]
            message: Row = {"role": "assistant", "content": draw(words | st.just(""))}
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls
            ]
            made.append(thinking(draw, message))
            made += [{"role": "tool", "content": draw(words), "tool_call_id": i, "name": n} for i, n, _ in calls]
        made.append(thinking(draw, {"role": "assistant", "content": draw(words)}))
    return made


def thinking(draw: Callable[..., Any], message: Row) -> Row:
    return message | ({"reasoning": draw(words)} if draw(st.booleans()) else {})


def chat(messages: list[Row]) -> list[Row]:
    """OpenAI's chat messages, with reasoning as vLLM has it."""
    made = []
    for message in messages:
        row = {key: value for key, value in message.items() if key not in ("tool_calls", "reasoning", "name")}
        if calls := message.get("tool_calls"):
            row["tool_calls"] = [
                call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}
                for call in calls
            ]
        made.append(row | ({"reasoning_content": message["reasoning"]} if "reasoning" in message else {}))
    return made


def blocks(messages: list[Row]) -> list[Row]:
    """Anthropic's messages, without the system's; results of one turn are one message of the user."""
    made: list[Row] = []
    for message in messages:
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            if made[-1]["role"] == "user":
                made[-1]["content"].append(block)
            else:
                made.append({"role": "user", "content": [block]})
        elif message["role"] == "assistant":
            thoughts = [{"type": "thinking", "thinking": message["reasoning"]}] if "reasoning" in message else []
            texts = [{"type": "text", "text": message["content"]}] if message["content"] else []
            calls = [
                {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
                | {"input": call["function"]["arguments"]}
                for call in message.get("tool_calls", ())
            ]
            made.append({"role": "assistant", "content": [*thoughts, *texts, *calls]})
        elif message["role"] == "user":
            made.append({"role": "user", "content": message["content"]})
    return made


def items(messages: list[Row]) -> list[Row]:
    """Items of OpenAI's Responses."""
    made: list[Row] = []
    for message in messages:
        if message["role"] == "tool":
            made.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            )
        elif message["role"] == "assistant":
            if "reasoning" in message:
                made.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": message["reasoning"]}]})
            if message["content"]:
                text = {"type": "output_text", "text": message["content"]}
                made.append({"type": "message", "role": "assistant", "content": [text]})
            for call in message.get("tool_calls", ()):
                function = call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}
                made.append({"type": "function_call", "call_id": call["id"], "id": f"fc_{call['id']}", **function})
        elif message["role"] == "user":
            made.append({"role": "user", "content": message["content"]})
    return made


def gen_ai(messages: list[Row]) -> list[Row]:
    """Messages of OpenTelemetry's conventions."""
    made = []
    for message in messages:
        parts = [{"type": "text", "content": message["content"]}] if message["content"] else []
        if message["role"] == "tool":
            parts = [{"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}]
        if "reasoning" in message:
            parts.insert(0, {"type": "reasoning", "content": message["reasoning"]})
        parts += [{"type": "tool_call", "id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
        made.append({"role": message["role"], "parts": parts})
    return made


def vercel(messages: list[Row]) -> list[Row]:
    made: list[Row] = []
    for message in messages:
        if message["role"] == "system":
            made.append(message)
            continue
        if message["role"] == "tool":
            result = {"toolCallId": message["tool_call_id"], "toolName": message["name"]}
            output = {"type": "text", "value": message["content"]}
            made.append({"role": "tool", "content": [{"type": "tool-result", **result, "output": output}]})
            continue
        parts = [{"type": "reasoning", "text": message["reasoning"]}] if "reasoning" in message else []
        parts += [{"type": "text", "text": message["content"]}] if message["content"] else []
        for call in message.get("tool_calls", ()):
            named = {"toolCallId": call["id"], "toolName": call["function"]["name"]}
            parts.append({"type": "tool-call", **named, "input": call["function"]["arguments"]})
        made.append({"role": message["role"], "content": parts})
    return made


def langchain(messages: list[Row]) -> list[Row]:
    """LangChain's serialised messages."""
    made = []
    for message in messages:
        kind = {"user": "human", "assistant": "ai"}.get(message["role"], message["role"])
        kwargs: Row = {"content": message["content"], "type": kind}
        kwargs |= {name: message[name] for name in ("tool_call_id", "name") if name in message}
        if "reasoning" in message:
            kwargs["additional_kwargs"] = {"reasoning_content": message["reasoning"]}
        kwargs["tool_calls"] = [
            {
                "id": call["id"],
                "name": call["function"]["name"],
                "args": call["function"]["arguments"],
                "type": "tool_call",
            }
            for call in message.get("tool_calls", ())
        ]
        made.append({"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "X"], "kwargs": kwargs})
    return made


def numbered(messages: list[Row], prefix: str, is_blocks: bool = False) -> Row:
    """openllmetry's attributes, with contents of blocks as JSON."""
    made: Row = {}
    for place, message in enumerate(messages):
        start = f"{prefix}.{place}"
        made[f"{start}.role"] = message["role"]
        content = message["content"]
        made[f"{start}.content"] = content if isinstance(content, str) else json.dumps(content)
        if "tool_call_id" in message:
            made[f"{start}.tool_call_id"] = message["tool_call_id"]
        for number, call in enumerate(message.get("tool_calls") or ()):
            fields = {"id": call["id"], **call["function"]}
            made |= {f"{start}.tool_calls.{number}.{name}": value for name, value in fields.items()}
    return made


def openinference(messages: list[Row], prefix: str) -> Row:
    made: Row = {}
    for place, message in enumerate(messages):
        start = f"{prefix}.{place}.message"
        made[f"{start}.role"] = message["role"]
        made |= {f"{start}.{name}": message[name] for name in ("tool_call_id", "name") if name in message}
        if "reasoning" in message:
            for number, (kind, text) in enumerate((("reasoning", message["reasoning"]), ("text", message["content"]))):
                made[f"{start}.contents.{number}.message_content.type"] = kind
                made[f"{start}.contents.{number}.message_content.text"] = text
        else:
            made[f"{start}.content"] = message["content"]
        for number, call in enumerate(message.get("tool_calls") or ()):
            at = f"{start}.tool_calls.{number}.tool_call"
            made |= {f"{at}.id": call["id"], f"{at}.function.name": call["function"]["name"]}
            made[f"{at}.function.arguments"] = json.dumps(call["function"]["arguments"])
    return made


def events(messages: list[Row]) -> list[Row]:
    made = []
    for message in chat(messages[:-1]):
        fields = {"content": message["content"], "id": message.get("tool_call_id")}
        fields["tool_calls"] = json.dumps(message["tool_calls"]) if "tool_calls" in message else None
        given = [{"key": key, "value": {"stringValue": text}} for key, text in fields.items() if text is not None]
        made.append({"name": f"gen_ai.{message['role']}.message", "attributes": given})
    text = json.dumps(chat(messages[-1:])[0])
    return [*made, {"name": "gen_ai.choice", "attributes": [{"key": "message", "value": {"stringValue": text}}]}]


def span(fields: Row, happened: list[Row] | None = None) -> str:
    """A span of OTLP; every second key of it in snake case would be as good, which another test shows."""
    pairs = [{"key": key, "value": {"stringValue": value}} for key, value in fields.items()]
    made = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "chat", "attributes": pairs, "events": happened or []}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"scope": {"name": "s"}, "spans": [made]}]}]})


def system(messages: list[Row]) -> str:
    return str(messages[0]["content"]) if messages[0]["role"] == "system" else ""


def of_otel(text: str) -> Iterator[Any]:
    return otel.read([text], "f")


def of_rows(row: Row) -> Iterator[Any]:
    return openai_jsonl.read([json.dumps(row)], "f")


def of_langfuse(asked: Any, answered: Any) -> Iterator[Any]:
    row = {"id": "o", "traceId": "t", "type": "GENERATION", "input": asked, "output": answered}
    return langfuse_traces.read([row], "f")


def of_mlflow(asked: Any, answered: Any) -> Iterator[Any]:
    fields = {
        "mlflow.spanType": '"LLM"',
        "mlflow.spanInputs": json.dumps(asked),
        "mlflow.spanOutputs": json.dumps(answered),
    }
    return mlflow_traces.read(
        [{"info": {"trace_id": "t"}, "data": {"spans": [{"span_id": "s", "attributes": fields}]}}], "f"
    )


def response(said: Row) -> Row:
    return {"choices": [{"message": said}]}


WRITERS: dict[str, tuple[Callable[[list[Row]], Iterator[Any]], set[str]]] = {  # with what each producer does not record
    "rows": (lambda m: of_rows({"messages": chat(m)}), set()),
    "calls": (lambda m: of_rows({"request": {"messages": chat(m[:-1])}, "response": response(chat(m[-1:])[0])}), set()),
    "anthropic": (
        lambda m: of_rows(
            {
                "request": {"system": system(m), "messages": blocks(m[:-1])},
                "response": blocks(m[-1:])[0] | {"type": "message"},
            }
        ),
        set(),
    ),
    "responses": (
        lambda m: of_rows(
            {"request": {"instructions": system(m), "input": items(m[:-1])}, "response": {"output": items(m[-1:])}}
        ),
        set(),
    ),
    "langsmith": (
        lambda m: of_rows(
            {
                "run_type": "llm",
                "inputs": {"messages": [langchain(m[:-1])]},
                "outputs": {"generations": [[{"type": "ChatGeneration", "message": langchain(m[-1:])[0]}]]},
            }
        ),
        set(),
    ),
    "gen_ai": (
        lambda m: of_otel(
            span(
                {
                    "gen_ai.input.messages": json.dumps(gen_ai(m[:-1])),
                    "gen_ai.output.messages": json.dumps(gen_ai(m[-1:])),
                }
            )
        ),
        set(),
    ),
    "vercel": (
        lambda m: of_otel(
            span(
                {
                    "ai.operationId": "ai.streamText.doStream",
                    "ai.prompt.messages": json.dumps(vercel(m[:-1])),
                    "ai.response.text": m[-1]["content"],
                    "ai.response.reasoning": m[-1].get("reasoning", ""),
                }
            )
        ),
        set(),
    ),
    "openinference": (
        lambda m: of_otel(
            span(openinference(m[:-1], "llm.input_messages") | openinference(m[-1:], "llm.output_messages"))
        ),
        set(),
    ),
    "openllmetry openai": (
        lambda m: of_otel(span(numbered(chat(m[:-1]), "gen_ai.prompt") | numbered(m[-1:], "gen_ai.completion"))),
        {"reasoning"},
    ),
    "openllmetry anthropic": (
        lambda m: of_otel(
            span(
                numbered([*m[:1], *blocks(m[1:-1])] if system(m) else blocks(m[:-1]), "gen_ai.prompt")
                | numbered(m[-1:], "gen_ai.completion")
            )
        ),
        {"reasoning at the end"},
    ),
    "events": (lambda m: of_otel(span({}, events(m))), {"reasoning before the end"}),
    "langfuse": (lambda m: of_langfuse({"messages": chat(m[:-1])}, chat(m[-1:])[0]), set()),
    "langfuse text": (lambda m: of_langfuse(json.dumps(chat(m[:-1])), json.dumps(response(chat(m[-1:])[0]))), set()),
    "langfuse sdk": (
        lambda m: of_otel(
            span(
                {
                    "langfuse.observation.type": "generation",
                    "langfuse.observation.input": json.dumps(chat(m[:-1])),
                    "langfuse.observation.output": json.dumps(chat(m[-1:])[0]),
                }
            )
        ),
        set(),
    ),
    "mlflow": (lambda m: of_mlflow({"messages": chat(m[:-1])}, response(chat(m[-1:])[0])), set()),
    "mlflow responses": (
        lambda m: of_mlflow({"instructions": system(m), "input": items(m[:-1])}, {"output": items(m[-1:])}),
        set(),
    ),
}


def recorded(messages: list[Row], lost: set[str]) -> list[Row]:
    """What a producer records of a conversation."""
    made = []
    for place, message in enumerate(messages, 1):
        is_end = place == len(messages)
        drops = "reasoning" in lost or f"reasoning {'at' if is_end else 'before'} the end" in lost
        made.append({key: value for key, value in message.items() if key != "reasoning" or not drops})
    return made


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=60, deadline=None)
@given(messages=conversations())
def test_what_was_said_is_what_is_read(name: str, messages: list[Row]) -> None:
    write, lost = WRITERS[name]
    [made] = write(messages)
    assert isinstance(made, Conversation), made
    assert list(made.messages) == recorded(messages, lost)


@pytest.mark.parametrize("text", CUT_OFF)
@pytest.mark.parametrize("name", WRITERS)
def test_json_that_is_cut_off_is_words_only_in_plain_chat(name: str, text: str) -> None:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]
    [made] = WRITERS[name][0](messages)
    if isinstance(made, Conversation):
        assert list(made.messages) == messages
        assert not name.startswith("openllmetry")
    else:
        assert isinstance(made, Unreadable)
        assert "JSON" in made.reason
        assert name not in ("rows", "calls", "responses")
