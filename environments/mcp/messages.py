"""What is said to an MCP server that is a program, and how its results read: messages as the SDK takes them, and texts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from environments.base import error
from environments.kit.child import Child
from environments.kit.tools import unwritable

LONGEST = 20_000  # characters of an observation


@contextlib.asynccontextmanager
async def spoken(child: Child) -> AsyncIterator[Any]:
    """The SDK's streams of messages to and from a program. An answer to no request that waits is passed over; one that is
    malformed is an error."""
    from mcp.shared._context_streams import create_context_streams
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    arriving, arrived = create_context_streams[SessionMessage | Exception](0)
    leaving, left = create_context_streams[SessionMessage](0)
    waiting: set[str] = set()

    async def read() -> None:
        async with arriving:
            while (message := await child.read()) is not None:
                number = str(message.get("id"))
                if "method" not in message:
                    if number not in waiting:
                        child.passed_over += 1
                        continue
                    waiting.remove(number)
                    child.took()
                try:
                    read = jsonrpc_message_adapter.validate_python(message, by_name=False)
                except ValueError:
                    if "method" in message:
                        child.passed_over += 1
                        continue
                    problem = {"code": -32603, "message": "its answer is malformed"}
                    malformed = {"jsonrpc": "2.0", "id": message["id"], "error": problem}
                    read = jsonrpc_message_adapter.validate_python(malformed, by_name=False)
                await arriving.send(SessionMessage(read))

    async def write() -> None:
        async for sent in left:
            message = sent.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
            if "method" in message and "id" in message:
                waiting.add(str(message["id"]))
            await child.send(message)

    tasks = [asyncio.create_task(work) for work in (read(), write())]
    try:
        yield arrived, leaving
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (arrived, leaving, arriving, left):
            stream.close()


def observation(answer: Any) -> str:
    """The text of a result. What is no text is named, and long texts are cut."""
    parts = []
    for block in answer.content:
        resource = getattr(block, "resource", None)
        if block.type == "text":
            parts.append(block.text)
        elif (text := getattr(resource, "text", None)) is not None:
            parts.append(text)
        elif block.type == "resource_link":
            parts.append(f"[a link to {block.uri}]")
        else:
            kind = getattr(resource or block, "mime_type", None) or "of unknown type"
            parts.append(f"[{block.type} ({kind}), which cannot be shown]")
    if not parts and answer.structured_content is not None:
        parts.append(json.dumps(answer.structured_content, ensure_ascii=False))
    text = plain("\n".join(parts))
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}\n[{len(text) - LONGEST} more characters are left out]"
    if answer.is_error:
        return text if text.startswith("Error: ") else error(text.rstrip(".") or "the tool failed without a word")
    return text or "(no output)"


def plain(words: object) -> str:
    """A text that files and databases take; of an error, its innermost reason in one line."""
    while isinstance(words, BaseExceptionGroup):
        words = words.exceptions[0]
    if isinstance(words, BaseException):
        words = " ".join(str(words).split())[:500].rstrip(".") or type(words).__name__
    text = str(words).replace("\0", "")
    return text.encode(errors="replace").decode() if unwritable(text) else text


def is_lost(problem: Exception) -> bool:
    """Whether an error means that the connection is gone, and not that a call was refused or its answer is malformed."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    if isinstance(problem, MCPError):
        return bool(problem.code == CONNECTION_CLOSED)
    return not isinstance(problem, ValueError | RuntimeError)
