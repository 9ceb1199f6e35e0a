"""Files of OpenTelemetry in other forms than OTLP's, spans of other producers, and bodies of other dialects."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from addons.production.traces import langfuse_traces, mlflow_traces, openai_jsonl, otel, otlp, spans
from addons.production.traces.records import Conversation, PassedOver, Unreadable, hashed
from steps.core.message_lists import unread

Row = dict[str, Any]
ASKED, SAID = {"role": "user", "content": "Is it dry?"}, {"role": "assistant", "content": "Yes."}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"type": "function", "function": {"name": "is_dry", "arguments": {"bed": 4}}}
SCHEMA = {"type": "object", "properties": {"bed": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "is_dry", "description": "Dry?", "parameters": SCHEMA}}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def value(given: Any) -> Row:
    match given:
        case bool():
            return {"boolValue": given}
        case str():
            return {"stringValue": given}
        case list():
            return {"arrayValue": {"values": [value(each) for each in given]}}
        case _:
            return {"kvlistValue": {"values": [{"key": key, "value": value(each)} for key, each in given.items()]}}


def request(fields: Row, events: Row | None = None, **more: Any) -> Row:
    pairs = [{"key": key, "value": value(each)} for key, each in fields.items()]
    happened = [
        {"name": name, "attributes": [{"key": key, "value": value(each)} for key, each in given.items()]}
        for name, given in (events or {}).items()
    ]
    span = {"traceId": TRACE, "spanId": SPAN, "name": "chat", "attributes": pairs, "events": happened} | more
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "s"}, "spans": [span]}]}]}


def read(text: str) -> list[Any]:
    return list(otel.read(otlp.lines_or_whole(text), "f"))


def snake(given: Any) -> Any:
    if isinstance(given, dict):
        names = {
            name: name if "key" in given else re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name) for name in given
        }
        return {names[name]: snake(each) for name, each in given.items()}
    return [snake(each) for each in given] if isinstance(given, list) else given


FLAT = {
    "consent": True,
    "session.id": "s1",
    "gen_ai.prompt.0.content": "Is it dry?",
    "gen_ai.completion.0.content": "Yes.",
}
CONSOLE = {
    "name": "chat",
    "context": {"trace_id": f"0x{TRACE}", "span_id": f"0x{SPAN}", "trace_state": "[]"},
    "start_time": "2026-10-01T00:00:00Z",
    "end_time": "2026-10-01T00:00:01Z",
    "attributes": FLAT,
    "events": [],
    "resource": {"attributes": {"service.name": "x"}, "schema_url": ""},
}
NODE = {
    "instrumentationScope": {"name": "ai"},
    "traceId": TRACE,
    "id": SPAN,
    "timestamp": 1_790_000_000_000_000,
    "duration": 1000,
    "attributes": FLAT,
    "events": [{"name": "x", "attributes": {}, "time": [1_790_000_000, 5]}],
}
IN_BASE64 = {
    name: base64.b64encode(bytes.fromhex(text)).decode() for name, text in (("traceId", TRACE), ("spanId", SPAN))
}
FILES = {
    "OTLP": json.dumps(request(FLAT)),
    "OTLP over several lines": json.dumps(request(FLAT), indent=1),
    "OTLP in snake case": json.dumps(snake(request(FLAT))),
    "OTLP with ids in base64": json.dumps(request(FLAT, **dict[str, Any](IN_BASE64))),
    "a list of requests": json.dumps([request(FLAT)]),
    "Tempo": json.dumps({"batches": request(FLAT)["resourceSpans"]}),
    "Python's console": json.dumps(CONSOLE, indent=4)
    + "\n"
    + json.dumps(CONSOLE | {"attributes": {}}, indent=4)
    + "\n",
    "Python's console, a line each": json.dumps(CONSOLE),
    "Node's spans": json.dumps(NODE),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_spans_is_read_in_any_form(name: str) -> None:
    text = FILES[name]
    if name == "Python's console":
        text = text.replace(SPAN, "c" * 16, 1)  # of two spans, the second of which says nothing
    [made] = [part for part in read(text) if isinstance(part, Conversation)]
    assert (made.messages, made.consent) == ((ASKED, SAID), True)
    assert made.key == next(part.key for part in read(FILES["OTLP"]) if isinstance(part, Conversation))


def test_ids_are_the_same_in_any_form() -> None:
    texts = (FILES["OTLP"], FILES["OTLP with ids in base64"], FILES["Python's console, a line each"])
    ids = {
        (span.trace, span.id) for text in texts for document in otlp.documents(text) for span in otlp.spans_in(document)
    }
    assert ids == {(TRACE, f"{TRACE} {SPAN}")}


def test_an_id_of_a_span_is_unique_in_its_trace_alone() -> None:
    names = [{"traceId": sign * 32, "spanId": SPAN} for sign in "ab"]
    records = []
    for ids, said in zip(names, ("Yes.", "No."), strict=True):
        records += [ids | {"eventName": "gen_ai.user.message", "body": value({"content": f"{said}?"})}]
        records += [ids | {"eventName": "gen_ai.choice", "body": value({"message": {"content": said}})}]
    lines = [{"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}]
    scored = {"gen_ai.evaluation.result": {"gen_ai.evaluation.score.label": "bad"}}
    lines += [request({"gen_ai.operation.name": "chat", "session.id": "s"}, scored, **ids) for ids in names]
    made = read("\n".join(map(json.dumps, lines)))
    assert [[message["content"] for message in part.messages] for part in made] == [["Yes.?", "Yes."], ["No.?", "No."]]
    assert [list(part.responses) for part in made] == [[part.feedback[0].response] for part in made]
    assert len({name for part in made for name in part.responses}) == 2
    refused = [request({"gen_ai.operation.name": "chat"}, **ids) for ids in names]
    assert len({part.source for part in read(json.dumps(refused))}) == 2


@pytest.mark.parametrize("start", [1_790_000_000_000_000_000, 0])
@pytest.mark.parametrize("as_text", [str, int])
def test_events_come_in_the_order_of_their_time(start: int, as_text: type) -> None:
    """Also within a microsecond, and as they are listed where they have the same time."""
    messages = [ASKED, SAID, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "No."}]
    names = ["gen_ai.user.message", "gen_ai.assistant.message", "gen_ai.user.message", "gen_ai.choice"]
    happened = [
        {"name": name, "timeUnixNano": as_text(start + at), "attributes": [{"key": "content", "value": value(text)}]}
        for name, at, text in zip(names, (7, 7, 8, 10), [message["content"] for message in messages], strict=True)
    ]
    document = request({"gen_ai.operation.name": "chat"})
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["events"] = [happened[place] for place in (3, 0, 1, 2)]
    [made] = read(json.dumps(document))
    assert isinstance(made, Conversation), made
    assert list(made.messages) == messages


def test_what_nodes_console_prints_is_named() -> None:
    [made] = read("{\n  resource: {\n    attributes: { 'service.name': 'x' }\n  },\n  traceId: 'a',\n}\n")
    assert "Node" in made.reason


TEXT, USE = json.dumps([{"text": "Is it dry?"}]), {"toolUse": {"toolUseId": "t", "name": "is_dry", "input": {"bed": 4}}}
SPANS: dict[str, tuple[Row, Row]] = {  # attributes, events
    "a prompt and a completion whole": (
        {
            "gen_ai.prompt": json.dumps({"messages": [ASKED]}),
            "gen_ai.completion": json.dumps({"choices": [{"message": SAID}]}),
        },
        {},
    ),
    "Bedrock's blocks": (
        {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": TEXT,
            "gen_ai.completion.0.content": '[{"text": "Yes."}]',
        },
        {},
    ),
    "events with blocks": (
        {},
        {
            "gen_ai.user.message": {"content": '[{"type": "text", "text": "Is it dry?"}]'},
            "gen_ai.choice": {"message": json.dumps({"content": [{"type": "text", "text": "Yes."}]})},
        },
    ),
    "events with a body": (
        {},
        {
            "gen_ai.user.message": {"gen_ai.event.content": json.dumps(ASKED)},
            "gen_ai.choice": {"gen_ai.event.content": json.dumps({"message": SAID, "index": 0})},
        },
    ),
    "events of content": (
        {},
        {
            "gen_ai.content.prompt": {"gen_ai.prompt": json.dumps([ASKED])},
            "gen_ai.content.completion": {"gen_ai.completion": json.dumps([SAID])},
        },
    ),
    "logfire": (
        {"request_data": json.dumps({"messages": [ASKED]}), "response_data": json.dumps({"message": SAID})},
        {},
    ),
    "OpenInference with texts": (
        {"openinference.span.kind": "LLM", "input.value": "Is it dry?", "output.value": "Yes."},
        {},
    ),
    "an agent without calls": (
        {"openinference.span.kind": "AGENT", "input.value": "Is it dry?", "output.value": "Yes."},
        {},
    ),
    "Vercel's older names": ({"ai.prompt.messages": json.dumps([ASKED]), "ai.result.text": "Yes."}, {}),
    "MLflow's attributes": (
        {
            "mlflow.spanType": '"CHAT_MODEL"',
            "mlflow.spanInputs": json.dumps({"messages": [ASKED]}),
            "mlflow.spanOutputs": json.dumps({"choices": [{"message": SAID}]}),
        },
        {},
    ),
    "structured attributes": (
        {
            "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Is it dry?"}]}],
            "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": "Yes."}]}],
        },
        {},
    ),
}


@pytest.mark.parametrize("name", SPANS)
def test_spans_of_other_producers(name: str) -> None:
    [made] = read(json.dumps(request(*SPANS[name])))
    assert isinstance(made, Conversation), made
    assert list(made.messages) == [ASKED, SAID]


ANSWERED = {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Yes."}
REFUSED: dict[str, tuple[Row, str]] = {
    "a picture among blocks": (
        {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": '[{"type": "image", "source": {}}]', **ANSWERED},
        "the type 'image'",
    ),
    "blocks that are cut off": ({"gen_ai.prompt.0.content": '[{"type": "text", "te', **ANSWERED}, "cut off"),
    "messages that are cut off": ({"gen_ai.prompt": '[{"role": "user", "con', "gen_ai.completion": "Yes."}, "cut off"),
    "tools that are cut off": ({"gen_ai.tool.definitions": '[{"type": "fun', **FLAT}, "cut off"),
    "no content": ({"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}, "records no content"),
    "redacted content": (
        {
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": "__REDACTED__",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": "__REDACTED__",
        },
        "__REDACTED__",
    ),
    "an answer alone": ({"gen_ai.output.messages": json.dumps([SAID])}, "without what was asked"),
    "an answer that is none": (
        {
            "langfuse.observation.type": "generation",
            "langfuse.observation.input": "Q",
            "langfuse.observation.output": '{"a": 1}',
        },
        "its fields: a",
    ),
    "a response before that is missing": (
        {
            "openinference.span.kind": "LLM",
            "input.value": json.dumps({"input": "And 5?", "previous_response_id": "resp_0"}),
            "output.value": json.dumps({"output": [SAID]}),
        },
        "goes on from an earlier response",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_its_reason(name: str) -> None:
    fields, reason = REFUSED[name]
    [made] = read(json.dumps(request(fields)))
    assert isinstance(made, Unreadable), made
    assert reason in made.reason


def test_attributes_of_messages_that_no_reader_knows_are_counted() -> None:
    made = read(json.dumps(request({"gen_ai.prompt.0.mood": "merry", **FLAT})))
    assert [part.what for part in made if isinstance(part, PassedOver)] == [
        "attributes gen_ai.prompt.N.mood, which no reader knows"
    ]


@pytest.mark.parametrize(
    ("consents", "agreed"),
    [
        ({"consent": "yes"}, True),
        ({"ai.telemetry.metadata.consent": True}, True),
        ({"metadata": '{"consent": true}'}, True),
        ({"langfuse.trace.tags": ["consent"]}, True),
        ({"consent": "yes", "metadata.consent": "no"}, False),
        ({}, False),
    ],
)
def test_consent_by_any_name_and_a_no_holds(consents: Row, agreed: bool) -> None:
    fields = {name: text for name, text in FLAT.items() if name != "consent"}
    [made] = [part for part in read(json.dumps(request(fields | consents))) if isinstance(part, Conversation)]
    assert made.consent is agreed


def test_an_agent_whose_tools_ran_outside_of_its_words_is_not_learnt() -> None:
    agent = request({"openinference.span.kind": "AGENT", "input.value": "Is it dry?", "output.value": "Yes."})
    tool = request({"openinference.span.kind": "TOOL", "input.value": "4"}, spanId="c" * 16)
    made = read(f"{json.dumps(agent)}\n{json.dumps(tool)}\n")
    assert all(isinstance(part, PassedOver) for part in made)
    assert any("tools ran in it" in part.what for part in made)


@pytest.mark.parametrize(
    ("asked", "answered"), [("a query", "a document"), ('{"input": "a query"}', '{"output": "a document"}')]
)
def test_a_step_of_a_program_is_no_conversation(asked: str, answered: str) -> None:
    [made] = read(
        json.dumps(request({"openinference.span.kind": "CHAIN", "input.value": asked, "output.value": answered}))
    )
    assert isinstance(made, PassedOver)
    assert "who said it" in made.what


@pytest.mark.parametrize("words", [["Be brief."], ["Be brief.", "The sun is up."], ["The sun is up."]])
def test_all_words_of_the_system_are_read(words: list[str]) -> None:
    """Those that a message says too, once."""
    asked = [{"role": "system", "content": "The sun is up."}, ASKED]
    fields = {
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps([SAID]),
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": words[0]}]),
        "llm.invocation_parameters": json.dumps({"system": words[-1]}),
    }
    row = {"messages": [*asked, SAID], "system": words[0], "instructions": words[-1]}
    said = [SYSTEM, *asked, SAID] if "Be brief." in words else [*asked, SAID]
    for made in (*read(json.dumps(request(fields))), *openai_jsonl.read([json.dumps(row)], "f")):
        assert isinstance(made, Conversation), made
        assert list(made.messages) == said


DECLARED = {"name": "is_dry", "description": "Dry?", "parameters": SCHEMA}
IN_ANTHROPIC = {"name": "is_dry", "description": "Dry?", "input_schema": SCHEMA}
BODIES: dict[str, tuple[Row, list[Row]]] = {  # a row, and what was said after the system's words and the question
    "Gemini": (
        {
            "request": {
                "systemInstruction": {"parts": [{"text": "Be brief."}]},
                "contents": [
                    {"role": "user", "parts": [{"text": "Is it dry?"}]},
                    {"role": "model", "parts": [{"functionCall": {"name": "is_dry", "args": {"bed": 4}}}]},
                    {"role": "user", "parts": [{"functionResponse": {"name": "is_dry", "response": {"dry": True}}}]},
                ],
                "tools": [{"functionDeclarations": [DECLARED]}],
            },
            "response": {
                "candidates": [
                    {"content": {"role": "model", "parts": [{"text": "Hm", "thought": True}, {"text": "Yes."}]}}
                ]
            },
        },
        [
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": '{"dry": true}', "name": "is_dry"},
            SAID | {"reasoning": "Hm"},
        ],
    ),
    "Bedrock": (
        {
            "request": {
                "system": [{"text": "Be brief."}],
                "messages": [{"role": "user", "content": [{"text": "Is it dry?"}]}],
                "toolConfig": {"tools": [{"toolSpec": {**DECLARED, "inputSchema": {"json": SCHEMA}}}]},
            },
            "response": {"output": {"message": {"role": "assistant", "content": [{"text": "Yes."}, USE]}}},
        },
        [SAID | {"tool_calls": [{"id": "t", **CALL}]}],
    ),
    "OpenAI's older functions": (
        {
            "messages": [
                SYSTEM,
                ASKED,
                {"role": "assistant", "content": None, "function_call": {"name": "is_dry", "arguments": '{"bed": 4}'}},
                {"role": "function", "name": "is_dry", "content": "dry"},
                SAID,
            ],
            "functions": [DECLARED],
        },
        [
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "dry", "name": "is_dry"},
            SAID,
        ],
    ),
    "Anthropic's rows": (
        {"system": [{"type": "text", "text": "Be brief."}], "messages": [ASKED, SAID], "tools": [IN_ANTHROPIC]},
        [SAID],
    ),
    "tools beside a request": (
        {"request": {"messages": [SYSTEM, ASKED]}, "response": {"message": SAID}, "tools": [TOOL]},
        [SAID],
    ),
    "Responses": (
        {
            "request": {
                "instructions": "Be brief.",
                "input": "Is it dry?",
                "tools": [{"type": "function", **DECLARED}],
            },
            "response": {
                "output": [
                    {"type": "message", "content": [{"type": "output_text", "text": "Yes."}], "role": "assistant"}
                ]
            },
        },
        [SAID],
    ),
    "prompts and completions": ({"prompt": [SYSTEM, ASKED], "completion": [SAID], "tools": [TOOL]}, [SAID]),
    "prompts and completions that are texts": (
        {"system": "Be brief.", "prompt": "Is it dry?", "completion": "Yes.", "tools": [TOOL]},
        [SAID],
    ),
    "Alpaca": (
        {
            "system": "Be brief.",
            "history": [["Is it dry?", "Yes."]],
            "instruction": "Translate",
            "input": "Dry",
            "output": "Sych",
            "tools": [TOOL],
        },
        [SAID, {"role": "user", "content": "Translate\nDry"}, {"role": "assistant", "content": "Sych"}],
    ),
    "ShareGPT": (
        {
            "conversations": [
                {"from": "system", "value": "Be brief."},
                {"from": "human", "value": "Is it dry?"},
                {"from": "gpt", "value": "Yes."},
            ],
            "tools": [TOOL],
        },
        [SAID],
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_other_dialects(name: str) -> None:
    row, expected = BODIES[name]
    [made] = openai_jsonl.read([json.dumps(row)], "f")
    assert isinstance(made, Conversation), made
    assert list(made.messages) == [SYSTEM, ASKED, *expected]
    assert list(made.tools) == [TOOL]


@pytest.mark.parametrize("written", ["1e400", "NaN", '1, "bed": 2'])
def test_json_that_readers_take_differently_is_not_read(written: str) -> None:
    """Of a call's arguments it stays a text."""
    arguments = f'{{"bed": {written}}}'
    call = {"id": "t", "type": "function", "function": {"name": "log", "arguments": arguments}}
    row = json.dumps({"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}]})
    [made] = openai_jsonl.read([row], "f")
    assert isinstance(made, Conversation), made
    assert made.messages[1]["tool_calls"] == [call]
    [refused] = openai_jsonl.read(openai_jsonl.rows(f"[{row[:-1]}, {arguments[1:]}]"), "f")
    assert isinstance(refused, Unreadable), refused
    assert "it holds" in refused.reason
    [refused] = langfuse_traces.read([{"id": "o", "input": f"[{json.dumps(ASKED)}, {arguments}]", "output": SAID}], "f")
    assert isinstance(refused, Unreadable), refused


def test_an_id_of_zero_is_an_id() -> None:
    [made] = openai_jsonl.read([json.dumps({"id": 0, "response_id": 0, "messages": [ASKED, SAID]})], "f")
    assert isinstance(made, Conversation), made
    assert (made.key, made.responses) == (f"openai:{hashed('0')}", {hashed("0"): 1})


def test_names_of_speakers_are_counted_and_several_in_one_role_refused() -> None:
    messages: list[Row] = [ASKED | {"name": "Ann"}, SAID, ASKED, SAID]
    _, counted = openai_jsonl.read([json.dumps({"messages": messages})], "f")
    assert counted == PassedOver("fields name of messages, which no reader knows")
    messages[2] = {"type": "human", "data": {"content": "Now?", "name": "Bo"}}
    [refused] = openai_jsonl.read([json.dumps({"messages": messages})], "f")
    assert isinstance(refused, Unreadable), refused
    assert "several people speak in one role" in refused.reason


def test_numbers_that_json_has_not_are_refused() -> None:
    said = SAID | {"tool_calls": [{"function": {"name": "log", "arguments": {"bed": float("inf")}}}]}
    [refused] = langfuse_traces.read([{"id": "o", "input": [ASKED], "output": said}], "f")
    assert isinstance(refused, Unreadable), refused
    assert "a number that is infinite" in refused.reason


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASKED, SAID], "history": [["a", "b"]]},
        {"request": {"messages": [ASKED]}, "response": {"message": SAID}, "context": "The sun is up."},
        {"request": {"messages": [ASKED], "documents": ["The sun is up."]}, "response": {"message": SAID}},
        {"messages": [ASKED, SAID | {"toolInvocations": [{"toolName": "is_dry", "result": 1}]}]},
        {"instruction": "Translate", "messages": [ASKED, SAID]},
    ],
)
def test_words_that_no_reader_knows_are_refused_by_their_field(row: Row) -> None:
    [refused] = openai_jsonl.read([json.dumps(row)], "f")
    assert isinstance(refused, Unreadable), refused
    assert re.search(
        "with (history|context|documents|toolInvocations|instruction), which nothing reads", refused.reason
    )


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user", "content": "And this?", "images": ["aGk="]}, "with images"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "input_image"),
        ({"role": "user", "content": {"text": "x", "thumb": 1}, "parts": None, "attachments": [1]}, "attachments"),
        (
            {"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            "a call in a message",
        ),
        ({"role": "assistant", "content": 5}, "no text but a int"),
        ({"role": "tool", "content": [{"type": "image", "source": {}}]}, "'image'"),
        ({"type": "item_reference", "id": "x"}, "item_reference"),
        ({"role": "narrator", "content": "x"}, "the role 'narrator'"),
    ],
)
def test_a_message_that_is_more_than_text_is_refused(message: Row, reason: str) -> None:
    [made] = openai_jsonl.read([json.dumps({"messages": [ASKED, message, SAID]})], "f")
    assert isinstance(made, Unreadable), made
    assert reason in made.reason


