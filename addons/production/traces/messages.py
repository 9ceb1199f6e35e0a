"""Calls of models as producers record them, in one form: messages {"role", "content", "tool_calls"?, "tool_call_id"?,
"name"?, "reasoning"?}, and the definitions of tools as OpenAI's chat completions have them.

Read are requests and responses of OpenAI's chat completions and Responses, Anthropic's messages, Gemini, Bedrock, Ollama,
LangChain and Vercel's AI SDK, whole or as the list of messages in them; steps/core/message_parts.py reads one message. What
is none of these is a ValueError with its reason: it never becomes somebody's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from addons.production.traces.records import PassedOver, not_kept, unknown_fields
from environments.base import Message
from steps.core.message_lists import SYSTEM, marked_in, refuse_unclear, refuse_unread_words, unread, with_system
from steps.core.message_marks import marked
from steps.core.message_parts import (
    CALLS,
    FIELDS,
    REASONING,
    RESULTS,
    decoded,
    kind_of,
    messages_in,
    whole,
    with_names,
    writable,
)

GIVEN = ("messages", "input", "contents", "conversations", "prompt")  # what holds the messages of a request
TOOLS = ("tools", "functions", "toolConfig", "tool_config", "tool_definitions")
ANSWERS = ("choices", "output", "candidates", "generations", "message", "messages")  # ... of a response
SAID = ("content", "parts", "tool_calls", "toolCalls", "function_call", "reasoning", "reasoning_content", "refusal")
SCHEMAS = ("input_schema", "inputSchema", "parametersJsonSchema", "parameters_json_schema", "json_schema")
ABOUT = {*"metadata model usage object created created_at stop_sequence".split()}  # beside an answer that is a text
FURTHER = ("choices", "candidates")  # lists of answers, of which the first counts
NOT_SAID = ("arguments", "args", "parameters", "metadata", *SCHEMAS)  # of a document: data of others
ITEMS = (*CALLS, *RESULTS, *REASONING)  # of OpenAI's Responses, which are no messages


def conversation_of(value: Any, packed: bool = False) -> list[Message]:
    """The messages in a producer's field: a list of messages, a message, a request or a response with them, JSON text of
    these, or a plain text of the user. ValueError where it is none of them. `packed`: a message's text may hold its parts as
    JSON, as in attributes of spans."""
    value = whole(value)
    if isinstance(value, str):
        return [writable({"role": "user", "content": value})]
    if isinstance(value, Mapping) and "role" not in value and "lc" not in value:
        if value.keys() & {"choices", "candidates", "generations"}:
            return answer_of(value, packed)
        if any(value.get(name) is not None for name in GIVEN):
            return _asked(value, packed)
    if isinstance(value, Mapping):
        if not value.keys() & {"role", "type", "lc"}:
            raise ValueError(f"no messages in an object with the fields {_named(value)}")
        value = [value]
    if not isinstance(value, list):
        raise ValueError(f"no messages but a {type(value).__name__}")
    if len(value) == 1 and isinstance(value[0], list) and not all(isinstance(each, str) for each in value[0]):
        value = value[0]  # LangChain's batches
    refuse_unclear(value)
    return with_names(_listed(value, packed))


def answer_of(value: Any, packed: bool = False) -> list[Message]:
    """The messages of a model's output. A plain text is the assistant's; and so is JSON text that is no message, if the
    field is not `packed`."""
    made = whole(value) if packed else decoded(value)
    if isinstance(made, str) or (isinstance(value, str) and not packed and not _is_answer(made)):
        return [writable({"role": "assistant", "content": value})]
    value = made
    if isinstance(value, list):
        return _generated(value, packed)
    if not isinstance(value, Mapping):
        raise ValueError(f"no answer but a {type(value).__name__}")
    if "role" in value or "lc" in value or kind_of(value) in ITEMS:
        return conversation_of([value], packed)
    return marked(_answered(value, packed), value)


def _answered(value: Mapping[str, Any], packed: bool) -> list[Message]:
    """The messages of a response, by the field that holds them."""
    name = next((name for name in ANSWERS if value.get(name) is not None), "")
    inner = value.get(name)
    if isinstance(inner if name else value.get("content"), str) and value.keys() - FIELDS - ABOUT:
        raise _unknown(value)  # the model may have written all of the object
    if name in FURTHER and isinstance(inner, Sequence) and inner:
        answer = _choice(inner[0]) if name == "choices" else inner[0].get("content")
        return marked(answer_of(answer, packed), inner[0])
    if name == "generations":
        return _generated(inner, packed)
    if name in ("output", "message"):
        return answer_of(inner, packed)
    if name == "messages":
        return conversation_of(inner, packed)
    if value.keys() & set(SAID):
        return conversation_of([{**value, "role": "assistant"}], packed)
    raise _unknown(value)


def call_of(request: Any, response: Any, packed: bool = False) -> tuple[list[Message], tuple[dict[str, Any], ...]]:
    """(the messages of a call up to the model's answer, the tools) of what was sent and what came back."""
    request = whole(request)
    if isinstance(request, Mapping) and (request.get("previous_response_id") or request.get("conversation")):
        raise ValueError("it goes on from an earlier response, which is not in its request")
    given = conversation_of(request, packed) if request not in (None, "", [], {}) else []
    answer = [] if response in (None, "", [], {}) else answer_of(response, packed)
    if answer[: len(given)] != given:  # a graph's state holds what it was given, too
        answer = given + answer
    messages = with_names(merged(answer))
    last = messages[-1] if messages else {"role": ""}
    if last["role"] == "assistant" and not (last["content"].strip() or last.get("tool_calls")):
        raise ValueError("an answer with neither words nor calls")
    return messages, tools_in(request)


def _is_answer(value: Any) -> bool:
    """Whether JSON is a message or a list of them, and not an answer that a model wrote as JSON."""
    entries = value if isinstance(value, list) else [value]
    names = {"role", "lc", "choices"}
    return bool(entries) and all(isinstance(each, Mapping) and each.keys() & names for each in entries)


def left_out(request: Any, *documents: Any) -> Iterator[PassedOver]:
    """What a conversation is without: the fields of its request's messages that no reader knows, and what of these documents
    it cannot hold."""
    body = decoded(request)
    given = next((body[name] for name in GIVEN if body.get(name)), None) if isinstance(body, Mapping) else body
    yield from unknown_fields(unread(given), "messages")
    yield from not_kept(lost_in(*documents))


def lost_in(*documents: Any) -> set[str]:
    """What stands in requests and responses and in no conversation that is made of them."""
    lost, waiting = set[str](), list(map(decoded, documents))
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, Mapping):
            if any(isinstance(value.get(name), list) and len(value[name]) > 1 for name in FURTHER):
                lost.add("further answers beside the first")
            if value.get("encrypted_content") or value.get("type") == "redacted_thinking":
                lost.add("reasoning that is encrypted")
            tools = value.get("tools")
            if isinstance(tools, list) and any(isinstance(each, Mapping) and not tools_of([each]) for each in tools):
                lost.add("tools that a provider runs")
            waiting += [each for name, each in value.items() if name not in NOT_SAID]
    return lost


