"""The schemas of tools as vLLM's parsers read them: an argument that a model writes as text gets the type that is asked for.

vLLM's parsers look at `type`, `enum`, `anyOf`, `oneOf` and `allOf`, and take what has none of them for text. Here references
are resolved, and what is said in other words (`const`, `properties`, `items`) has a type. Inside an object the JSON says the
types: a part that may be of several is left as it was written. Only the parser sees this form, and never the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

MANY = ("anyOf", "oneOf", "allOf")
DEPTH = 12  # references into references, of schemas that contain themselves


def for_parser(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools with the properties of each in this form."""
    made = []
    for tool in tools:
        function = dict(tool["function"])
        root = function.get("parameters")
        if isinstance(root, Mapping):
            whole = resolved(root, root)
            function["parameters"] = whole | {"properties": {n: _flat(p) for n, p in _properties(whole).items()}}
        made.append({**tool, "function": function})
    return made


def allowed(tools: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """The types of each (tool, parameter), none where it may be of any; `tools` are in the parser's form."""
    return {
        (tool["function"]["name"], name): types(part)
        for tool in tools
        for name, part in _properties(tool["function"].get("parameters")).items()
    }


def settled(value: Any, kinds: set[str]) -> Any:
    """What vLLM's parser leaves a text: nothing where a template writes that in Python's way, and an object or a list where
    a parameter of any type has the JSON of one."""
    if value == "None" and "null" in kinds and "string" not in kinds:
        return None
    if kinds or not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def resolved(node: Any, root: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """A schema without references. One that contains itself has its type alone at DEPTH."""
    if not isinstance(node, Mapping):
        return {}
    made = dict(node)
    if isinstance(reference := made.pop("$ref", None), str):
        target = _target(reference, root) if depth < DEPTH else {}
        made = resolved(target, root, depth + 1) | made
    for name in MANY:
        if isinstance(made.get(name), list):
            made[name] = [resolved(part, root, depth + 1) for part in made[name]] if depth < DEPTH else []
    if "const" in made:
        made["enum"] = [made.pop("const")]
    for name, kind in (("properties", "object"), ("items", "array")):
        if name in made and "type" not in made:
            made["type"] = kind
    if made.pop("nullable", False) is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    if "properties" in made:
        parts = _properties(made).items() if depth < DEPTH else ()
        made["properties"] = {name: resolved(part, root, depth + 1) for name, part in parts}
    if "items" in made:
        made["items"] = resolved(made["items"], root, depth + 1) if depth < DEPTH else {}
    for part in made.get("allOf", ()):
        made["properties"] = _properties(part) | _properties(made)
    return {name: part for name, part in made.items() if name != "properties" or part}


def types(schema: Any) -> set[str]:
    """What a resolved schema allows, as vLLM reads it."""
    from vllm.tool_parsers.utils import extract_types_from_schema

    keys = {"type", "enum", *MANY} & schema.keys() if isinstance(schema, Mapping) else set()
    return set(extract_types_from_schema(schema)) if any(schema[key] for key in keys) else set()


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose inner parts have one type each: others are left out, so that nothing changes them."""
    made = dict(schema)
    if "properties" in made:
        made["properties"] = {n: _flat(part) for n, part in made["properties"].items() if len(types(part)) == 1}
    if "items" in made:
        if len(types(made["items"])) == 1:
            made["items"] = _flat(made["items"])
        else:
            del made["items"]
    return made


def _properties(schema: Any) -> dict[str, Any]:
    parts = schema.get("properties") if isinstance(schema, Mapping) else None
    return dict(parts) if isinstance(parts, Mapping) else {}


def _target(reference: str, root: Any) -> Any:
    """What a reference inside the schema points at; nothing where it points elsewhere."""
    if not reference.startswith("#"):
        return {}
    place = root
    for name in filter(None, unquote(reference[1:]).split("/")):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and name.isdigit() and int(name) < len(place):
            place = place[int(name)]
        else:
            place = place.get(name) if isinstance(place, Mapping) else None
    return place