OWN = '{"text": "Guten Tag", "language": "de"}'  # JSON that a person or a model wrote


def test_json_that_was_said_is_no_part() -> None:
    numbered = {"gen_ai.prompt.0.content": OWN, "gen_ai.completion.0.content": OWN}
    openinference = {f"llm.{side}_messages.0.message.content": OWN for side in ("input", "output")}
    roles = {"llm.input_messages.0.message.role": "user", "llm.output_messages.0.message.role": "assistant"}
    observation = {"id": "o", "traceId": "t", "type": "GENERATION", "input": [{"role": "user", "content": OWN}]}
    row = {"prompt": [{"role": "user", "content": OWN}], "completion": OWN}
    for made in (
        *read(json.dumps(request(numbered))),
        *read(json.dumps(request(openinference | roles))),
        *langfuse_traces.read([observation | {"output": {"role": "assistant", "content": OWN}}], "f"),
        *openai_jsonl.read([json.dumps(row)], "f"),
    ):
        assert isinstance(made, Conversation), made
        assert [message["content"] for message in made.messages] == [OWN, OWN]
    for answer in ('{"message": "Hello", "intent": "greet"}', {"content": "Hello", "intent": "greet"}, OWN):
        [refused] = langfuse_traces.read([observation | {"output": answer}], "f")
        assert isinstance(refused, Unreadable), refused
        assert "in no form that is known here" in refused.reason


