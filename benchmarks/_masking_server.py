"""A server for benchmarks.masking and tests/attacks: the guard and, where asked for, capture before an engine that answers
after a set time, as vLLM does: with the id of the request, whole or as a stream.

python -m benchmarks._masking_server PORT SECONDS 0|1
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from addons.production.serving.capture import Capture
from steps.kit.guard import LIMITED
from steps.kit.vllm_guard import Guard

ANSWER = "It is on the shelf."


def app(seconds: float, is_captured: bool) -> Starlette:
    async def chat(request: Request) -> Response:
        body = await request.json()
        name = f"chatcmpl-{request.headers.get('x-request-id') or body.get('request_id')}"
        await asyncio.sleep(seconds)
        message = {"role": "assistant", "content": ANSWER}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return JSONResponse({"id": name, "choices": [choice]})

        async def events() -> AsyncIterator[str]:
            for delta, ended in (({"role": "assistant", "content": ANSWER}, None), ({}, "stop")):
                choice = {"index": 0, "delta": delta, "finish_reason": ended}
                yield f"data: {json.dumps({'id': name, 'choices': [choice]})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def other(request: Request) -> JSONResponse:
        return JSONResponse({"bytes": len(await request.body())})

    layers: list[Any] = [Middleware(Guard), *([Middleware(Capture)] if is_captured else [])]
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/{path:path}", other, methods=["GET", "POST"]),
    ]
    return Starlette(routes=routes, middleware=layers)


if __name__ == "__main__":
    port, seconds, captured = sys.argv[1:]
    served = app(float(seconds), captured == "1")
    uvicorn.run(served, port=int(port), log_level="error", loop="uvloop", **LIMITED)
