"""Reads the fields of a request's body for every dialect. What is wrong raises BadRequest with the field and the reason.

A field that is null counts as absent. Texts may hold NUL, because a policy can sample it and the client sends it back;
names, tools, schemas and arguments may not, because environments.base.unwritable refuses it there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from addons.agents.gateway.types import BadRequest, ToolChoice
from environments.kit import pictures

T = TypeVar("T")
LEVELS = 64  # of a body
ARGUMENT_LEVELS = 50  # of a call's arguments, as in environments.base.unwritable
BITS = 1024  # of a whole number
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # of a tool
MOST_ANSWERS = 128
MOST_STOPS = 16
Tools = tuple[tuple[dict[str, Any], ...], tuple[str, ...]]  # and the names of those that are left out
# What the run decides, so that the trainer knows the distribution that a token was drawn from.
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("length_penalty", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens", "ignore_eos", "reasoning"),
    *("reasoning_effort", "verbosity", "thinking_token_budget", "chat_template_kwargs", "truncate_prompt_tokens"),
)
EMPTY: tuple[Any, ...] = ("", [], {})  # what asks for nothing; false and 0 may ask for what is otherwise
USUAL = {"background"}  # false, as everybody takes it
NESTED = (("text", "verbosity"), ("output_config", "effort"), ("thinking", "budget_tokens"))  # likewise, a field inside
# Fields of every dialect that change no token: whom a provider bills, what it keeps, and how an answer is delivered.
HARMLESS = {
    *"model stream stream_options metadata user store service_tier safety_identifier betas prediction".split(),
    *"prompt_cache_key prompt_cache_retention prompt_cache_options cache_control extra_headers".split(),
}
GRAMMAR = "send a JSON schema as response_format (chat), text.format (responses) or output_config.format (messages)"
REFUSED = {  # by every dialect, where it is neither null nor empty nor false
    "structured_outputs": GRAMMAR,
    "guided_json": GRAMMAR,
    "guided_regex": GRAMMAR,
    "guided_choice": GRAMMAR,
    "guided_grammar": GRAMMAR,
    "stop_token_ids": "name the texts that end an answer in stop",
    "chat_template": "the run decides the chat template (policy.chat_template)",
    "continue_final_message": "end the messages with what the model is to answer",
    "use_beam_search": "answers are sampled",
    "prompt_logprobs": "only the tokens of an answer have logprobs",
}


def checked(body: Any, refused: Mapping[str, str]) -> dict[str, Any]:
    """The body without its null fields. BadRequest for what JSON cannot carry, or for a field that cannot be honoured."""
    refuse_unreadable(body, "", LEVELS)
    fields = {name: value for name, value in mapping(body, "the body").items() if value is not None}
    for name, reason in {**REFUSED, **refused}.items():
        if fields.get(name):
            raise BadRequest(f"{name} cannot be honoured: {reason}", name, "unsupported_parameter")
    string(fields.get("model", ""), "model")
    boolean(fields.get("stream", False), "stream")
    return fields


def refuse_unreadable(value: Any, path: str, levels: int, has_nul: bool = True) -> None:
    """BadRequest for lone surrogates, infinite numbers, numbers beyond BITS, deeper nesting, or what is no JSON."""
    pending = [(value, path, 0)]
    while pending:
        value, path, level = pending.pop()
        if level > levels:
            raise BadRequest(f"{_top(path)} is nested more than {levels} levels deep", _top(path))
        if isinstance(value, dict):
            pending += [(key, path, level) for key in value]
            pending += [(part, f"{path}.{key}" if path else str(key), level + 1) for key, part in value.items()]
        elif isinstance(value, list):
            pending += [(part, f"{path}[{place}]", level + 1) for place, part in enumerate(value)]
        elif isinstance(value, str):
            _refuse_text(value, path, has_nul)
        elif isinstance(value, bool) or value is None:
            continue
        elif not isinstance(value, int | float):
            raise BadRequest(f"{_top(path)} holds a {type(value).__name__}, which is no JSON", _top(path))
        elif not math.isfinite(value) if isinstance(value, float) else value.bit_length() > BITS:
            raise BadRequest(f"{_top(path)} holds a number that is infinite, no number, or too large", _top(path))


def _refuse_text(text: str, path: str, has_nul: bool) -> None:
    try:
        text.encode()  # much faster than a look at each letter
    except UnicodeEncodeError:
        raise BadRequest(f"{_top(path)} holds half of a surrogate pair, which is no text", _top(path)) from None
    if not has_nul and "\0" in text:
        raise BadRequest(f"{_top(path)} holds the character NUL", _top(path))


def _top(path: str) -> str:
    """A path as it can be shown: keys may be of any length and hold anything."""
    shown = path[:80].encode("ascii", "replace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in shown) or "the body"


def kind(value: Any) -> str:
    """What a JSON value is, for a message."""
    if isinstance(value, bool):
        return "a boolean"
    names = {str: "a text", int: "a whole number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _must(value: Any, path: str, what: str) -> BadRequest:
    return BadRequest(f"{path} must be {what}, not {kind(value)}", path)


def _reader(kind: type[T], what: str) -> Callable[[Any, str], T]:
    """What reads a value of this type; BadRequest for another says that the field at the path must be `what`."""

    def read(value: Any, path: str) -> T:
        if not isinstance(value, kind):
            raise _must(value, path, what)
        return value

    return read


string, boolean = _reader(str, "a text"), _reader(bool, "true or false")
mapping: Callable[[Any, str], dict[str, Any]] = _reader(dict, "an object")
listing: Callable[[Any, str], list[Any]] = _reader(list, "a list")


def objects(value: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects in a list, each with its path."""
    for place, entry in enumerate(listing(value, path)):
        yield mapping(entry, f"{path}[{place}]"), f"{path}[{place}]"