def tools_in(request: Any) -> tuple[dict[str, Any], ...]:
    """The tools that a request names."""
    if isinstance(request, list):  # the last of its messages may be tools
        return tools_of([entry["content"] for entry in request if _is_tool(entry)])
    if not isinstance(request, Mapping):
        return ()
    if isinstance(config := request.get("config"), Mapping):  # Gemini's
        request = {**config, **request}
    beside = next((tools_of(request[name]) for name in TOOLS if request.get(name)), ())
    return beside or tools_in(request.get("messages"))


def _is_tool(entry: Any) -> bool:
    """Whether an entry of a list of messages is the definition of a tool, as LangChain's callback for Langfuse writes it."""
    content = entry.get("content") if isinstance(entry, Mapping) and entry.get("role") == "tool" else None
    return isinstance(content, Mapping) and isinstance(content.get("function"), Mapping)


def tools_of(value: Any) -> tuple[dict[str, Any], ...]:
    """Definitions of tools, as OpenAI's chat completions have them. What has no name, such as a tool that a provider runs by
    itself, is left out. ValueError for JSON that is cut off."""
    listed = whole(value)
    if isinstance(listed, Mapping):
        if isinstance(inner := listed.get("tools"), list):  # Bedrock's toolConfig
            listed = inner
        elif all(isinstance(whole(each), Mapping) for each in listed.values()) and "function" not in listed:
            listed = [{"name": name, **whole(each)} for name, each in listed.items()]  # by their names
        else:
            listed = [listed]
    made: list[dict[str, Any]] = []
    for tool in listed if isinstance(listed, list) else ():
        made += _tools(whole(tool))
    return tuple(writable(made))


