"""Connections to MCP servers: processes or addresses, which episode has which, and results as text.

    python -m environments._mcp tasks_data/notes          # asks the task's server for its tools and writes tools.json

All connections of a process live on the event loop of environments/_waiting.py, each in a task of its own, because the SDK
wants a connection closed by the task that opened it. A server that is started by a command leads a process group of its own,
which ends with the connection, and the kernel kills it when this process dies. The settings: environments/_mcp_settings.py.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import functools
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import weakref
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TextIO

from environments._mcp_settings import TOOLS, ServerSettings, read_settings
from environments._tools import unwritable
from environments._waiting import TookTooLong, loop, run
from environments.base import TaskProblem, error

START_SECONDS = 30.0  # until a server has to be ready
ALIVE_SECONDS = 2.0  # in which it has to list its tools after a call that took too long
CALLABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")  # names of tools that models can call
LONGEST = 20_000  # characters of an observation
# Becomes the server after asking the kernel to kill it when its parent dies: prctl(PR_SET_PDEATHSIG, SIGKILL).
STARTER = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
STOPPED = "the tool server stopped, and what it had stored is lost; the next call starts it again"


class Server:
    """A connection that opens at the first call, and again at the first call after it was lost."""

    def __init__(self, settings: ServerSettings, folder: Path, names: dict[str, str] | None = None) -> None:
        self.settings, self.folder = settings, folder
        self.names = names or {}  # the server's own names of tools, by those that are shown
        self.needs_reset = False
        self._session: Any = None
        self._closing = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def tools(self) -> list[dict[str, Any]]:
        """The server's tools in the OpenAI form, sorted by name, with their schemas as they come. Names that models cannot
        call are changed (`shown_names`). The tool `reset`, and those that the settings leave out, are none of them.
        TaskProblem where the server cannot be reached or has no tools."""
        listed: list[Any] = []
        try:
            session = await self.opened()
            from mcp.types import PaginatedRequestParams

            cursor: str | None = None
            while cursor is not None or not listed:
                page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
                listed += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        except TaskProblem:
            raise
        except Exception as problem:
            raise TaskProblem(f"the MCP server {self.settings.name} lists no tools: {_plain(problem)}") from None
        has, wanted = {str(tool.name) for tool in listed}, {*self.settings.include, *self.settings.exclude}
        if missing := sorted(wanted - has):
            raise TaskProblem(
                f"include and exclude of server.yaml name the tool {missing[0]!r}, and the MCP server "
                f"{self.settings.name} has {', '.join(sorted(has)[:20])}"
            )
        left_out = {*self.settings.exclude, self.settings.reset}
        if self.settings.include:
            left_out |= has - {*self.settings.include}
        shown = sorted((tool for tool in listed if tool.name not in left_out), key=lambda tool: str(tool.name))
        if not shown:
            raise TaskProblem(f"the MCP server {self.settings.name} has no tools that an agent could call")
        names = shown_names([str(tool.name) for tool in shown])
        self.names = {name: own for own, name in names.items()}
        return [
            {
                "type": "function",
                "function": {
                    "name": names[str(tool.name)],
                    "description": tool.description or "",
                    "parameters": tool.input_schema or {"type": "object", "properties": {}},
                },
            }
            for tool in shown
        ]

    async def call(self, name: str, arguments: dict[str, Any], seconds: float | None) -> str:
        """The observation of a call. Whatever fails is an error in words: a server that does not start or ends, a refusal.

        TookTooLong after `seconds`. A server that does not list its tools afterwards, either, is ended, and started again by
        the next call.
        """
        try:
            session = await self.opened()
            if self.needs_reset and self.settings.reset:
                await asyncio.wait_for(session.call_tool(self.settings.reset, {}), START_SECONDS)
            self.needs_reset = False
            own = self.names.get(name, name)
            return observation(await asyncio.wait_for(session.call_tool(own, arguments), seconds))
        except TaskProblem as problem:
            return error(str(problem))
        except TimeoutError:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(session.list_tools(), ALIVE_SECONDS)
                raise TookTooLong from None
            await self.close()
            raise TookTooLong from None
        except Exception as problem:
            if _is_lost(problem):
                await self.close()
                return error(STOPPED)
            return error(f"the tool server refused the call: {_plain(problem)}")

    async def close(self) -> None:
        """End the connection, and with it the process."""
        keeper, self._keeper, self._session = self._keeper, None, None
        self._closing.set()
        if keeper is not None:
            with contextlib.suppress(Exception):
                await keeper

    async def opened(self) -> Any:
        """The open session. TaskProblem with the reason, and the server's last words, where it does not open."""
        async with self._opening:
            if self._session is None:
                ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                self._closing = asyncio.Event()
                async with _starting():
                    self._keeper = asyncio.create_task(self._keep(ready, self._closing))
                    try:
                        self._session = await asyncio.wait_for(ready, START_SECONDS)
                    except TimeoutError:
                        self._keeper.cancel()
                        raise TaskProblem(
                            f"the MCP server {self.settings.name} was not ready after {START_SECONDS:g} seconds"
                        ) from None
            return self._session

    async def _keep(self, ready: asyncio.Future[Any], closing: asyncio.Event) -> None:
        """Open the connection, hold it until `closing`, and close it."""
        from mcp import Client

        work = Path(tempfile.mkdtemp(prefix="mcp-"))
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
            try:
                if self.settings.fresh and (self.folder / "work").is_dir():
                    await asyncio.to_thread(shutil.copytree, self.folder / "work", work, dirs_exist_ok=True)
                async with contextlib.AsyncExitStack() as stack:
                    transport = await self._transport(stack, work, words)
                    client = await stack.enter_async_context(Client(transport, cache=None))
                    ready.set_result(client.session)
                    await closing.wait()
            except Exception as problem:  # of a connection that is open: its calls notice, and say so
                if not ready.done():
                    words.seek(0)
                    reason = _plain(problem)
                    last = " ".join(words.read().split())[-300:]
                    ready.set_exception(
                        TaskProblem(
                            f"the MCP server {self.settings.name} does not start ({reason})"
                            + (f"; its last words: {_plain(last)}" if last else "")
                        )
                    )
            finally:
                shutil.rmtree(work, ignore_errors=True)  # here: no thread starts any more when the process ends

    async def _transport(self, stack: contextlib.AsyncExitStack, work: Path, words: TextIO) -> Any:
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        if self.settings.url is not None:
            import httpx2

            key = os.environ.get(self.settings.key_env, "") if self.settings.key_env else ""
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            timeout = httpx2.Timeout(START_SECONDS, read=None)  # calls have a limit of their own
            client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
            return streamable_http_client(self.settings.url, http_client=client)
        program, arguments, variables = self.settings.started(self.folder, work)
        if shutil.which(program) is None:
            raise FileNotFoundError(f"there is no program {program}")
        words_of_starter = ["-I", "-S", "-c", STARTER, program, *arguments]
        started = StdioServerParameters(command=sys.executable, args=words_of_starter, env=variables, cwd=work)
        return stdio_client(started, words)


