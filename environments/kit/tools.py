"""Tools made from methods: the schemas that the policy sees, the models that check arguments, and the text of results.

A docstring describes each argument in a section `Args:` of Google's style, as `name: text` or `name (type): text`; a text
may go on in lines that are indented further. Sections such as `Returns:` are for readers of the code alone.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import operator
import re
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from environments.kit.transcripts import Message, use

F = typing.TypeVar("F", bound=Callable[..., Any])

JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
TYPES = (
    "str, int, float, bool, Literal, a list of these such as list[str], unions of them, and each with Annotated bounds"
)
SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|See Also|Todo):\s*"
)
ARGUMENTS = ("Args", "Arguments", "Parameters")
WORDS = ("a", "b", "note", "hello")  # texts of calls that are made at random
ENTRY = re.compile(r"(\w+) ?(?:\(.*?\))?:\s*(.*)")  # name: text, or name (type): text


class Tool(NamedTuple):
    """A method that the policy can call: its schema, and the pydantic model that checks its arguments."""

    name: str
    schema: dict[str, Any]  # as in the OpenAI tools format
    arguments: type[BaseModel]


def tool(method: F) -> F:
    """Mark a method of an `Env` as a tool. The `Args:` section of its docstring describes each argument.

    What it returns is the observation: a text as it is, anything else as JSON. It may be `async def`: then it runs on an
    event loop beside the engine, and so do those of the other episodes. TypeError for what is no method.
    """
    _refuse_all_but_methods(method)
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise TypeError(f"{method.__qualname__}: a tool cannot use `yield`; return the whole result")
    method.is_tool = True  # pyrefly: ignore[missing-attribute]
    return method


def _refuse_all_but_methods(method: Any) -> None:
    if not inspect.isfunction(method):
        raise TypeError(
            f"a tool is a plain method, not a {type(method).__name__}: leave other decorators than @tool out"
        )


def text_of(name: str, result: Any) -> str:
    """The text that the policy reads: a text as it is, all else as JSON. TypeError for a coroutine, which nobody awaits:
    a tool that returns one must be `async def` itself."""
    if isinstance(result, str):
        return str.__str__(result)  # of an Enum of texts, too
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"the tool {name} returned a coroutine, not a result: write `async def`, and await it there")
    return json.dumps(TypeAdapter(Any).dump_python(result, mode="json", fallback=_plain), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value that pydantic does not know: numpy's and torch's as numbers and lists, and another one as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def make_tool(method: Callable[..., Any]) -> Tool:
    """The schema of a method in the form that the chat templates of Qwen, Llama and others expect.

    TypeError names the tool and the argument that cannot be described.
    """
    _refuse_all_but_methods(method)
    hints = _hints(method)
    summary, described = _read_docstring(method.__doc__ or "")
    properties: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    required: list[str] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        name, where = parameter.name, f"{method.__qualname__}: the argument {parameter.name}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{where} is not a named argument: write each argument of a tool by its name")
        if name not in hints:
            raise TypeError(f"{where} has no type hint: write it as in `{name}: str`")
        hint, default = hints[name], parameter.default
        if isinstance(default, FieldInfo):  # `cell: int = Field(ge=1)`
            hint = Annotated[hint, default]
            default = parameter.empty if default.is_required() else default.get_default(call_default_factory=True)
        schema = _json_type(hint, where)
        if not (text := described.get(name) or schema.get("description")):
            raise TypeError(
                f"{method.__qualname__}: the docstring does not describe {name}: add a line `{name}: what it is` to its "
                "section `Args:`"
            )
        properties[name] = schema | {"description": text}
        must = default is parameter.empty
        fields[name] = (hint, ... if must else default)
        required += [name] if must else []
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": method.__name__, "description": summary, "parameters": parameters}
    strict = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    with warnings.catch_warnings():  # an argument may be called `copy` or `schema`, as a method of the model is
        warnings.filterwarnings("ignore", "Field name", UserWarning)
        model = create_model(f"{method.__name__}_arguments", __config__=strict, **fields)
    return Tool(method.__name__, {"type": "function", "function": function}, model)


def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(method, include_extras=True)
    except NameError as problem:
        raise TypeError(
            f"{method.__qualname__}: a type hint cannot be read ({problem}); import what it names at the top of the module"
        ) from None


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """(the text before the first section, the description of each argument)."""
    summary: list[str] = []
    described: dict[str, list[str]] = {}
    section, indent, lines = "", -1, described.setdefault("", [])  # what belongs to no argument is dropped
    for line in inspect.cleandoc(text).splitlines():
        depth = len(line) - len(line.lstrip())
        if header := SECTION.fullmatch(line):
            section, indent = header[1], -1
        elif not section:
            summary.append(line)
        elif section in ARGUMENTS and line.strip():
            indent = depth if indent < 0 else indent
            if depth <= indent:
                entry = ENTRY.match(line.strip()) if depth == indent else None
                lines = described.setdefault(entry[1] if entry else "", [])
                line = entry[2] if entry else line
            lines.append(line)
    texts = {name: " ".join(" ".join(parts).split()) for name, parts in described.items() if name}
    return " ".join(" ".join(summary).split()), {name: text for name, text in texts.items() if text}


def _json_type(hint: Any, where: str) -> dict[str, Any]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        whole = TypeAdapter(hint).json_schema()
        bounds = {key: value for part in (*whole.pop("anyOf", ()), whole) for key, value in part.items()}
        return (kind := _json_type(inner[0], where)) | bounds | kind
    if origin in (types.UnionType, typing.Union):
        choices = [_json_type(kind, where) for kind in inner if kind is not type(None)]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}
    if origin is Literal and {type(value) for value in inner} in ({kind} for kind in JSON_TYPES):
        return {"type": JSON_TYPES[type(inner[0])], "enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": _json_type(inner[0], where)}
    if hint in JSON_TYPES:
        return {"type": JSON_TYPES[hint]}
    raise TypeError(f"{where} cannot be of type {getattr(hint, '__name__', hint)}: the types are {TYPES}")


def unwritable(value: Any) -> bool:
    """Whether files or databases would refuse a value: lone surrogates, NUL, infinite numbers or NaN, or over 50 levels."""
    if isinstance(value, str):
        return "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, float):
        return not math.isfinite(value)
    level = [value]
    for _ in range(50):
        level = [part for container in level for part in _parts(container)]
        if any(isinstance(part, str | float) and unwritable(part) for part in level):
            return True
        if not level:
            return False
    return True


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list) else []


def tool_of(described: dict[str, Any]) -> Tool:
    """The tool of {"name", "description", "parameters": JSON schema}, whose model checks arguments by the schema's types."""
    parameters = described.get("parameters") or {"type": "object", "properties": {}}
    parameters = _inlined(parameters, parameters.get("$defs", {}), 8)
    function = {"name": described["name"], "description": described.get("description") or "", "parameters": parameters}
    parameters.setdefault("properties", {})
    parameters.setdefault("required", [])
    fields: dict[str, Any] = {}
    for place, (name, schema) in enumerate(parameters["properties"].items()):
        default = ... if name in parameters["required"] else None
        fields[f"argument_{place}"] = (_hint(schema), Field(default, alias=name))  # names of any kind are aliases
    model = create_model("arguments", __config__=ConfigDict(extra="forbid", strict=True), **fields)
    return Tool(described["name"], {"type": "function", "function": function}, model)