def test_two_calls_with_one_id_are_two_calls() -> None:
    """And one in a part and a field is one."""

    def calls(parts: list[Any], fields: list[Any]) -> list[Any]:
        messages = [ASKED, {"role": "assistant", "content": parts, "tool_calls": fields}]
        [made] = openai_jsonl.read([json.dumps({"messages": messages})], "f")
        assert isinstance(made, Conversation), made
        return [call["function"]["arguments"] for call in made.messages[1]["tool_calls"]]

    part = {"type": "tool_use", "id": "c", "name": "is_dry", "input": {"bed": 4}}
    first, second = ({"id": "c", "function": {"name": "is_dry", "arguments": {"bed": bed}}} for bed in (4, 5))
    assert calls([], [first, second]) == [{"bed": 4}, {"bed": 5}]
    assert calls([part, part | {"input": {}}], []) == [{"bed": 4}, {}]
    assert calls([part], [first]) == [{"bed": 4}]
    assert calls([part | {"input": {}, "partial_json": '{"bed": 4}'}], [first]) == [{"bed": 4}]
    assert calls([part], [second]) == [{"bed": 4}, {"bed": 5}]


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({"tool_calls": [{"id": "t", "type": "custom", "custom": {"name": "log", "input": "4 °C"}}]}, "4 °C"),
        ({"invalid_tool_calls": [{"id": "t", "name": "log", "args": '{"a":', "error": "x"}]}, '{"a":'),
        ({"tool_calls": [{"toolCallId": "t", "toolName": "log", "args": {"a": 1}}]}, {"a": 1}),
    ],
)
def test_calls_in_other_forms(fields: Row, arguments: Any) -> None:
    answer = {"role": "assistant", "content": "", **fields}
    [made] = openai_jsonl.read([json.dumps({"messages": [ASKED, answer]})], "f")
    assert isinstance(made, Conversation), made
    function = {"name": "log", "arguments": arguments}
    assert made.messages[1]["tool_calls"] == [{"id": "t", "type": "function", "function": function}]


