"""Each of our HTTP servers answers any request with the right key, or refuses it in a sentence; none fails.

schemathesis makes the requests of a description that stands here, half of them against it; the same with the gateway's own
description is in tests/addons/agents/gateway/test_process.py. Each server is its real ASGI application. `make fuzz`
makes 2,000 requests for each operation (FUZZ_INPUTS / 5), and 1,000 of the gateway.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from addons.fleet import vllm_server
from addons.fleet.uploads import Uploads
from addons.production.serving.capture import Capture
from addons.production.serving.server import Server as Served
from steps.core.params import Policy
from steps.kit.vllm_guard import Guard
from tests.viewer.test_pages import make_run
from viewer.app import application

KEY = "the-right-key"
HOST = "http://127.0.0.1:8000"
INPUTS = int(os.environ.get("FUZZ_INPUTS", "80")) // 10  # with a description, and as many against it
IS_SHORT = "FUZZ_INPUTS" not in os.environ
BATCHES = ["000", "001", "001/evaluation", "002/test", "..", ""]
WORDS: dict[str, list[str]] = {  # parameters of the viewer's pages, and some values that are read
    "run": ["here", "../..", "run"],
    "iteration": ["000", "001"],
    "kind": ["rollout", "evaluation", "test"],
    "by": ["group", "attempt"],
    "sort": ["reward", "spread"],
    "page": ["1", "2", "-1", "999999999999999999999"],
    "error": ["1"],
    "outcome": ["success", "unscored"],
    "order": ["down"],
    "min": ["0.5", "nan"],
    "max": ["1", "-inf"],
    "stop": ["done"],
    "q": ["room 2", "("],
    "said": ["box", "\\"],
    "at": BATCHES,
    "before": BATCHES,
    "after": BATCHES,
    "other": ["here", "../.."],
    "change": ["fixed", "broken"],
    "scenario": ["r1"],
    "attempt": ["0", "1e9"],
    "tokens": ["all", "none", "some"],
    "part": ["rows"],
}
TEXT = {"type": "string"}
FEEDBACK = {
    "type": "object",
    "properties": {
        "response_id": {"enum": ["chatcmpl-1", "x"]},
        "score": {"type": "number"},
        "label": TEXT,
        "comment": TEXT,
        "correction": TEXT,
    },
}
CHAT = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "messages": {
            "type": "array",
            "items": {"type": "object", "properties": {"role": {"enum": ["user", "assistant", "tool"]}, "content": {}}},
        },
        "tools": {},
        "metadata": {"type": "object", "properties": {"conversation_id": {}}},
        "stream": {"type": "boolean"},
    },
}


def pages() -> dict[str, Any]:
    """The viewer's pages."""
    queries = [
        {"name": name, "in": "query", "schema": {"anyOf": [{"enum": values}] * 4 + [TEXT]}}
        for name, values in WORDS.items()
    ]
    return {path: {"get": {"parameters": queries}} for path in ("/", "/group", "/compare", "/analytics", "/agents")}


def posted(schema: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}, **parameters}


def headers(**schemas: Any) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "-"), "in": "header", "schema": schema} for name, schema in schemas.items()]


def viewer(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    return application(make_run(folder / "run"), KEY)


def served(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """Capture behind the guard, before a model that has one answer."""
    variables = Served("127.0.0.1", 8000, "toy", KEY, "swap").environment(Policy())
    capture = {"FOLDER": folder / "captured", "RATE": 1, "DAYS": 1, "BYTES": 10**8, "CONSENT": "assumed"}
    for name, value in (
        variables | {f"FLYWHEEL_CAPTURE_{name}": str(value) for name, value in capture.items()}
    ).items():
        patch.setenv(name, value)

    async def answer(request: Request) -> JSONResponse:
        await request.body()
        message = {"role": "assistant", "content": "Lima."}
        return JSONResponse({"id": "chatcmpl-1", "choices": [{"index": 0, "message": message}]})

    routes = [Route("/v1/chat/completions", answer, methods=["POST"])]
    return Starlette(routes=routes, middleware=[Middleware(Guard), Middleware(Capture)])


def uploads(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    variables = vllm_server.environment(Policy(), "127.0.0.1", 8000, KEY, folder / "kept", True)
    for name, value in variables.items():
        patch.setenv(name, value)

    async def reached(request: Request) -> PlainTextResponse:
        return PlainTextResponse("reached")

    return Starlette(routes=[Route("/{path:path}", reached, methods=["PUT"])], middleware=[Middleware(Uploads)])


SURFACES: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], Any], dict[str, Any]]] = {
    "the viewer": (viewer, pages()),
    "the served model": (
        served,
        {
            "/v1/chat/completions": {
                "post": posted(CHAT, parameters=headers(x_flywheel_consent=TEXT, x_flywheel_conversation=TEXT))
            },
            "/feedback": {"post": posted(FEEDBACK)},
        },
    ),
    "the server that takes adapters": (
        uploads,
        {
            "/flywheel/adapters/{hash}/{file}": {
                "put": posted(
                    {},
                    parameters=[
                        {"name": "hash", "in": "path", "required": True, "schema": {"enum": ["0" * 16, "..", "x"]}},
                        {
                            "name": "file",
                            "in": "path",
                            "required": True,
                            "schema": {"enum": ["adapter_config.json", "adapter_model.safetensors", "x"]},
                        },
                    ],
                )
            }
        },
    ),
}


@pytest.mark.timeout(7200 if not IS_SHORT else 300)
@pytest.mark.parametrize("name", SURFACES)
def test_no_request_is_a_server_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, paths = SURFACES[name]
    answered = {"responses": {"default": {"description": "any"}}}
    operations = {path: {verb: each | answered for verb, each in verbs.items()} for path, verbs in paths.items()}
    description = {"openapi": "3.1.0", "info": {"title": name, "version": "1"}, "paths": operations}
    schema = schemathesis.openapi.from_dict(description)
    schema.app = make(tmp_path, monkeypatch)
    statuses = Counter[int]()

    def check(case: schemathesis.Case) -> None:
        response = case.call(base_url=HOST, headers={"Authorization": f"Bearer {KEY}"})
        statuses[response.status_code] += 1
        case.validate_response(response, checks=[not_a_server_error])
        assert response.status_code < 400 or response.text.strip()

    limits = settings(
        max_examples=INPUTS,
        derandomize=IS_SHORT,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    for path, verbs in operations.items():
        for verb in verbs:
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                limits(given(schema[path][verb.upper()].as_strategy(generation_mode=mode))(check))()
    assert statuses[200], statuses
    if not IS_SHORT:
        with capsys.disabled():
            print(f"\n{name}: {statuses.total():,} requests, answered {dict(statuses)}", file=sys.stderr)
