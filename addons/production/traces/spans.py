"""What a span says: the messages and tools of a call, by the attributes and events of each producer.

    gen_ai.input.messages, gen_ai.output.messages, …       OpenTelemetry's conventions, current names
    events gen_ai.user.message, gen_ai.choice, …           ... of 2024, on spans or as log records
    gen_ai.prompt.0.role, llm.request.functions.0.name     openllmetry (traceloop) before it had the current names
    llm.input_messages.0.message.role, llm.tools.0.…       OpenInference
    ai.prompt.messages, ai.response.text, …                Vercel's AI SDK
    a request and a response whole, as JSON                Langfuse's SDK, MLflow, OpenInference, traceloop, logfire

A call of a model is read; what stands around calls (an agent, a chain) only where no call in its trace could be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from addons.production.traces.messages import call_of, conversation_of, lost_in, merged, tools_of
from addons.production.traces.otlp import Event
from addons.production.traces.records import mapping
from environments.base import Message
from steps.core.message_lists import with_system
from steps.core.message_marks import marked
from steps.core.message_parts import decoded, whole, with_names

Said = tuple[list[Message], tuple[dict[str, Any], ...]]  # messages, tools
KINDS: dict[str, dict[str, str]] = {  # an attribute -> its values of calls, and of what stands around calls
    "ai.operationId": {"call": r".*\.do(Generate|Stream)", "around": r"ai\.(generate|stream)(Text|Object)"},
    "openinference.span.kind": {"call": "LLM", "around": "CHAIN|AGENT|UNKNOWN"},
    "langfuse.observation.type": {"call": "generation", "around": "span|agent|chain"},
    "mlflow.spanType": {"call": "CHAT_MODEL|LLM", "around": "AGENT|CHAIN|UNKNOWN"},
    "gen_ai.operation.name": {
        "call": r"(?!execute_tool|embeddings|create_agent|retrieval|rerank|invoke_|.*embed).*",
        "around": "invoke_.*",
    },
    "traceloop.span.kind": {"call": "LLM", "around": "workflow|agent|task"},
    "llm.request.type": {"call": "chat|completion", "around": "(?!)"},
}
OWN = re.compile(
    r"gen_ai\.(?!usage|conversation|evaluation)|llm\.|ai\.(prompt|response)|langfuse\.observation\.|request_data"
)
EVENTS = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
WHOLE = (
    ("langfuse.observation.input", "langfuse.observation.output"),
    ("mlflow.spanInputs", "mlflow.spanOutputs"),
    ("input.value", "output.value"),
    ("gen_ai.prompt", "gen_ai.completion"),
    ("request_data", "response_data"),
    ("traceloop.entity.input", "traceloop.entity.output"),
)
STEPS = ("chain", "span", "unknown", "workflow", "task")  # of a program, neither calls of a model nor agents
REASONS = ("gen_ai.response.finish_reasons", "ai.response.finishReason", "ai.finishReason", "llm.finish_reason")
REDACTED = "__REDACTED__"
FIELDS = ("content", "role", "tool_calls", "id", "name")
CARRIERS = re.compile(  # attributes that hold a part of what was said
    r"(gen_ai\.(prompt|completion)|llm\.(prompts|completions|input_messages|output_messages|request\.functions|tools))\.\d+\..+"
)
READ = re.compile(
    r".*\.\d+\.(message\.)?(role|content|name|tool_call_id|finish_reason|refusal|reasoning|function_call_name"
    r"|function_call\.(name|arguments)|function_call_arguments_json|description|parameters|arguments|input_schema"
    r"|tool\.(json_schema|name|description|parameters)"
    r"|tool_calls\.\d+\.(tool_call\.)?(id|type|name|arguments|reasoning_signature|function\.(name|arguments))"
    r"|contents\.\d+\.(message_content\.(type|text|signature)|tool_call\.(id|function\.(name|arguments))))"
)


def kind(fields: Mapping[str, Any], events: Sequence[Event]) -> str:
    """What a span is: "call", "around" calls, "beside" them (a tool, an embedding), or "other" than a model's."""
    for name, values in KINDS.items():
        if fields.get(name) is not None:
            word = str(decoded_text(fields[name]))
            return next((what for what, pattern in values.items() if re.fullmatch(pattern, word)), "beside")
    is_own = any(map(OWN.match, fields)) or any(event.name.startswith("gen_ai.") for event in events)
    return "call" if is_own else "other"