def test_a_mark_that_a_turn_is_not_learnt_is_kept() -> None:
    marks = ({"weight": 0}, {"train": False})
    told = {"type": "ai", "data": {"content": "Yes.", "weight": 0}}
    rows: list[Row] = [{"messages": [ASKED, turn]} for turn in (told, *(SAID | mark for mark in marks))]
    for row in (*rows, *({"messages": [ASKED, SAID]} | mark for mark in marks)):
        [made] = openai_jsonl.read([json.dumps(row)], "f")
        assert isinstance(made, Conversation), made
        assert made.messages == (ASKED, SAID | {"weight": 0})
    [refused] = openai_jsonl.read([json.dumps({"messages": [ASKED, SAID | {"weight": 0.5}]})], "f")
    assert "asks for a part of it" in refused.reason if isinstance(refused, Unreadable) else False
    assert unread([{"mood": 0}, {"type": "ai", "data": {"tone": 1, "weight": 0}}]) == {"mood", "tone"}


PARTS, OPEN = [{"text": "Yes."}], {"openinference.span.kind": "LLM", "input.value": "Is it dry?"}
CUTS: dict[str, Row] = {  # a response, or the attributes of a span
    "OpenAI": {"choices": [{"finish_reason": "length", "message": SAID}]},
    "OpenAI's older completions": {"choices": [{"finish_reason": "length", "text": "Yes."}]},
    "Anthropic": {**SAID, "type": "message", "stop_reason": "max_tokens"},
    "Gemini": {"candidates": [{"finishReason": "MAX_TOKENS", "content": {"role": "model", "parts": PARTS}}]},
    "Gemini's SDK": {"candidates": [{"finish_reason": "FinishReason.MAX_TOKENS", "content": {"parts": PARTS}}]},
    "Bedrock": {"output": {"message": {"role": "assistant", "content": PARTS}}, "stopReason": "max_tokens"},
    "Ollama": {"message": SAID, "done_reason": "length"},
    "Responses": {"output": [{"type": "message", **SAID}], "status": "incomplete"},
    "LangChain": {"generations": [[{"text": "Yes.", "generation_info": {"finish_reason": "length"}}]]},
    "spans": {**FLAT, "gen_ai.completion.0.finish_reason": "length"},
    "reasons of spans": {**FLAT, "gen_ai.response.finish_reasons": ["length"]},
    "OpenTelemetry": {
        "gen_ai.input.messages": json.dumps([ASKED]),
        "gen_ai.output.messages": json.dumps([SAID | {"finish_reason": "length"}]),
    },
    "Vercel": {
        "ai.prompt.messages": json.dumps([ASKED]),
        "ai.response.text": "Yes.",
        "ai.response.finishReason": "length",
    },
    "OpenInference": {**OPEN, "output.value": json.dumps({"message": SAID, "done_reason": "length"})},
}