def shown_names(names: list[str]) -> dict[str, str]:
    """By which name an agent sees each tool: its own, or where models cannot call that, with _ for what is no letter, digit,
    _ or -, and at most 64 of them. Where another tool has that name, a number follows."""
    shown: dict[str, str] = {name: name for name in names if CALLABLE.fullmatch(name)}
    for name in names:
        if name not in shown:
            plain, number = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60] or "tool", 1
            while (made := plain if number == 1 else f"{plain}_{number}") in shown.values():
                number += 1
            shown[name] = made
    return shown


@functools.cache
def _starting() -> asyncio.Semaphore:
    """How many servers start at the same time: as many as there are cores."""
    return asyncio.Semaphore(os.cpu_count() or 1)


class Servers:
    """The servers of a task's episodes: one each, one for all, or one each that is reset and handed on."""

    def __init__(self, settings: ServerSettings, folder: Path, tools: list[dict[str, Any]]) -> None:
        self.settings, self.folder, self.expected = settings, folder, tools
        self.names: dict[str, str] = {}  # as Server.names, from the first episode on
        self._lock = threading.Lock()
        self._users = 0
        self._idle: list[Server] = []
        self._taken: set[Server] = set()
        _all.add(self)

    def join(self) -> None:
        """Announce an episode. For the first one, TaskProblem where the server does not start, or has other tools than
        tools.json."""
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            server = Server(self.settings, self.folder)
            try:
                has, self.names = run(server.tools()), server.names
                if has != self.expected:
                    raise TaskProblem(changed(self.expected, has, self.folder))
            except BaseException:
                self._users -= 1
                _end([server])
                raise
            self._idle.append(server)

    def take(self) -> Server:
        """A server for an episode that is about to make its first call."""
        with self._lock:
            if self.settings.is_shared:
                return self._idle[0]
            server = self._idle.pop() if self._idle else Server(self.settings, self.folder, self.names)
            self._taken.add(server)
        server.needs_reset = True
        return server

    def leave(self, server: Server | None) -> None:
        """Take an episode's server back; all end with the last episode."""
        with self._lock:
            ending = [server] if server and self.settings.fresh else []
            self._taken -= {server}
            if server and not (self.settings.fresh or self.settings.is_shared):
                self._idle.append(server)
            self._users -= 1
            if not self._users:
                ending += self._idle
                self._idle = []
        _end(ending)

    def end(self) -> None:
        """End them all, as this process does."""
        _end([*self._idle, *self._taken])


