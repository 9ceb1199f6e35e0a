"""A server for benchmarks.masking: the guard and, where asked for, capture before an engine that answers after a set time.

python -m benchmarks._masking_server PORT SECONDS 0|1
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from flows.serving.capture import Capture
from flows.serving.guard import Guard


def app(seconds: float, is_captured: bool) -> Starlette:
    numbers = itertools.count()

    async def chat(request: Request) -> JSONResponse:
        await request.json()
        await asyncio.sleep(seconds)
        message = {"role": "assistant", "content": "It is on the shelf."}
        return JSONResponse({"id": f"chatcmpl-{next(numbers)}", "choices": [{"index": 0, "message": message}]})

    layers: list[Any] = [Middleware(Guard), *([Middleware(Capture)] if is_captured else [])]
    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])], middleware=layers)


if __name__ == "__main__":
    port, seconds, captured = sys.argv[1:]
    uvicorn.run(app(float(seconds), captured == "1"), port=int(port), log_level="error", loop="uvloop")