def _tools(tool: Any) -> Iterable[dict[str, Any]]:
    if not isinstance(tool, Mapping):
        return
    for name in ("functionDeclarations", "function_declarations"):  # Gemini's
        yield from tools_of(tool.get(name))
    if isinstance(tool.get("function"), Mapping):
        yield {"type": "function", "function": dict(tool["function"])}
        return
    tool = tool["toolSpec"] if isinstance(tool.get("toolSpec"), Mapping) else tool
    if not isinstance(tool.get("name"), str):
        return
    function = {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}
    schema = next((whole(tool[name]) for name in ("parameters", *SCHEMAS) if tool.get(name) is not None), None)
    if isinstance(schema, Mapping):
        inner = (schema[name] for name in ("json", "jsonSchema") if isinstance(schema.get(name), Mapping))
        function["parameters"] = dict(next(inner, schema))
    yield {"type": "function", "function": function}


def merged(messages: Iterable[Message]) -> list[Message]:
    """The messages, where those are one that producers write as several: an assistant's reasoning, words and calls. No words
    follow words or calls in one."""
    made: list[Message] = []
    for message in messages:
        last = made[-1] if made else {"role": ""}
        is_assistants = message["role"] == last["role"] == "assistant"
        if is_assistants and not (message["content"] and (last["content"] or last.get("tool_calls"))):
            made[-1] = _joined(last, message)
        else:
            made.append(message)
    return made


def _joined(first: Message, second: Message) -> Message:
    both = [message["reasoning"] for message in (first, second) if message.get("reasoning")]
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    words = "\n".join(text for text in (first["content"], second["content"]) if text)
    made: Message = {**first, **second, "role": "assistant", "content": words}
    return made | ({"tool_calls": calls} if calls else {}) | ({"reasoning": "\n".join(both)} if both else {})


def _asked(request: Mapping[str, Any], packed: bool) -> list[Message]:
    """The messages of a request, with the system's words that stand beside them."""
    config = request.get("config")
    fields = {**config, **request} if isinstance(config, Mapping) else request
    given = next(fields[name] for name in GIVEN if fields.get(name) is not None)
    refuse_unread_words(fields, "a request", SYSTEM)
    return with_system(conversation_of(given, packed), fields, packed=packed)


def _listed(entries: Sequence[Any], packed: bool) -> list[Message]:
    """The messages of a list, in which items of OpenAI's Responses may stand between them."""
    made: list[Message] = []
    is_item = False
    for entry in entries:
        if _is_tool(entry):
            continue
        was_item, is_item = is_item, False
        if isinstance(entry, Mapping) and "role" not in entry and kind_of(entry) in ITEMS:
            is_item, role = True, "tool" if kind_of(entry) in RESULTS else "assistant"
            messages = messages_in({"role": role, "content": [entry]}, packed)
        else:
            is_item = isinstance(entry, Mapping) and entry.get("type") == "message" and entry.get("role") == "assistant"
            messages = marked_in(entry, packed)
        if (was_item or is_item) and made and messages and made[-1]["role"] == messages[0]["role"] == "assistant":
            made[-1] = _joined(made[-1], messages[0])
            messages = messages[1:]
        made += messages
    return made


def _generated(value: Any, packed: bool) -> list[Message]:
    """The messages of a list in an answer: items, messages, or LangChain's generations, of which the first counts."""
    value = [value] if isinstance(value, Mapping) else value
    while isinstance(value, list) and len(value) > 0 and isinstance(value[0], list) and value[0]:
        value = value[0]
    if not isinstance(value, list) or not value:
        raise ValueError("an answer that is empty")
    if isinstance(first := value[0], Mapping) and "role" not in first and "lc" not in first:
        is_generation = "generation_info" in first or first.get("type") in ("Generation", "ChatGeneration")
        if (is_generation and isinstance(first.get("text"), str)) or isinstance(first.get("message"), Mapping):
            return marked(answer_of(first.get("message") or first["text"], packed), first)
        if all(isinstance(each, Mapping) and kind_of(each) in ("text", *ITEMS) for each in value) and "id" not in first:
            return conversation_of([{"role": "assistant", "content": value}], packed)
    return conversation_of(value, packed)


def _choice(choice: Mapping[str, Any]) -> Any:
    """What a choice of OpenAI's holds: a message, or a text of the older completions."""
    message = choice.get("message")
    if isinstance(message, Mapping):
        return {"role": "assistant", **message}
    return choice.get("text") if message is None else message


def _unknown(value: Mapping[str, Any]) -> ValueError:
    return ValueError(f"an answer in no form that is known here (its fields: {_named(value)})")


def _named(value: Mapping[str, Any]) -> str:
    return ", ".join(sorted(str(name)[:40] for name in value)[:8])