_all: weakref.WeakSet[Servers] = weakref.WeakSet()  # of this process
_ending: set[Future[None]] = set()


@atexit.register
def _end_all() -> None:
    for servers in list(_all):
        servers.end()
    wait(list(_ending), timeout=5)


def _end(servers: list[Server]) -> None:
    for server in servers:
        ended = asyncio.run_coroutine_threadsafe(server.close(), loop())
        _ending.add(ended)
        ended.add_done_callback(_ending.discard)


def changed(expected: list[dict[str, Any]], has: list[dict[str, Any]], folder: Path) -> str:
    """In words: how a server's tools differ from those that were recorded."""
    before, now = ({tool["function"]["name"]: tool for tool in tools} for tools in (expected, has))
    differing = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return (
        f"the MCP server has other tools than {folder / TOOLS} (differing: {', '.join(differing[:5])}); write it again with "
        f"`.venv/bin/python -m environments._mcp {folder}`, after which runs with the tools of before are stale"
    )


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
    text = _plain("\n".join(parts))
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}\n[{len(text) - LONGEST} more characters are left out]"
    if answer.is_error:
        return text if text.startswith("Error: ") else error(text.rstrip(".") or "the tool failed without a word")
    return text or "(no output)"


def _plain(words: object) -> str:
    """A text that files and databases take; of an error, its innermost reason in one line."""
    while isinstance(words, BaseExceptionGroup):
        words = words.exceptions[0]
    if isinstance(words, BaseException):
        words = " ".join(str(words).split())[:500].rstrip(".") or type(words).__name__
    text = str(words).replace("\0", "")
    return text.encode(errors="replace").decode() if unwritable(text) else text


def _is_lost(problem: Exception) -> bool:
    """Whether an error means that the connection is gone, and not that a call was refused or its answer is malformed."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    if isinstance(problem, MCPError):
        return bool(problem.code == CONNECTION_CLOSED)
    return not isinstance(problem, ValueError | RuntimeError)


def record(folder: Path) -> list[str]:
    """Ask a task's server for its tools, write them to tools.json, and return their names. TaskProblem with the reason
    where that is not possible."""
    server = Server(read_settings(folder), folder)
    try:
        tools = run(server.tools())
    finally:
        run(server.close())
    (folder / TOOLS).write_text(json.dumps(tools, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [tool["function"]["name"] for tool in tools]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m environments._mcp", description="Writes the tools of an MCP server."
    )
    parser.add_argument("folder", type=Path, help="of the task's data, with its server.yaml, as in tasks_data/notes")
    folder = parser.parse_args().folder
    try:
        print(f"wrote {folder / TOOLS}: {', '.join(record(folder))}")
    except TaskProblem as problem:
        print(f"{problem}.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
