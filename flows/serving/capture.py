"""Keeps what the served model was asked and answered, where people agreed: ASGI middleware behind the guard.

    POST /v1/chat/completions    with consent, and of a conversation that is in the sample: stored with its answer
    POST /feedback               {"response_id": "chatcmpl-…", "score": 0 to 1, "label": …, "comment": …, "correction": …}

Consent is the header `x-flywheel-consent: yes`, or the second key (.flywheel/consent.key), which is that header for all
of a client's requests; `no` always holds. A conversation is named by the header `x-flywheel-conversation`, by
`metadata.conversation_id` in the body, or else by its first messages; its hash decides whether it is in the sample, so
that it is whole or absent, and the header comes back with its key. Secrets and personal data are masked before anything
is written, in a process beside the server (flows/serving/apart.py): what is not masked is never on the disk. The record is
on the disk before the answer's end is sent: an answer that the client has whole is stored, and one whose record is lost was
never whole. What is not stored is counted by its reason in counts.json of the store, and the first of each is said in the
log. Other paths than the two are passed on and counted; answers that failed are not stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from flows.serving.apart import Apart, serve
from flows.serving.guard import CONSENT_HEADER
from steps.traces.captured import PRODUCER
from steps.traces.messages import answer_of, conversation_of, tools_of
from steps.traces.openai_jsonl import feedback_of, plain, reason
from steps.traces.privacy import Privacy
from steps.traces.records import content_hash, hashed, key_of
from steps.traces.store import FULL, Store
from steps.traces.tombstones import Forgotten

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER, RATE, DAYS, BYTES, CONSENT = (
    f"FLYWHEEL_CAPTURE_{name}" for name in ("FOLDER", "RATE", "DAYS", "BYTES", "CONSENT")
)
MODULE = "flows.serving.capture"  # this one, also where it is run
CONVERSATION_HEADER = "x-flywheel-conversation"
DONE = re.compile(rb"\ndata: ?\[DONE\]\s*\Z")  # a line of its own: an answer may say the same words
KEY = re.compile(rf"{PRODUCER}:[0-9a-f]{{16}}")  # of a conversation, as the header comes back
CHAT, FEEDBACK = "/v1/chat/completions", "/feedback"
ANSWERED = "flywheel.answered"  # in a request's scope: where flows/serving/trial.py says which version answers
LARGEST = 16 * 2**20  # bytes of a request, or of an answer, that is stored


class Capture:
    """Stores requests with their answers, and feedback on them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        days, size = float(os.environ[DAYS]), int(os.environ[BYTES])
        self.store = Store(Path(os.environ[FOLDER]), size, days)
        self.rate, self.is_assumed = float(os.environ[RATE]), os.environ[CONSENT] == "assumed"
        self.privacy = Privacy()
        self.apart = Apart(MODULE)
        self.answers: dict[str, str] | None = None  # key of the conversation of each stored answer, by its hashed id
        self.lock = threading.Lock()  # of `answers`, which is read from the store with the first feedback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            await asyncio.to_thread(self.apart.close)
        elif scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
        elif scope["path"] == FEEDBACK:
            body, whole, _ = await read(receive)
            status, answer = await self.answer_of_feedback(body) if whole else (413, refused("the body is too long"))
            await JSONResponse(answer, status)(scope, receive, send)
        else:
            await self.chat(scope, receive, send)

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and store it with its answer where it may be."""
        headers = Headers(scope=scope)
        if scope["path"] != CHAT or not self.consents(headers):
            why = "no consent" if scope["path"] == CHAT else f"not captured: {scope['path'][:60]}"
            await asyncio.to_thread(self.missed, why)
            await self.app(scope, receive, send)
            return
        body, whole, again = await read(receive)
        request = asked(body) if whole else None
        name = named(headers, request) if request else ""
        key = name if KEY.fullmatch(name) else key_of(PRODUCER, name)
        if request is None or int(key[-8:], 16) / 16**8 >= self.rate:
            why = "not in the sample" if request else "unreadable" if whole else "too long"
            await asyncio.to_thread(self.missed, why)
            await self.app(scope, again, send)
            return
        answered: dict[str, str | None] = {}
        self.apart.start()
        await self.app({**scope, ANSWERED: answered}, again, Answer(self, body, key, answered, send))

    def consents(self, headers: Headers) -> bool:
        header = headers.get(CONSENT_HEADER, "").strip().lower()
        return header in ("yes", "true", "1") or (not header and self.is_assumed)

    async def answer_of_feedback(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """The status and body that answer feedback, which is stored beside the server."""
        try:
            answer = await self.apart.call({"kind": "feedback"}, body)
        except RuntimeError:
            return 503, refused("it was not stored: send it again")
        return answer["status"], answer["answer"]

    async def pass_on(self, key: str, version: str | None, body: bytes, answer: bytes) -> None:
        """Have a request stored with its answer, beside the server; it is on the disk when this ends."""
        try:
            await self.apart.call({"kind": "call", "key": key, "version": version}, body, answer)
        except RuntimeError as problem:
            await asyncio.to_thread(self.missed, f"not stored: {problem}")

    def keep(
        self, key: str, request: Mapping[str, Any], answers: list[dict[str, Any]], version: str | None = None
    ) -> None:
        """Store a request with its answers. What cannot be stored is counted, and the client's answer goes on."""
        try:
            for number, answer in enumerate(answers):
                record = self.record(key, request, answer, number) | {"version": version}
                if not self.store.append(record):
                    self.missed(FULL)
                    continue
                with self.lock:
                    if self.answers is not None:
                        self.answers[record["response"]] = key
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as problem:
            self.missed(f"not stored: {reason(problem)[:80]}")

    def record(self, key: str, request: Mapping[str, Any], answer: Mapping[str, Any], number: int) -> dict[str, Any]:
        """A call as the store has it, masked. ValueError where it holds what cannot be kept, such as an image."""
        metadata = request.get("metadata")
        messages = conversation_of(request["messages"])
        [spoken] = answer_of(answer["message"])
        name = str(answer["id"]) + (f"#{number}" if number else "")
        private = self.privacy
        return {
            "kind": "call",
            "response": hashed(name),
            "key": key,
            "time": now(),
            "consent": True,
            "messages": [private.message(message) for message in messages],
            "answer": private.message(spoken),
            "tools": [private.tool(tool) for tool in tools_of(request.get("tools"))],
            "metadata": private.value(plain(metadata) if isinstance(metadata, Mapping) else {}),
        }

    def take(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Store feedback. The answer's status and body."""
        try:
            fields = json.loads(body)
            if not isinstance(fields, dict) or not fields.get("response_id"):
                raise ValueError("the body must be an object with response_id, the id of the answer that it is about")
            unknown = sorted(fields.keys() - {"response_id", "score", "label", "comment", "correction"})
            if unknown:
                raise ValueError(f"there is no field {unknown[0][:40]}: give score, label, comment or correction")
            feedback = self.privacy.feedback(feedback_of(fields, now()))
            if feedback.score is None and not (feedback.comment or feedback.correction or feedback.label):
                raise ValueError("it says nothing: give score, label, comment or correction")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            return 400, refused(reason(problem))
        with self.lock:
            if self.answers is None:
                self.answers = self.store.keys()
            key = self.answers.get(feedback.response)
        if key is None:
            return 404, refused("no answer with this id was stored: it had no consent, or was not in the sample")
        try:
            is_stored = self.store.append({"kind": "feedback", "key": key, **feedback.model_dump(mode="json")})
        except Forgotten:
            return 404, refused("no answer with this id is stored: its conversation was forgotten")
        if not is_stored:
            self.missed(FULL)
            return 507, refused("the store is full: its operator can raise --capture-mb or shorten --capture-days")
        return 201, {"stored": True, "conversation": key}

    def missed(self, why: str) -> None:
        """Count what is not stored; the first of each reason is said, and then each tenfold."""
        count = self.store.count(why)
        if str(count).strip("0") == "1":
            print(
                f"capture: {count} not stored: {why} (all counts: {self.store.folder / 'counts.json'})",
                file=sys.stderr,
                flush=True,
            )


class Answer:
    """What sends an answer on to the client, and holds back its end until the record is on the disk."""

    def __init__(self, capture: Capture, asked: bytes, key: str, answered: dict[str, str | None], send: Send) -> None:
        self.capture, self.asked, self.key, self.answered, self.send = capture, asked, key, answered, send
        self.body, self.status, self.size, self.is_kept = bytearray(), 0, 0, False
        self.tail = b""  # the latest bytes, with which a stream may end

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status == 200:
                MutableHeaders(raw=message["headers"])[CONVERSATION_HEADER] = self.key
        elif message["type"] == "http.response.body" and self.status == 200 and not self.is_kept:
            body = message.get("body", b"")
            self.size += len(body)
            self.tail = (self.tail + body[-64:])[-64:]
            if self.size <= LARGEST:
                self.body += body
            if not message.get("more_body") or DONE.search(self.tail):
                self.is_kept = True
                await self.keep()
        await self.send(message)

    async def keep(self) -> None:
        if self.size > LARGEST:
            await asyncio.to_thread(self.capture.missed, "too long")
        else:
            await self.capture.pass_on(self.key, self.answered.get("version"), self.asked, bytes(self.body))


async def read(receive: Receive) -> tuple[bytes, bool, Receive]:
    """(the body, whether it is whole, what gives it to the application again)."""
    messages: list[Message] = []
    size, is_whole = 0, False
    while size <= LARGEST:
        messages.append(await receive())
        size += len(messages[-1].get("body", b""))
        if messages[-1]["type"] == "http.disconnect" or not messages[-1].get("more_body"):
            is_whole = messages[-1]["type"] == "http.request"
            break
    left = iter(list(messages))

    async def again() -> Message:
        return next(left, None) or await receive()

    return b"".join(message.get("body", b"") for message in messages), is_whole, again


def asked(body: bytes) -> dict[str, Any] | None:
    """The request in a body; None where it is none, which the application will say."""
    request = json_object(body)
    return request if isinstance(request.get("messages"), list) else None


def named(headers: Headers, request: Mapping[str, Any]) -> str:
    """What names a conversation: the client, or its messages up to the first of the user."""
    metadata = request.get("metadata")
    inside = metadata.get("conversation_id") if isinstance(metadata, Mapping) else None
    if name := headers.get(CONVERSATION_HEADER) or inside:
        return str(name)
    try:
        messages = conversation_of(request["messages"])
    except RecursionError:
        return "nested too deeply"
    except (ValueError, TypeError, KeyError, AttributeError):
        return json.dumps(request["messages"], sort_keys=True, default=str)
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), len(messages))
    return content_hash(messages[: first + 1])