@pytest.mark.parametrize("name", CUTS)
def test_an_answer_that_was_cut_off_is_marked(name: str) -> None:
    def answer(written: str) -> Any:
        fields = json.loads(written)
        if any("." in each for each in fields):
            return next(iter(read(json.dumps(request(fields)))))
        row = {"request": {"messages": [ASKED]}, "response": fields}
        return next(iter(openai_jsonl.read([json.dumps(row)], "f")))

    written = json.dumps(CUTS[name])
    assert answer(written).messages == (ASKED, SAID | {"finish_reason": "length"})
    whole = re.sub("length|MAX_TOKENS|max_tokens|incomplete", "stop", written)
    assert answer(whole).messages == (ASKED, SAID)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": {"messages": [ASKED], "tools": [TOOL]}},
        {"input": [ASKED, {"role": "tool", "content": TOOL}]},  # as LangChain's callback writes them
        {"input": [ASKED], "toolDefinitions": {"is_dry": json.dumps({"description": "Dry?", "parameters": SCHEMA})}},
    ],
)
def test_tools_in_langfuse(fields: Row) -> None:
    [made] = langfuse_traces.read([{"id": "o", "traceId": "t", "type": "GENERATION", "output": SAID, **fields}], "f")
    assert isinstance(made, Conversation), made
    assert (list(made.messages), list(made.tools)) == ([ASKED, SAID], [TOOL])


