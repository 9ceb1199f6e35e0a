"""The gateway's HTTP: routes, keys, and who waits for what.

Every request must name this server as its host, and no page of another site is answered (steps/kit/guard.py). Clients of
episodes come with the key of their execution (`Authorization: Bearer` or `x-api-key`), clients that run
episodes and readers of /status with the gateway's key. An answer is streamed when it is whole and recorded; until then a
comment every few seconds keeps the connection alive. A client that goes away loses nothing: the call goes on, and a retry
finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from addons.agents.gateway import description
from addons.agents.gateway import events as sse
from addons.agents.gateway.answers import DIALECTS
from addons.agents.gateway.batch import Batch
from addons.agents.gateway.calls import Asked, Call, Execution
from addons.agents.gateway.plan import LARGEST
from addons.agents.gateway.replies import MODEL
from addons.agents.gateway.types import TOO_LONG, BadRequest, Dialect, Reply
from steps.core import outside_json
from steps.kit import guard

if TYPE_CHECKING:
    from starlette.types import ASGIApp


HOSTS = "FLYWHEEL_GATEWAY_HOSTS"  # further names of this server, for clients elsewhere
KEEP_ALIVE = 5.0  # seconds
LARGEST_HEAD = 65_536  # bytes of a request's line and headers
Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """The routes, and the batch that is being played."""

    def __init__(self, key: str, hosts: Sequence[str] = ()) -> None:
        """`hosts`: the names by which clients may call it, beside localhost and addresses."""
        self.key, self.hosts = key, {"localhost", *map(str.lower, hosts)}
        self.batch: Batch | None = None
        self.app = Starlette(
            routes=[
                *(Route(f"/episodes/{{episode}}/v1/{name}", self.call(name), methods=["POST"]) for name in DIALECTS),
                Route("/episodes/{episode}/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
                Route("/episodes/{episode}/v1/models", self.models),
                Route("/episodes/{episode}/v1/models/{model:path}", self.models),
                Route("/episodes/{episode}/v1/responses/{response}", self.response),
                Route("/episodes/{episode}", self.health),  # Claude Code asks whether its address answers
                Route("/health", self.health),
                Route("/status", self.status),
                Route("/openapi.json", self.openapi),
                Route("/clients", self.control(Batch.register), methods=["POST"]),
                Route("/clients/{client}", self.control(Batch.leave), methods=["DELETE"]),
                Route("/clients/{client}/leases", self.control(Batch.forget_missing, Batch.lease), methods=["POST"]),
                Route("/clients/{client}/heartbeat", self.control(Batch.heartbeat), methods=["POST"]),
                Route("/clients/{client}/results", self.control(Batch.report), methods=["POST"]),
            ],
            middleware=[Middleware(_Callers, hosts=self.hosts)],
            exception_handlers={HTTPException: _refusal, Exception: _failure},
        )

    # --- Calls of agents

    def execution(self, request: Request) -> tuple[Batch, Execution]:
        """The execution whose key the request has, with its batch. Status 401 for any other, which says nothing of whether
        it exists."""
        batch = self.batch
        execution = batch.executions.get(request.path_params["episode"]) if batch else None
        if batch is None or execution is None or not _has_key(request, execution.key):
            raise HTTPException(401, "this key is not that of a running execution of this episode")
        batch.recall(execution)
        return batch, execution

    def call(self, name: str) -> Handler:
        dialect = DIALECTS[name]

        async def handle(request: Request) -> Response:
            try:
                return await self.answer(request, name, dialect)
            except HTTPException as problem:
                return JSONResponse(dialect.error(BadRequest(problem.detail), problem.status_code), problem.status_code)
            except BadRequest as problem:
                return JSONResponse(dialect.error(problem, 400), 400)

        return handle

    async def answer(self, request: Request, name: str, dialect: Dialect) -> Response:
        batch, execution = self.execution(request)
        retries = request.headers.get("x-stainless-retry-count")
        is_retry = None if not retries else retries != "0"
        try:
            body = await read_body(request, batch.chats.most_body)
            asked = Asked(name, body, request.headers.get("idempotency-key"), is_retry)
            call = await batch.ask(execution, asked, request)
        except BadRequest as problem:
            batch.refuse(execution, problem)
            raise
        headers = {"x-request-id": call.digest}
        if call.request.ignored:
            headers["x-flywheel-ignored"] = ", ".join(call.request.ignored)
        if body.get("stream") is True:
            streamed = self.stream(batch, call, dialect, body)
            return StreamingResponse(streamed, headers=headers, media_type="text/event-stream")
        reply = await asyncio.shield(call.reply)
        if not await request.is_disconnected():
            batch.deliver(call)
        if request in call.waiters:
            call.waiters.remove(request)
        return JSONResponse(dialect.render(reply, body), headers=headers)

    async def stream(self, batch: Batch, call: Call, dialect: Dialect, body: dict[str, Any]) -> AsyncIterator[str]:
        """Server-sent events of an answer."""
        while not (await asyncio.wait([call.reply], timeout=KEEP_ALIVE))[0]:
            yield sse.KEEP_ALIVE
        try:
            reply: Reply = call.reply.result()
        except BadRequest as problem:
            yield sse.error_event(dialect.error(problem, 400))
            return
        for event in dialect.events(reply, body):
            yield event
        batch.deliver(call)

    async def count_tokens(self, request: Request) -> Response:
        """Anthropic's count of a prompt's tokens."""
        batch, execution = self.execution(request)
        try:
            body = {"max_tokens": 1} | await read_body(request, batch.chats.most_body)
            return JSONResponse({"input_tokens": await batch.count(execution, Asked("messages", body))})
        except BadRequest as problem:
            return JSONResponse(DIALECTS["messages"].error(problem, 400), 400)

    async def models(self, request: Request) -> Response:
        """The policy as OpenAI and Anthropic list models, or describe one, whatever its name: any name is answered."""
        self.execution(request)
        name = request.path_params.get("model", MODEL)
        model = {"id": name, "object": "model", "created": 0, "owned_by": "agent-flywheel"}
        model |= {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        listed = {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}
        return JSONResponse(model if "model" in request.path_params else listed)

    async def response(self, request: Request) -> Response:
        """A response of this execution, as it was answered."""
        name = request.path_params["response"]
        for call in self.execution(request)[1].calls:
            if call.asked.dialect == "responses" and call.has_answer and f"resp_{call.reply.result().id}" == name:
                return JSONResponse(DIALECTS["responses"].render(call.reply.result(), call.asked.body))
        raise HTTPException(404, f"{name[:80]!r} is no response of this episode")

    # --- What everybody may know, and what the gateway's key shows

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "playing" if self.batch else "waiting"})

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(description.openapi())

    async def status(self, request: Request) -> Response:
        self.check_key(request)
        return JSONResponse(self.batch.status() if self.batch else {"batch": None})

    def check_key(self, request: Request) -> None:
        if not _has_key(request, self.key):
            raise HTTPException(401, "the gateway's key is needed")

    # --- Clients that run episodes

    def control(self, *actions: Callable[[Batch, str, dict[str, Any]], Any]) -> Handler:
        """A route for clients: with the gateway's key, while a batch is played. The last action says what a client is
        answered; where that is nothing yet, the client waits for it as long as it says."""

        async def handle(request: Request) -> Response:
            self.check_key(request)
            if self.batch is None:
                raise HTTPException(503, "no batch is played")
            body = await read_body(request) if request.method == "POST" else {}
            batch, client = self.batch, request.path_params.get("client", "")
            try:
                until, to_do = time.monotonic() + min(float(body.get("wait", 0)), 30.0), actions
                while True:
                    if client and request.method == "POST" and not batch.leases.knows(client):
                        raise HTTPException(404, "no such client: register (again)")
                    answer = [action(batch, client, body) for action in to_do][-1]
                    to_do = actions[-1:]
                    left = until - time.monotonic()
                    if answer or left <= 0 or self.batch is not batch:
                        return JSONResponse(answer)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(batch.news.wait(), min(left, 1.0))
                    if await request.is_disconnected():
                        return JSONResponse(answer)
            except (KeyError, TypeError, ValueError) as problem:
                reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
                raise HTTPException(400, f"the body does not fit: {reason}") from None
            except LookupError as problem:  # a client of another task, or one that comes too late
                raise HTTPException(409, str(problem)) from None

        return handle


class _Callers(guard.Middleware):
    """Refuses what comes under another server's name, and what pages of other sites ask."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        super().__init__(app)
        self.hosts = hosts

    async def answer(self, call: guard.Call) -> Response | None:
        headers, text = Headers(scope=call.scope), "pages of other sites are not answered"
        status = 403 if call.scope["type"] != "http" else guard.caller_fault(headers, self.hosts, any_address=True)
        if status == 421:
            name = guard.host_name(headers["host"]) if len(headers.getlist("host")) == 1 else ""
            text = f"the gateway is not called {name or 'so'}: give its address, or list the name in {HOSTS}"
        error = {"message": text, "type": "invalid_request_error"}
        return JSONResponse({"error": error}, status) if status else None


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's fast parser, with a limit that it lacks: a caller needs no key to send a head. It answers 400 and closes the
    connection where the line and headers of a request are larger than LARGEST_HEAD."""

    is_in_head = False
    size = 0  # bytes of the head so far: of its headers, or of packets that are of it alone

    def data_received(self, data: bytes) -> None:
        began_before = self.is_in_head
        super().data_received(data)
        if self.is_in_head and began_before and not self.transport.is_closing():
            self.size += len(data)  # of a header that is not whole, too, which the parser keeps
            if self.size > LARGEST_HEAD:
                self.send_400_response(f"The headers are larger than {LARGEST_HEAD} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.is_in_head, self.size = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.size += len(name) + len(value)
        if self.size > 2 * LARGEST_HEAD:  # many in one packet; the parser makes status 400 of the error
            raise ValueError("the headers are too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> Any:
        self.is_in_head = False
        return super().on_headers_complete()


async def read_body(request: Request, most: int = LARGEST) -> dict[str, Any]:
    """The JSON object of a request. Status 400 for anything else, 413 where it is too large. BadRequest where it has more
    than `most` bytes, so that no prompt in it fits into the context; the rest is read, so that the client hears of it."""
    body, is_whole, again = await guard.read(request.receive, min(most, LARGEST))
    if not is_whole:
        if (size := await guard.drained(again, LARGEST)) is None:
            raise HTTPException(400, "the client went away")
        if size > LARGEST:
            raise HTTPException(413, f"the body is larger than {LARGEST} bytes")
        reason = f"no prompt that fits into policy.context needs a request of {size} bytes: at most {most}"
        raise BadRequest(reason, "messages", TOO_LONG)
    try:
        return outside_json.read_object(body)
    except ValueError as problem:
        raise HTTPException(400, str(problem)) from None


def _has_key(request: Request, key: str) -> bool:
    is_bearer = request.headers.get("authorization", "").partition(" ")[0].lower() == "bearer"
    return guard.same(guard.bearer(request.headers) if is_bearer else request.headers.get("x-api-key", ""), key)


async def _refusal(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return JSONResponse({"error": {"message": problem.detail, "type": "invalid_request_error"}}, problem.status_code)


async def _failure(request: Request, problem: Exception) -> Response:
    return JSONResponse({"error": {"message": "the gateway failed; see its log", "type": "server_error"}}, 500)
