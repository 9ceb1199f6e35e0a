"""Connections to MCP servers: processes or addresses, which episode has which, and results as text.

    python -m environments.mcp.server tasks_data/notes          # asks the task's server for its tools and writes tools.json

All connections of a process live on the event loop of kit/waiting.py, each in a task of its own, because the SDK wants
a connection closed by the task that opened it. A server that is started by a command ends, with all that it started,
as the connection or this process does. What a server may send is limited in time, bytes and pages: environments/kit/child.py
and http_client.py, and `Server.tools`. The settings: environments/mcp/settings.py.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
import threading
import weakref
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from environments.base import TaskProblem, error
from environments.kit.child import Child
from environments.kit.waiting import TookTooLong, loop, run
from environments.mcp.messages import is_lost, observation, plain, spoken
from environments.mcp.settings import TOOLS, ServerSettings, read_settings, shown_names, variable

START_SECONDS = 30.0  # until a server has to be ready
LIST_SECONDS = 10.0  # in which it has to have listed all of its tools
MOST_PAGES, MOST_TOOLS, MOST_BYTES = 100, 1_000, 2**22  # of that list; bytes as JSON
END_SECONDS = 2.0  # between the end of its input and its own
ALIVE_SECONDS = 2.0  # in which it has to list its tools after a call that took too long
STOPPED = "the tool server stopped, and what it had stored is lost; the next call starts it again"


class Server:
    """A connection that opens at the first call, and again at the first call after it was lost."""

    def __init__(self, settings: ServerSettings, folder: Path, names: dict[str, str] | None = None) -> None:
        self.settings, self.folder = settings, folder
        self.names = names or {}  # the server's own names of tools, by those that are shown
        self.needs_reset = False
        self._child: Child | None = None  # where it is a program
        self._session: Any = None
        self._closing = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def tools(self) -> list[dict[str, Any]]:
        """The server's tools in the OpenAI form, sorted by name, with their schemas as they come. Names that models cannot
        call are changed (`shown_names`). The tool `reset`, and those that the settings leave out, are none of them.
        TaskProblem where the server cannot be reached or has no tools."""
        try:
            session = await self.opened()
            async with asyncio.timeout(LIST_SECONDS):
                listed = await self._listed(session)
        except TaskProblem:
            raise
        except Exception as problem:
            late = f"it had not listed them after {LIST_SECONDS:g} seconds"
            why = late if isinstance(problem, TimeoutError) else self._why(problem)
            await self.close()
            raise TaskProblem(f"the MCP server {self.settings.name} lists no tools: {why}") from None
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
        tools = [
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
        try:
            size = len(json.dumps(tools, ensure_ascii=False).encode())
        except (ValueError, RecursionError):
            raise TaskProblem(f"the tools of the MCP server {self.settings.name} cannot be written as JSON") from None
        if size > MOST_BYTES:
            raise TaskProblem(
                f"the tools of the MCP server {self.settings.name} have {size:,} bytes of JSON, and {MOST_BYTES:,} are the "
                "most: name those that the agent needs under include, in server.yaml"
            )
        return tools

    async def _listed(self, session: Any) -> list[Any]:
        """All pages of the server's list. TaskProblem where it has no end."""
        from mcp.types import PaginatedRequestParams

        listed: list[Any] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None and len(listed) <= MOST_TOOLS:
                return listed
            if len(listed) > MOST_TOOLS:
                break
        await self.close()
        raise TaskProblem(
            f"the MCP server {self.settings.name} lists more than {MOST_PAGES} pages or {MOST_TOOLS:,} tools, which no "
            "agent can use: have it offer fewer, or take another server"
        )

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
                await asyncio.wait_for(session.list_tools(), ALIVE_SECONDS)  # pyrefly: ignore[unbound-name]  # suppressed, too
                raise TookTooLong from None
            await self.close()
            raise TookTooLong from None
        except Exception as problem:
            if is_lost(problem):
                await self.close()
                return error(STOPPED)
            return error(f"the tool server refused the call: {plain(problem)}")

    async def close(self) -> None:
        """End the connection, and with it the process."""
        keeper, self._keeper, self._session = self._keeper, None, None
        self._closing.set()
        if keeper is not None:
            await asyncio.wait([keeper], timeout=2 * START_SECONDS)

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
        try:
            if self.settings.fresh and (self.folder / "work").is_dir():
                await asyncio.to_thread(shutil.copytree, self.folder / "work", work, dirs_exist_ok=True)
            async with contextlib.AsyncExitStack() as stack:
                transport = await self._transport(stack, work)
                client = await stack.enter_async_context(Client(transport, cache=None))
                ready.set_result(client.session)
                await closing.wait()
        except Exception as problem:  # of a connection that is open: its calls notice, and say so
            if not ready.done():
                last = " ".join(self._child.words.split())[-300:] if self._child else ""
                ready.set_exception(
                    TaskProblem(
                        f"the MCP server {self.settings.name} does not start ({self._why(problem)})"
                        + (f"; its last words: {plain(last)}" if last else "")
                    )
                )
        finally:
            shutil.rmtree(work, ignore_errors=True)  # here: no thread starts any more when the process ends

    async def _transport(self, stack: contextlib.AsyncExitStack, work: Path) -> Any:
        from mcp.client.stdio import get_default_environment
        from mcp.client.streamable_http import streamable_http_client

        if self.settings.url is not None:
            from environments.kit.http_client import limited

            key = variable(self.settings.key_env) if self.settings.key_env else ""
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            client = await stack.enter_async_context(limited(self.settings.url, headers, START_SECONDS))
            return streamable_http_client(self.settings.url, http_client=client)
        program, arguments, variables = self.settings.started(self.folder, work)
        if shutil.which(program) is None:
            raise FileNotFoundError(f"there is no program {program}")
        self._child = await Child.start(
            [program, *arguments], "it", variables=get_default_environment() | variables, cwd=work
        )
        stack.push_async_callback(self._child.end, END_SECONDS)
        return spoken(self._child)

    def _why(self, problem: BaseException) -> str:
        """Why there is no answer: what the connection ended for, if that is known."""
        return (self._child.problem if self._child else "") or plain(problem)


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
        f"`.venv/bin/python -m environments.mcp.server {folder}`, after which runs with the tools of before are stale"
    )


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
        prog="python -m environments.mcp.server", description="Writes the tools of an MCP server."
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