TRACED = {"id": "t", "sessionId": "s", "input": [ASKED], "output": SAID}
LATER = {"role": "user", "content": "Are you sure?"}
CALLED = {"id": "o", "input": [ASKED, SAID, LATER], "output": SAID, "sessionId": None}
SCORED = {"id": "c", "name": "ok", "value": 0}
OF_TRACES: dict[str, tuple[list[Row], list[int], list[str]]] = {  # rows, messages of each conversation, other parts
    "scores alone": ([TRACED | {"scores": [SCORED]}], [2, 0], []),
    "observations and scores": (
        [TRACED | {"observations": [CALLED | {"type": "GENERATION"}], "scores": [SCORED]}],
        [4, 0],
        [],
    ),
    "a type in lower case": ([TRACED | {"observations": [CALLED | {"type": "generation"}]}], [4], []),
    "ids of rows": (
        [
            TRACED | {"observations": ["o"], "scores": ["c"]},
            CALLED | {"traceId": "t", "sessionId": "s", "type": "GENERATION"},
            SCORED | {"traceId": "t", "dataType": "NUMERIC"},
        ],
        [4, 0],
        [],
    ),
    "ids of nothing": (
        [TRACED | {"observations": ["o"], "scores": ["c"]}],
        [2],
        ["observations or scores by their ids alone, which are no rows of the export: c, o"],
    ),
    "tools whose calls are missing": (
        [TRACED | {"observations": [{"id": "o", "type": "tool", "input": "4", "output": "dry"}]}],
        [],
        [
            "observations of the type TOOL, in which no model speaks",
            "tools ran in it, and the calls of the model that used them are not in the trace",
        ],
    ),
    "tools in what was said": (
        [
            TRACED | {"input": [ASKED, SAID | {"tool_calls": [CALL]}, SAID | {"role": "tool"}], "observations": ["o"]},
            {"id": "o", "traceId": "t", "type": "TOOL"},
        ],
        [4],
        ["observations of the type TOOL, in which no model speaks"],
    ),
    "steps without a model": (
        [TRACED | {"observations": [{"id": "o", "type": "SPAN"}]}],
        [2],
        ["observations of the type SPAN, in which no model speaks"],
    ),
}