def _inlined(schema: Any, definitions: dict[str, Any], levels: int) -> Any:
    """A schema with what it refers to in its place, and without titles, which tell a model nothing."""
    if isinstance(schema, list):
        return [_inlined(part, definitions, levels) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema and levels:
        return _inlined(definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), definitions, levels - 1)
    parts = {
        key: part for key, part in schema.items() if key != "$defs" and not (key == "title" and isinstance(part, str))
    }
    return {key: _inlined(part, definitions, levels) for key, part in parts.items()}


def _hint(schema: Any) -> Any:
    """The type that a JSON schema describes, as far as its types and choices go."""
    if not isinstance(schema, dict):
        return Any
    if schema.get("enum") and all(isinstance(value, str | int | bool) for value in schema["enum"]):
        return Literal[tuple(schema["enum"])]  # pyrefly: ignore[invalid-literal]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return functools.reduce(operator.or_, map(_hint, choices))
    kind = schema.get("type")
    if kind == "array":
        return list[_hint(schema.get("items", {}))]  # pyrefly: ignore[invalid-annotation]
    kinds: dict[Any, Any] = {name: hint for hint, name in JSON_TYPES.items()}
    kinds |= {"object": dict[str, Any], "null": None}
    return kinds.get(kind, Any) if isinstance(kind, str) else Any


