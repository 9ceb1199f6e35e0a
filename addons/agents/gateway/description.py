"""The gateway's routes for agents and readers as OpenAPI 3.1: what their requests must be, and which answers to expect.

Left out: the routes under /clients, which are the clients' own, and what no schema can say: that a tool's message answers a
call before it, that tool_choice names one of the tools, and that a schema is one which the engine can follow.
"""

from __future__ import annotations

import re
from typing import Any

from addons.agents.gateway.fields import MOST_ANSWERS, MOST_STOPS, NAME

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
PLAIN: Schema = {"type": "string", "pattern": "^[^\\u0000]*$"}
FILLED: Schema = {"type": "string", "pattern": "^[^\\u0000]+$"}
FLAG: Schema = {"type": "boolean"}
SEED: Schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
SEVERAL: Schema = {"type": "integer", "minimum": 1, "maximum": MOST_ANSWERS}
TOP: Schema = {"type": "integer", "minimum": 0, "maximum": 20}
TOKEN: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
OBJECT: Schema = {"$ref": "#/components/schemas/PlainObject"}
TOOL_NAME: Schema = {"type": "string", "pattern": f"^{NAME.pattern}$", "not": {"enum": ["auto", "none", "required"]}}


def one_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def words(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


def many(schema: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": schema, **limits}


def fields(required: str = "", /, **optional: Schema) -> Schema:
    """An object: the fields named in `required` must be there, the others may be missing or null."""
    names = required.split()
    return {
        "type": "object",
        "properties": {
            name: schema if name in names else one_of(schema, {"type": "null"}) for name, schema in optional.items()
        },
        **({"required": names} if names else {}),
    }


def content(*types: str) -> Schema:
    """A text, or parts of these types."""
    return one_of(TEXT, many(one_of(*(part(name) for name in types))))


def part(name: str) -> Schema:
    field = "refusal" if name == "refusal" else "text"
    return fields(f"type {field}", type=words(name), **{field: TEXT})


# A JSON value, and an object of such values, without the character NUL, which files and databases refuse.
REFERENCE: Schema = {"$ref": "#/components/schemas/Plain"}
VALUE = one_of(PLAIN, *({"type": name} for name in ("number", "boolean", "null")), many(REFERENCE), OBJECT)
VALUES = {"type": "object", "propertyNames": {"pattern": PLAIN["pattern"]}, "additionalProperties": REFERENCE}
STOP = one_of(FILLED, many(FILLED, maxItems=MOST_STOPS))
FUNCTION = fields("name", name=TOOL_NAME, description=PLAIN, parameters=OBJECT)
CALLED = {"name": PLAIN, "arguments": one_of(TEXT, OBJECT)}
CHOICE = words("auto", "none", "required")
IGNORED = {"description": "Ignored, as top_p and others are: the run decides how tokens are drawn."}


def body(required: str, **own: Schema) -> Schema:
    """A request: what is its dialect's own, and what all have."""
    return fields(required, model=TEXT, **own, stream=FLAG, temperature=IGNORED)


def form(field: str, schema: Schema) -> Schema:
    """The form of an answer, with a schema in this field."""
    json_schema = fields(f"type {field}", type=words("json_schema"), **{field: schema})
    return one_of(fields("type", type=words("text", "json_object")), json_schema)


def chat() -> Schema:
    call = fields("id function", id=FILLED, type=words("function"), function=fields("name", **CALLED))
    del call["properties"]["type"]["anyOf"][1]  # it may be missing, and not be null
    message = one_of(
        fields("role content", role=words("system", "developer", "user"), content=content("text")),
        fields("role", role=words("assistant"), content=content("text", "refusal"), tool_calls=many(call)),
        fields("role content tool_call_id", role=words("tool"), content=content("text"), tool_call_id=FILLED),
    )
    named = fields("type function", type=words("function"), function=fields("name", name=TOOL_NAME))
    return body(
        "messages",
        messages=many(message, minItems=1),
        tools=many(fields("type function", type=words("function"), function=FUNCTION)),
        tool_choice=one_of(CHOICE, named),
        response_format=form("json_schema", fields("schema", schema=OBJECT)),
        parallel_tool_calls=FLAG,
        n=SEVERAL,
        max_tokens=LIMIT,
        max_completion_tokens=LIMIT,
        stop=STOP,
        seed=SEED,
        logprobs=FLAG,
        top_logprobs=TOP,
    )


def completions() -> Schema:
    ids = many(TOKEN, minItems=1)
    text = {"type": "string", "minLength": 1}
    prompt = one_of(text, ids, many(text, minItems=1, maxItems=1), many(ids, minItems=1, maxItems=1))
    return body("prompt", prompt=prompt, n=SEVERAL, max_tokens=LIMIT, stop=STOP, seed=SEED, logprobs=TOP)


def responses() -> Schema:
    texts = content("input_text", "output_text", "text", "refusal")
    role = words("system", "developer", "user", "assistant")
    reasoning = {name: many(part(kind)) for name, kind in (("content", "reasoning_text"), ("summary", "summary_text"))}
    item = one_of(
        fields("role content", role=role, content=texts) | {"not": {"required": ["type"]}},
        fields("type role content", type=words("message"), role=role, content=texts),
        fields("type", type=words("reasoning"), **reasoning),
        fields("type call_id name", type=words("function_call"), call_id=FILLED, **CALLED),
        fields("type call_id output", type=words("function_call_output"), call_id=FILLED, output=texts),
    )
    tool = FUNCTION | {"properties": FUNCTION["properties"] | {"type": words("function")}, "required": ["type", "name"]}
    return body(
        "input",
        input=one_of(TEXT, many(item)),
        instructions=TEXT,
        previous_response_id=FILLED,
        tools=many(tool),
        tool_choice=one_of(CHOICE, fields("type name", type=words("function"), name=TOOL_NAME)),
        text=fields(format=form("schema", OBJECT)),
        max_output_tokens=LIMIT,
        stop=STOP,
        include={"type": "array"},
        top_logprobs=TOP,
        parallel_tool_calls=FLAG,
        store=FLAG,
        metadata={"type": "object"},
    )


def messages(required: str = "messages max_tokens") -> Schema:
    text = part("text")
    result = fields("type tool_use_id", type=words("tool_result"), tool_use_id=FILLED, content=content("text"))
    used = fields("type id name input", type=words("tool_use"), id=FILLED, name=PLAIN, input=OBJECT)
    thinking = fields("type thinking", type=words("thinking"), thinking=TEXT)
    message = one_of(
        fields("role content", role=words("user"), content=one_of(TEXT, many(one_of(text, result)))),
        fields("role content", role=words("assistant"), content=one_of(TEXT, many(one_of(text, used, thinking)))),
        fields("role content", role=words("system"), content=content("text")),
    )
    custom = {"type": words("custom"), "description": PLAIN, "input_schema": OBJECT}
    schema = fields("type schema", type=words("json_schema"), schema=OBJECT)
    return body(
        required,
        max_tokens=LIMIT,
        messages=many(message, minItems=1),
        system=content("text"),
        tools=many(fields("name input_schema", name=TOOL_NAME, **custom)),
        tool_choice=one_of(
            fields("type", type=words("auto", "any", "none")),
            fields("type name", type=words("tool"), name=TOOL_NAME),
        ),
        stop_sequences=STOP,
        thinking=fields("type", type=words("enabled", "adaptive", "disabled")),
        output_config=fields(format=schema),
        output_format=schema,
    )


STATUSES = {
    400: "The request is wrong, or asks for what cannot be honoured; the message names the field.",
    401: "The key is missing, or is not that of a running execution of this episode.",
    404: "There is no such route, or no such response.",
    409: "The episode has ended, or goes on elsewhere.",
    413: "The body is too large.",
    503: "No batch is played now.",
}


def openapi() -> Schema:
    """The description as a JSON object."""
    v1 = "/episodes/{episode}/v1"
    paths: dict[str, Schema] = {
        f"{v1}/chat/completions": _post("A chat completion, as OpenAI's", chat(), "id choices usage"),
        f"{v1}/completions": _post("A completion of a prompt, as OpenAI's", completions(), "id choices usage"),
        f"{v1}/responses": _post("A response, as OpenAI's", responses(), "id output usage"),
        f"{v1}/messages": _post("A message, as Anthropic's", messages(), "id content usage"),
        f"{v1}/messages/count_tokens": _post(
            "The tokens of a prompt, as Anthropic counts them", messages("messages"), "input_tokens", streams=False
        ),
        f"{v1}/models": {"get": _operation("The policy, as OpenAI and Anthropic list models", "data", (401,))},
        f"{v1}/models/{{model}}": {"get": _operation("The policy, by any name", "id", (401,))},
        f"{v1}/responses/{{response}}": {
            "get": _operation("A response of this execution again", "id output usage", (401, 404))
        },
        "/health": {"get": _operation("Whether the gateway runs", "status", ()) | {"security": []}},
        "/status": {"get": _operation("Clients, queue, episodes and speed, with the gateway's key", "", (401,))},
    }
    for path, operations in paths.items():
        if names := re.findall(r"{(\w+)}", path):
            text = {"type": "string", "minLength": 1}
            operations["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": text} for name in names
            ]
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "agent-flywheel's gateway", "version": "1"},
        "paths": paths,
        "security": [{"bearer": []}, {"apiKey": []}],
        "components": {"securitySchemes": schemes, "schemas": {"Plain": VALUE, "PlainObject": VALUES}},
    }


def _post(summary: str, body: Schema, answer: str, streams: bool = True) -> Schema:
    operation = _operation(summary, answer, tuple(STATUSES))
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if streams:
        operation["responses"]["200"]["content"]["text/event-stream"] = {}
    return {"post": operation}


def _operation(summary: str, answer: str, statuses: tuple[int, ...]) -> Schema:
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object"}}}
    answers = {"200": _answer("The answer.", {"type": "object", **({"required": answer.split()} if answer else {})})}
    return {"summary": summary, "responses": answers | {str(code): _answer(STATUSES[code], error) for code in statuses}}


def _answer(text: str, schema: Schema) -> Schema:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