@pytest.mark.parametrize("name", OF_TRACES)
def test_a_trace_of_langfuse_with_what_is_in_it(name: str) -> None:
    rows, lengths, others = OF_TRACES[name]
    made = list(langfuse_traces.read(rows, "f"))
    read = [part for part in made if isinstance(part, Conversation)]
    assert [len(part.messages) for part in read] == lengths
    assert [each.score for part in read for each in part.feedback] == [0.0] * lengths.count(0)
    assert len({part.key for part in read}) <= 1, "what is in a trace is of its session"
    others_read = [part for part in made if not isinstance(part, Conversation)]
    assert [part.what if isinstance(part, PassedOver) else part.reason for part in others_read] == others


@pytest.mark.parametrize("own", [None, ["other"]])
@pytest.mark.parametrize(
    ("consent", "agreed"),
    [
        *(({"tags": tags}, True) for tags in (["consent"], "consent", '["consent"]')),
        *(({"tags": tags}, False) for tags in (["other"], "no consent", '["no consent"]')),
        ({"metadata": {"consent": True}}, True),
    ],
)
def test_consent_to_a_trace_of_langfuse_is_for_all_in_it(consent: Row, agreed: bool, own: list[str] | None) -> None:
    called = CALLED | {"type": "GENERATION", "tags": own}
    for given in (TRACED | {"observations": [called]}, TRACED | {"observations": []}):
        [made] = langfuse_traces.read([given | consent], "f")
        assert isinstance(made, Conversation)
        assert made.consent == agreed