def any_call(tools: Mapping[str, Tool], rng: Random, texts: Sequence[str] = ()) -> Message:
    """A call of one of the tools whose arguments fit its schema; for texts up to three words in a row of those given."""
    function = rng.choice(list(tools.values())).schema["function"]
    properties, required = function["parameters"].get("properties", {}), function["parameters"].get("required", ())
    optional = [
        name
        for name, schema in properties.items()
        if name not in required and schema.keys() & {"type", "enum", "anyOf"}
    ]
    names = [*required, *(name for name in optional if rng.random() < 0.3)]
    given = rng.choice(texts).split() if texts else []
    starts = [rng.randrange(len(given)) for _ in range(3) if given]
    parts = [" ".join(given[start : start + rng.randint(1, 3)]).strip(".,?!") for start in starts]
    choices = [part for part in parts if part] or WORDS
    return use(function["name"], **{name: any_value(properties.get(name, {}), rng, choices) for name in names})


def any_value(schema: Any, rng: Random, texts: Sequence[str] = WORDS) -> Any:
    """A value of a JSON schema's type, the first of several; of its `enum` where it has one, and within its bounds."""
    if not isinstance(schema, dict):
        return texts[0]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if choices := [] if kind else schema.get("anyOf") or schema.get("oneOf"):
        return any_value(choices[0], rng, texts)
    if isinstance(kind, list):
        return any_value(schema | {"type": kind[0]}, rng, texts)
    if kind == "array" and schema.get("minItems"):
        return [any_value(schema.get("items", {}), rng, texts) for _ in range(schema["minItems"])]
    if kind == "object" and schema.get("required"):
        return {name: any_value(schema.get("properties", {}).get(name), rng, texts) for name in schema["required"]}
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    least = schema.get("minimum", 0 if over is None else over)
    most = max(least, schema.get("maximum", least + 10 if under is None else under))
    low = int(least) + (over is not None)
    high = int(schema.get("maximum", low + 9 if under is None else under - 1))
    kinds: dict[str, Any] = {
        "integer": rng.randint(low, max(low, high)),
        "number": drawn if (drawn := round(rng.uniform(least, most), 1)) not in (over, under) else (least + most) / 2,
        "boolean": rng.random() < 0.5,
        "array": [],
        "object": {},
    }
    return kinds.get(str(kind), rng.choice(texts))


def shorten(value: Any, limit: int = 60) -> str:
    """A value as JSON for an error, cut after so many characters."""
    try:
        text = json.dumps(value, ensure_ascii=True, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that are not text, or too many levels
        return f"what cannot be written ({type(value).__name__})"
    return text if len(text) <= limit else text[:limit] + "…"


def wrong_arguments(problem: ValidationError) -> str:
    """The first three problems that pydantic reports, in one line."""
    return "; ".join(
        f"{'.'.join(map(str, finding['loc']))[:60] or 'arguments'}: {finding['msg'][:1].lower()}{finding['msg'][1:]}"
        for finding in problem.errors(include_url=False, include_input=False)[:3]
    )
