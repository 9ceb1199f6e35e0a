"""A small MCP server for tests: notes in memory, and tools that fail in every way that a task has to bear.

python tests/support/mcp_server.py [--none | --broken]        # stdin and stdout, without the SDK: starts at once
python tests/support/mcp_server.py --sdk                      # the same tools by the SDK's own server
python tests/support/mcp_server.py --sdk --http PORT
"""

from __future__ import annotations

import argparse
import base64
import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()  # the beginning of one
TYPES = {"str": "string", "int": "integer", "float": "number"}
notes: list[str] = []


def write_note(text: str) -> str:
    """Keep a note."""
    notes.append(text)
    return f"There are {len(notes)} notes."


def read_notes(limit: int = 10) -> str:
    """Read the notes."""
    return " / ".join(notes[:limit]) or "There are no notes."


def fail() -> str:
    """Raise an error."""
    raise ValueError("no luck")


def die() -> str:
    """End the server."""
    os._exit(3)


def hang(seconds: float = 30) -> str:
    """Answer nobody for a while."""
    time.sleep(seconds)
    return "late"


def draw() -> list[dict[str, str]]:
    """Give a picture and a word."""
    return [{"type": "image", "data": PICTURE, "mimeType": "image/png"}, {"type": "text", "text": "a pixel"}]


def tell(name: str) -> str:
    """Read a variable of the server's environment, or its folder (cwd) or process (pid)."""
    return {"cwd": str(Path.cwd()), "pid": str(os.getpid())}.get(name, os.environ.get(name, "unset"))


def start_anew() -> str:
    """Forget all notes."""
    notes.clear()
    return "empty"


TOOLS: dict[str, Callable[..., Any]] = {
    tool.__name__: tool for tool in (write_note, read_notes, fail, die, hang, draw, tell, start_anew)
}


ODD: dict[str, Callable[..., Any]] = {
    "notes.write": write_note,
    "notes/read": read_notes,
    "notes_read": fail,
}  # names that models cannot call


def listed(name: str, tool: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(tool).parameters.values()
    schema = {
        "type": "object",
        "properties": {parameter.name: {"type": TYPES[str(parameter.annotation)]} for parameter in parameters},
        "required": [parameter.name for parameter in parameters if parameter.default is parameter.empty],
    }
    return {"name": name, "description": tool.__doc__, "inputSchema": schema}


def answer(method: str, params: dict[str, Any], tools: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    if method == "initialize":
        server = {"name": "notes", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [listed(name, tool) for name, tool in tools.items()]}
    if method != "tools/call":
        raise LookupError(method)
    try:
        result = tools[params["name"]](**params.get("arguments", {}))
    except Exception as problem:
        return {"content": [{"type": "text", "text": str(problem)}], "isError": True}
    return {"content": result if isinstance(result, list) else [{"type": "text", "text": result}]}


def serve(tools: dict[str, Callable[..., Any]]) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        try:
            reply["result"] = answer(asked["method"], asked.get("params", {}), tools)
        except LookupError:
            reply["error"] = {"code": -32601, "message": "no such method"}
        print(json.dumps(reply), flush=True)


def serve_by_sdk(port: int | None) -> None:
    from mcp.server.mcpserver import MCPServer

    server: MCPServer[Any] = MCPServer("notes")
    for tool in TOOLS.values():
        if tool is not draw:
            server.add_tool(tool)
    if port is None:
        server.run()
    else:
        server.run("streamable-http", port=port)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--none", action="store_true", help="have no tools")
    parser.add_argument("--odd", action="store_true", help="have tools with dots and slashes in their names")
    parser.add_argument("--broken", action="store_true", help="end at once with words")
    parser.add_argument("--sdk", action="store_true")
    parser.add_argument("--http", type=int, metavar="PORT")
    options = parser.parse_args()
    if options.broken:
        sys.exit("there is no database")
    notes.extend(path.read_text() for path in sorted(Path.cwd().glob("*.txt")))
    if options.sdk:
        serve_by_sdk(options.http)
    else:
        serve({} if options.none else ODD if options.odd else TOOLS)


if __name__ == "__main__":
    main()