def answers(body: bytes) -> list[dict[str, Any]]:
    """The answers in a response, {"id", "message"}: of JSON, or joined from a stream's deltas. None of one that is cut
    off."""
    if body.lstrip().startswith(b"{"):
        content = json_object(body)
        choices = content.get("choices") or []
        return [{"id": content.get("id"), "message": choice["message"]} for choice in choices if choice.get("message")]
    name, ended = "", set[int]()
    made: dict[int, dict[str, Any]] = {}
    for line in body.decode("utf-8", "replace").split("\n"):
        chunk = json_object(line.removeprefix("data:").strip().encode()) if line.startswith("data:") else {}
        name = str(chunk.get("id") or name)
        for choice in chunk.get("choices") or ():
            number, delta = int(choice.get("index") or 0), choice.get("delta") or {}
            message = made.setdefault(number, {"role": "assistant", "content": "", "reasoning": "", "calls": {}})
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                entry = message["calls"].setdefault(
                    int(call.get("index") or 0), {"function": {"name": "", "arguments": ""}}
                )
                entry |= {"id": call["id"]} if call.get("id") else {}
                entry["function"]["name"] += function.get("name") or ""
                entry["function"]["arguments"] += function.get("arguments") or ""
            if choice.get("finish_reason"):
                ended.add(number)
    listed = []
    for number in sorted(ended):
        message = made[number]
        calls = [call for _, call in sorted(message.pop("calls").items())]
        listed.append({"id": name, "message": message | ({"tool_calls": calls} if calls else {})})
    return listed


def json_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):  # no JSON, or too deep for it
        return {}
    return content if isinstance(content, dict) else {}


def refused(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "refused"}}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def main() -> None:
    """The process beside the server."""
    capture = Capture(None)  # type: ignore[arg-type]  # nothing is passed on

    def answer(head: dict[str, Any], bodies: list[bytes]) -> dict[str, Any]:
        if head["kind"] == "feedback":
            status, content = capture.take(bodies[0])
            return {"status": status, "answer": content}
        if request := asked(bodies[0]):
            if made := answers(bodies[1]):
                capture.keep(head["key"], request, made, head["version"])
            else:
                capture.missed("an answer that was cut off")
        return {}

    serve(answer, capture.store.together)


if __name__ == "__main__":
    main()