def call_in(fields: dict[str, Any], events: Sequence[Event]) -> Said:
    """The messages up to the answer, and the tools; no messages where the span has none. ValueError where they cannot be
    read."""
    for event in events:
        if event.name == "gen_ai.client.inference.operation.details" or event.name.startswith("gen_ai.content."):
            fields = event.fields | fields
    forms = (_current, _by_names, _numbered, _openinference, _vercel)
    messages = _by_events(events) if not fields.get("gen_ai.output.messages") else []
    messages = messages or next((listed for form in forms if (listed := form(fields))), [])
    requests: list[Any] = []
    if not messages:
        for asked, answered in WHOLE:
            if fields.get(answered) not in (None, ""):
                request = whole(fields.get(asked))
                if isinstance(request, Mapping):  # otel.py reads what a call goes on from
                    request = {name: value for name, value in request.items() if name != "previous_response_id"}
                is_step = any(str(decoded_text(fields.get(name))).lower() in STEPS for name in KINDS)
                if is_step and not isinstance(request, list) and not isinstance(mapping(request).get("messages"), list):
                    raise ValueError("what goes into a step and comes out, of which nothing says who said it")
                requests.append(request)
                messages = call_of(request, fields[answered], packed=True)[0]
                break
    if messages:
        beside = (decoded(fields.get(name)) for name in ("llm.invocation_parameters", "ai.prompt", "input.value"))
        messages = with_system(messages, {"system": whole(fields.get("gen_ai.system_instructions"))}, *beside)
    if any(message["content"] == REDACTED for message in messages):
        raise ValueError("its producer records no content, but __REDACTED__")
    for name in REASONS:
        reasons = decoded(fields.get(name))
        marked(messages, {"finish_reason": reasons[0] if isinstance(reasons, list) and reasons else reasons or None})
    return with_names(messages), _tools(fields, requests)


def unread(fields: Mapping[str, Any]) -> set[str]:
    """The attributes that hold a part of what was said and that no form here reads, with N for numbers."""
    names = (name for name in fields if CARRIERS.fullmatch(name) and not READ.fullmatch(name))
    return {re.sub(r"\.\d+(?=\.|$)", ".N", name) for name in names}


def lost(fields: Mapping[str, Any]) -> set[str]:
    """What the attributes say and no conversation of them."""
    answers = decoded(fields.get("gen_ai.output.messages"))
    numbered = [each for each in _entries(fields, "gen_ai.completion") if each.get("role") != "thinking"]
    has_further = (isinstance(answers, list) and len(answers) > 1) or len(numbered) > 1
    whole_ones = (fields.get(name) for pair in WHOLE for name in pair)
    return lost_in(*whole_ones) | ({"further answers beside the first"} if has_further else set())


def previous(fields: Mapping[str, Any]) -> str:
    """The id of the response that a call of OpenAI's Responses goes on from; empty for none."""
    for name in ("llm.invocation_parameters", "input.value", "langfuse.observation.input", "mlflow.spanInputs"):
        if earlier := mapping(decoded(fields.get(name))).get("previous_response_id"):
            return str(earlier)
    return str(fields.get("gen_ai.request.previous_response_id") or "")


def answer_id(fields: Mapping[str, Any]) -> str:
    """The id of a call's answer; empty where none is recorded."""
    named = (fields.get(name) for name in ("gen_ai.response.id", "ai.response.id"))
    inside = (mapping(decoded(fields.get(name))).get("id") for _, name in WHOLE)
    return next((str(name) for name in chain(named, inside) if name), "")


def decoded_text(value: Any) -> Any:
    """The text in a JSON text, as MLflow and Langfuse write attributes that a user set."""
    return json.loads(value) if isinstance(value, str) and re.fullmatch(r'"[^"\\]*"', value) else value


def _current(fields: Mapping[str, Any]) -> list[Message]:
    """The messages by the current names."""
    given, answers = whole(fields.get("gen_ai.input.messages")), whole(fields.get("gen_ai.output.messages"))
    if not answers:
        return []
    if not isinstance(answers, list) or not isinstance(given, list | None):
        raise ValueError("gen_ai.input.messages or gen_ai.output.messages that is no list")
    return call_of(given, answers[:1])[0]


def _by_events(events: Iterable[Event]) -> list[Message]:
    """The messages by the events for each, which are current no more."""
    given: list[Any] = []
    for event in events:
        body = whole(event.fields.get("gen_ai.event.content"))
        own = event.fields | mapping(body)
        fields = {name: whole(own[name]) if name == "tool_calls" else own[name] for name in FIELDS if own.get(name)}
        if match := EVENTS.fullmatch(event.name):
            if isinstance(fields.get("content"), Mapping) and "type" not in fields["content"]:
                fields["content"] = json.dumps(fields["content"], ensure_ascii=False)  # what was typed, structured
            given.append({"role": match[1]} | fields)
        elif event.name == "gen_ai.choice" and not own.get("index"):
            message = whole(own.get("message")) or fields
            answer = dict(message) if isinstance(message, Mapping) else {"content": message}
            given.append({"role": "assistant", "finish_reason": own.get("finish_reason")} | answer)
    return merged(conversation_of(given, packed=True)) if given else []