def messages(fields: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The same of the list of messages, which must have some."""
    if not listing(fields.get("messages"), "messages"):
        raise BadRequest("messages must not be empty", "messages")
    return objects(fields["messages"], "messages")


def plain(value: Any, path: str) -> str:
    """A text without NUL, such as a name."""
    if "\0" in string(value, path):
        raise BadRequest(f"{path} must not hold the character NUL", path)
    return str(value)


def filled(value: Any, path: str) -> str:
    """A text with at least one letter and without NUL, such as an id."""
    if not plain(value, path):
        raise BadRequest(f"{path} must not be empty", path)
    return str(value)


def integer(value: Any, path: str, low: int, high: int) -> int:
    """A whole number, which may be written with a fraction of zero, as in JSON Schema."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise _must(value, path, "a whole number")
    if not low <= value <= high:
        raise BadRequest(f"{path} must be from {low} to {high}", path)
    return value


def member(value: Any, path: str, options: Collection[str]) -> str:
    """One of several words."""
    if not isinstance(value, str) or value not in options:
        shown = f"{value[:40]!r}" if isinstance(value, str) else kind(value)
        raise BadRequest(f"{path} must be one of {', '.join(options)}, not {shown}", path)
    return value


def ignored(fields: Mapping[str, Any], own: Collection[str]) -> tuple[str, ...]:
    """The fields that are not honoured: those of sampling, which the run decides, and all that are neither among those that
    the dialect reads (`own`) nor harmless."""
    nested = (f"{name}.{part}" for name, part in NESTED if isinstance(fields.get(name), dict) and part in fields[name])
    unread = (name for name in fields if name not in own and name not in HARMLESS and name not in SAMPLING)
    return (
        *(name for name in SAMPLING if name in fields),
        *nested,
        *(_top(name) for name in unread if not (fields[name] in EMPTY or (name in USUAL and not fields[name]))),
    )


def limit(fields: Mapping[str, Any], *names: str) -> int | None:
    """The most tokens of an answer: of the first field that is there. All of them must be whole numbers from 1."""
    limits = [integer(fields[name], name, 1, 2**31 - 1) for name in names if name in fields]
    return limits[0] if limits else None


def stops(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The texts that end an answer: a text, or a list of them."""
    value = fields.get(name, [])
    texts = tuple(filled(text, name) for text in ([value] if isinstance(value, str) else listing(value, name)))
    if len(texts) > MOST_STOPS:
        raise BadRequest(f"{name} holds {len(texts)} texts; at most {MOST_STOPS} are taken", name)
    return texts


def content(value: Any, path: str, parts: str = "parts") -> Any:
    """A content that must not be missing; `joined` and `shown` read it."""
    if value is None:
        raise BadRequest(f"{path} must be a text or a list of {parts}", path)
    return value


def joined(content: Any, path: str, types: Collection[str]) -> str:
    """A content as one text: a text, null, or a list of parts, of which only `types` are read (type and field alike)."""
    return str(shown(content, path, types, lambda part, where: None)["content"])


def shown(
    content: Any, path: str, types: Collection[str], picture: Callable[[dict[str, Any], str], tuple[str, str] | None]
) -> dict[str, Any]:
    """A content as `joined` reads it, with its pictures beside the text. `picture` gives that of a part, or None."""
    if content is None or isinstance(content, str):
        return {"content": content or ""}
    parts = [picture(part, where) or part_of(part, where, types) for part, where in objects(content, path)]
    return pictures.with_pictures(parts)


def picture(value: Any, path: str, is_url: bool = True) -> tuple[str, str]:
    """(SHA-256, base64) of a picture's data URL or base64. BadRequest says why it is refused."""
    text = string(value, path)
    try:
        return pictures.from_url(text) if is_url else pictures.from_base64(text)
    except ValueError as problem:
        raise BadRequest(f"{path}: {problem}", path, "invalid_image") from None


def kind_of(name: Any, path: str, kinds: Collection[str], wanted: str, code: str) -> str:
    """The type of a part or an item; BadRequest for another than these, which says what is `wanted`."""
    if not isinstance(name, str) or name not in kinds:
        given = f"the type {name[:40]!r}" if isinstance(name, str) else "no type"
        raise BadRequest(f"{path} has {given}; {wanted}", f"{path}.type", code)
    return name


def part_of(part: dict[str, Any], path: str, types: Collection[str]) -> str:
    """The text of a part of a content, whose type must be among `types`."""
    wanted = f"what is read here is text ({', '.join(types)})"
    name = kind_of(part.get("type"), path, types, wanted, "unsupported_content")
    field = "refusal" if name == "refusal" else "text"
    return string(part.get(field), f"{path}.{field}")


def written(arguments: Any) -> str:
    """The arguments of a call as every dialect writes them, so that an unchanged client sends the same text back."""
    return json.dumps(arguments, ensure_ascii=False)


def function(name: Any, arguments: Any, path: str) -> dict[str, Any]:
    """The function of a call whose arguments are a JSON text; some clients write the object itself, and nothing for none.
    `written` holds the client's own text where it differs from `written(arguments)`: then the client wrote the JSON anew."""
    made = plain(name, f"{path}.name")
    text = "{}" if arguments is None or arguments == "" else arguments
    if isinstance(text, dict):
        return {"name": made, "arguments": plain_object(text, f"{path}.arguments")}
    try:
        value = json.loads(string(text, f"{path}.arguments"))
    except (ValueError, RecursionError):
        raise BadRequest(f"{path}.arguments is no JSON", f"{path}.arguments") from None
    called = {"name": made, "arguments": plain_object(value, f"{path}.arguments")}
    return called if written(value) == text else called | {"written": text}


def plain_object(value: Any, path: str) -> dict[str, Any]:
    """Arguments or a schema: an object that files and databases take."""
    refuse_unreadable(mapping(value, path), path, ARGUMENT_LEVELS, has_nul=False)
    return dict(value)


def tool(fields: Mapping[str, Any], schema: str, path: str) -> dict[str, Any]:
    """A tool as environments describe theirs: the same keys in the same order. `schema` is the dialect's name for the
    parameters, which may be missing."""
    name = string(fields.get("name"), f"{path}.name")
    if not NAME.fullmatch(name) or name in ("auto", "none", "required"):
        reason = "must have 1 to 128 letters, digits, dots, underscores and hyphens, and not be auto, none or required"
        raise BadRequest(f"{path}.name {reason}", f"{path}.name")
    description = "" if fields.get("description") is None else plain(fields["description"], f"{path}.description")
    given = fields.get(schema)
    parameters = {"type": "object", "properties": {}} if given is None else plain_object(given, f"{path}.{schema}")
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def tools(given: Any, make: Callable[[dict[str, Any], str], list[dict[str, Any]]]) -> Tools:
    """The tools of a request, which `make` reads one by one, and those that it gives nothing for: a provider would run them,
    or defines them. They are left out, and named."""
    made, left_out = [], []
    for entry, path in objects(given, "tools"):
        if not (own := make(entry, path)):
            left_out.append(f"{path} ({_top(string(entry.get('type'), f'{path}.type'))})")
        made += own
    names = set[str]()
    for place, each in enumerate(made):
        if (name := each["function"]["name"]) in names:
            raise BadRequest(f"tools[{place}] has the name {name} of another tool", f"tools[{place}].name")
        names.add(name)
    return tuple(made), tuple(left_out)


def named_tool(name: Any, tools: Collection[dict[str, Any]], path: str, shown: str) -> ToolChoice:
    """The tool that a choice names at `path`; `shown` is the field that an error names where there is no such tool."""
    if string(name, path) in ("auto", "none", "required"):
        raise BadRequest(f"{path} is not among the tools", path)
    return chosen(name, tools, shown)


def chosen(choice: ToolChoice, tools: Collection[dict[str, Any]], path: str) -> ToolChoice:
    """The choice; BadRequest where no tool can fulfil it."""
    if choice == "required" and not tools:
        raise BadRequest(f"{path} asks for a call, and the request names no tools", path)
    if choice not in ("auto", "none", "required", *(made["function"]["name"] for made in tools)):
        raise BadRequest(f"{path} names {choice[:128]!r}, which is not among the tools", path)
    return choice


def answered(calls: Mapping[str, str], name: Any, path: str) -> dict[str, str]:
    """The id and the name of the call that a tool's message answers; `calls` are the names of the calls before, by id."""
    if filled(name, path) not in calls:
        raise BadRequest(f"{path} {name[:80]!r} is the id of no call before this message", path)
    return {"tool_call_id": name, "name": calls[name]}
