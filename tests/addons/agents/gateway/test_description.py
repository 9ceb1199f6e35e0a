"""The description says what the dialects take: what they read is described, and what is described they read.

schemathesis makes requests of it to a small application with the canned replies of tests/support/canned_gateway.py.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from addons.agents.gateway.answers import DIALECTS
from addons.agents.gateway.description import openapi
from addons.agents.gateway.types import BadRequest
from tests.support.canned_gateway import choice, reply
from tests.support.dialect_bodies import FULL, places, replaced

PREFIX = "/episodes/{episode}/v1/"
WRONG: list[Any] = [None, True, 0, 2.0, 0.5, 2**70, "", "x", "\0", "text", "none", [], {}, [[]], [{}], ["a"], [1]]
WRONG += [{"type": "text"}, {"a": "\0"}]
# What no schema says: a reference to another part of the request, a name used twice, or an input without an item.
RELATED: tuple[str, ...] = (
    "is the id of no call",
    "which is not among the tools",
    "names no tools",
    "of another tool",
    "needs logprobs",
)
RELATED += ("is no JSON", "arguments must be an object", "not end with the assistant", "input must not be empty")


def validator(name: str) -> Any:
    """Of the bodies of a dialect."""
    description = openapi()
    body = description["paths"][PREFIX + name]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return jsonschema_rs.Draft202012Validator(body | {"components": description["components"]})


@pytest.mark.parametrize("name", DIALECTS)
def test_what_is_read_is_what_is_described(name: str) -> None:
    full, described = (
        next(body for module, body in FULL.items() if module.parse is DIALECTS[name].parse),
        validator(name),
    )
    faults, counts = [], {True: 0, False: 0}
    for path in places(full):
        for value in WRONG:
            body = replaced(full, path, value)
            try:
                DIALECTS[name].parse(body)
                reason = ""
            except BadRequest as problem:
                reason = problem.message
            is_described = described.is_valid(body)
            counts[is_described] += 1
            if is_described != (not reason) and not (reason and any(known in reason for known in RELATED)):
                faults.append((path, value, reason or "is read"))
    assert not faults, "\n".join(map(str, faults))
    assert min(counts.values()) > 10


def application(statuses: dict[int, int]) -> Starlette:
    """The four dialects with canned replies, without keys. It counts its statuses."""

    async def answer(request: Request) -> Response:
        dialect = DIALECTS[request.url.path.partition("/v1/")[2]]
        try:
            body = json.loads(await request.body())
            dialect.parse(body)
        except (ValueError, RecursionError):
            return JSONResponse(dialect.error(BadRequest("no JSON"), 400), 400)
        except BadRequest as problem:
            statuses[400] += 1
            return JSONResponse(dialect.error(problem, 400), 400)
        statuses[200] += 1
        made = reply(*[choice(calls=1)] * (body.get("n") or 1 if isinstance(body.get("n"), int) else 1))
        if body.get("stream"):
            return Response("".join(dialect.events(made, body)), media_type="text/event-stream")
        return JSONResponse(dialect.render(made, body))

    return Starlette(routes=[Route(f"{PREFIX}{name}", answer, methods=["POST"]) for name in DIALECTS])


@pytest.mark.nightly
def test_schemathesis_finds_nothing() -> None:
    statuses = {200: 0, 400: 0}
    description = openapi()
    description["paths"] = {
        path: operations for path, operations in description["paths"].items() if path.removeprefix(PREFIX) in DIALECTS
    }
    del description["security"], description["components"]["securitySchemes"]
    schema = schemathesis.openapi.from_dict(description)
    schema.app = application(statuses)
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]

    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    quick = settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    for path in description["paths"]:
        for mode in modes:
            quick(given(schema[path]["POST"].as_strategy(generation_mode=mode))(check))()
    assert min(statuses.values()) > 5