def _by_names(fields: Mapping[str, Any]) -> list[Message]:
    """The messages by events in one attribute, as pydantic-ai and logfire had them."""
    listed = whole(fields.get("events") or fields.get("all_messages_events"))
    if not isinstance(listed, list):
        return []
    entries = [each for each in listed if isinstance(each, Mapping)]
    return _by_events(Event(str(each.get("event.name") or ""), dict(each)) for each in entries)


def _numbered(fields: Mapping[str, Any]) -> list[Message]:
    """The messages by numbered attributes, as openllmetry had them."""
    asked = _entries(fields, "gen_ai.prompt") or _entries(fields, "llm.prompts")
    answered = _entries(fields, "gen_ai.completion") or _entries(fields, "llm.completions")
    if not answered:
        return []
    for entry in asked:
        entry.setdefault("role", "user")
    for entry in answered:
        entry.setdefault("role", "assistant")
    first = next((place for place, each in enumerate(answered) if each["role"] != "thinking"), len(answered))
    entries = [*asked, *answered[: first + 1]]
    for place, entry in enumerate(entries):
        if entry["role"] == "thinking":
            entries[place] = {"role": "assistant", "reasoning": entry.get("content")}
    return merged(conversation_of(entries, packed=True))


def _openinference(fields: Mapping[str, Any]) -> list[Message]:
    asked, answered = _entries(fields, "llm.input_messages"), _entries(fields, "llm.output_messages")
    if not answered:
        return []
    return merged(conversation_of([_unwrapped(each) for each in [*asked, *answered]], packed=True))


def _unwrapped(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A message without the names that OpenInference puts around each thing."""
    message = dict(entry.get("message") or entry)
    message["tool_calls"] = [call.get("tool_call", call) for call in message.get("tool_calls") or ()]
    if name := message.get("function_call_name"):
        message["function_call"] = {"name": name, "arguments": message.get("function_call_arguments_json") or "{}"}
    if contents := message.get("contents"):
        parts = []
        for each in contents:
            call = each.get("tool_call") or {}
            parts.append({**(each.get("message_content") or {}), **call, **(call.get("function") or {})})
        message["content"] = parts
    return message


def _vercel(fields: Mapping[str, Any]) -> list[Message]:
    names = {"content": ("text", "object"), "tool_calls": ("toolCalls",), "reasoning": ("reasoning",)}
    answer: dict[str, Any] = {"role": "assistant"}
    for name, words in names.items():
        given = (fields.get(f"ai.{start}.{word}") for start in ("response", "result") for word in words)
        answer[name] = next((value for value in given if value), None)
    asked = fields.get("ai.prompt.messages") or fields.get("ai.prompt")
    if asked is None or not any(answer[name] for name in names):
        return []
    return call_of(asked, answer)[0]


def _tools(fields: Mapping[str, Any], requests: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """The tools that a model was shown, from the first attribute that names some."""
    functions = _entries(fields, "llm.request.functions")
    listed = [each["tool"] for each in _entries(fields, "llm.tools") if isinstance(each.get("tool"), Mapping)]
    schemas = [whole(tool["json_schema"]) if "json_schema" in tool else tool for tool in listed]
    given = [fields.get("gen_ai.tool.definitions"), schemas, fields.get("ai.prompt.tools"), functions]
    given += [fields.get("mlflow.chat.tools")]
    names = ("llm.invocation_parameters", "model_request_parameters", "input.value")
    for request in [*requests, *(fields.get(name) for name in names)]:
        if isinstance(body := decoded(request), Mapping):
            given += [body.get(name) for name in ("tools", "functions", "function_tools", "toolConfig")]
    return next((tools for value in given if value and (tools := tools_of(value))), ())


def _entries(fields: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """What stands in numbered attributes below a prefix, in the order of the numbers."""
    made: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith(f"{prefix}."):
            here, path = made, name.removeprefix(f"{prefix}.").split(".")
            for step in path[:-1]:
                here = here.setdefault(step, {})
                if not isinstance(here, dict):
                    raise ValueError(f"the attribute {prefix}.N has a value and parts")
            here[path[-1]] = value
    listed = _lists(made)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _lists(value: Any) -> Any:
    """Dicts whose keys are all numbers, as lists."""
    if not isinstance(value, dict):
        return value
    made = {name: _lists(each) for name, each in value.items()}
    if made and all(name.isdigit() for name in made):
        return [made[name] for name in sorted(made, key=int)]
    return made