@pytest.mark.parametrize("asked", [[ASKED], [ASKED, SAID, LATER]])
def test_an_answer_before_the_question_is_none_to_it(asked: list[Row]) -> None:
    fields = {"mlflow.spanType": '"LLM"', "mlflow.spanInputs": {"messages": asked}}
    trace = {"info": {"trace_id": "t"}, "data": {"spans": [{"span_id": "s", "attributes": fields}]}}
    for [made] in (
        mlflow_traces.read([trace], "f"),
        langfuse_traces.read([CALLED | {"input": asked, "output": None}], "f"),
    ):
        assert isinstance(made, Unreadable), made
        assert "no answer" in made.reason


def test_what_no_conversation_holds_is_counted() -> None:
    """Answers beside the first, thoughts that are encrypted, and tools that a provider runs."""
    answers = [{"index": n, "message": {"role": "assistant", "content": f"It is {n}."}} for n in range(2)]
    asked = {"messages": [{"role": "user", "content": "Which?"}], "tools": [{"type": "web_search"}]}
    thoughts = {"type": "reasoning", "encrypted_content": "gAAA", "summary": []}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One."}]}
    rows = [
        {"request": asked, "response": {"choices": answers}},
        {"request": {"input": "Which?"}, "response": {"output": [thoughts, said]}},
        {"messages": [*asked["messages"], {"role": "assistant", "content": '{"choices": [1, 2]}'}]},
    ]
    counted = [
        [part.what for part in openai_jsonl.read([json.dumps(row)], "rows") if isinstance(part, PassedOver)]
        for row in rows
    ]
    further, tools = (
        "further answers beside the first, which are not kept",
        "tools that a provider runs, which are not kept",
    )
    assert counted == [[further, tools], ["reasoning that is encrypted, which are not kept"], []]
    fields = {
        "gen_ai.operation.name": "chat",
        "input.value": json.dumps(asked),
        "output.value": json.dumps({"choices": answers}),
    }
    assert spans.lost(fields) == {"further answers beside the first", "tools that a provider runs"}
    numbered = {f"gen_ai.completion.{n}.content": "It." for n in range(2)}
    assert spans.lost(numbered) == {"further answers beside the first"}


@pytest.mark.parametrize("name", ["start_time_unix_nano", "start_time_ns", "start_time"])
@pytest.mark.parametrize("order", [1, -1])
def test_feedback_on_a_trace_of_mlflow_is_on_its_last_answer(name: str, order: int) -> None:
    asked: list[list[Row]] = [[ASKED], [ASKED, SAID, ASKED]]
    spans: list[Row] = []
    for number, messages in enumerate(asked):
        fields = {"mlflow.spanType": '"LLM"', "mlflow.spanInputs": messages, "mlflow.spanOutputs": SAID}
        spans.append({"span_id": str(number), name: 1_790_000_000_000_000_000 + number, "attributes": fields})
    scored = {"assessment_name": "ok", "source": {"source_type": "HUMAN"}, "feedback": {"value": True}}
    trace = {"info": {"trace_id": "t", "assessments": [scored]}, "data": {"spans": spans[::order]}}
    *_, last, feedback = (part for part in mlflow_traces.read([trace], "f") if isinstance(part, Conversation))
    assert last.started, "whichever name a release of MLflow has for it"
    assert len(last.messages) == 4
    assert list(last.responses) == [feedback.feedback[0].response]
    spans[1]["attributes"] = {"mlflow.spanType": '"LLM"'}
    made, feedback = (part for part in mlflow_traces.read([trace], "f") if isinstance(part, Conversation))
    assert feedback.feedback[0].response not in made.responses, "it is on an answer that cannot be read"


def test_a_part_of_mlflows_trace_that_cannot_be_read_hides_no_other() -> None:
    said = {"mlflow.spanType": "LLM", "mlflow.spanInputs": [ASKED], "mlflow.spanOutputs": SAID}
    cut_off = {"span_id": "a", "attributes": said | {"mlflow.chat.tools": '[{"type": "function", "fun'}}
    by_human = {"source": {"source_type": "HUMAN"}}
    deep = by_human | {"assessment_name": "correction", "expectation": {"serialized_value": {"value": "[" * 100_000}}}
    good = by_human | {"assessment_name": "good", "feedback": {"value": 1}}
    info = {"trace_id": "t", "assessments": [deep, good]}
    trace = {"info": info, "data": {"spans": [cut_off, {"span_id": "b", "attributes": said}]}}
    refused, made, too_deep, judged = mlflow_traces.read([trace], "f")
    assert isinstance(made, Conversation)
    assert isinstance(judged, Conversation)
    assert [feedback.score for feedback in judged.feedback] == [1]
    sources = [part.source for part in (refused, too_deep) if isinstance(part, Unreadable)]
    assert sources == ["f t span a", "f t assessment correction"]
