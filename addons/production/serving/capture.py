"""Keeps what the served model was asked and answered, where people agreed: ASGI middleware behind the guard.

    POST /v1/chat/completions    with consent, and of a conversation that is in the sample: stored with its answer
    POST /feedback               {"response_id": "chatcmpl-…", "score": 0 to 1, "label": …, "comment": …, "correction": …}
    GET /capture                 {"not_stored": counts by reason since the server started, "waiting_seconds": …}

Consent is the header `x-flywheel-consent: yes`, or the second key (.flywheel/consent.key), which is that header for all
of a client's requests; `no` always holds. A conversation is named by the header `x-flywheel-conversation`, by
`metadata.conversation_id` in the body, or else by its first messages; its hash decides whether it is in the sample, so
that it is whole or absent, and the header comes back with its key. Secrets and personal data are masked before anything
is written, in a process beside the server (addons/production/serving/apart.py): what is not masked is never on the disk.

Serving comes first. The record is on the disk before the answer's end is sent, so that an answer that the client has whole
is stored; but an answer waits PATIENCE seconds at most, and not at all while earlier ones have waited for so long. Whatever
happens to disk, folder or process costs records, and no answer. What is not stored is counted by its reason
(addons/production/serving/counts.py): in the answer of /capture, in counts.json of the store and in the log as soon as
they can be written, and on the operator's terminal. Other paths are passed on and counted; answers that failed are not
stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from addons.production.serving.apart import Apart, lost, serve
from addons.production.serving.bodies import CHAT, CONVERSATION_HEADER, answers, asked, named, refusal
from addons.production.serving.counts import LATE, Counts, cause
from addons.production.traces.messages import answer_of, conversation_of, tools_of
from addons.production.traces.openai_jsonl import feedback_of
from addons.production.traces.opinions import moment
from addons.production.traces.records import hashed, key_of, mapping, plain, reason
from addons.production.traces.store import FULL, PRODUCER, Store
from addons.production.traces.tombstones import Forgotten
from steps.core import outside_json
from steps.kit.guard import LARGEST, Call, Middleware, drained, read
from steps.kit.vllm_guard import CONSENT_HEADER

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER, RATE, DAYS, BYTES, CONSENT = (
    f"FLYWHEEL_CAPTURE_{name}" for name in ("FOLDER", "RATE", "DAYS", "BYTES", "CONSENT")
)
MODULE = "addons.production.serving.capture"  # this one, also where it is run
DONE = re.compile(rb"\ndata: ?\[DONE\]\s*\Z")  # a line of its own: an answer may say the same words
KEY = re.compile(rf"{PRODUCER}:[0-9a-f]{{16}}")  # of a conversation, as the header comes back
FEEDBACK, COUNTS = "/feedback", "/capture"
OTHERS = ("/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/invocations")
# In a request's scope: where addons/production/serving/trial.py says which version answers.
ANSWERED = "flywheel.answered"
PATIENCE, FEEDBACK_PATIENCE = 0.5, 20.0  # seconds for which an answer waits for its record, and feedback for its own
START = 10.0  # the same for the first answers of all, while the process beside the server starts
# Characters of feedback's fields.
LONGEST = {"response_id": 200, "label": 200, "comment": 20_000, "correction": 200_000}
LONGEST_FEEDBACK = 2**20  # bytes


class Capture(Middleware):
    """Has requests stored with their answers, and feedback on them, in the process beside the server."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.rate, self.is_assumed = float(os.environ[RATE]), os.environ[CONSENT] == "assumed"
        self.counts, self.apart = Counts(store()), Apart(MODULE)

    async def lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.apart.start()
        await super().lifespan(scope, receive, send)
        await asyncio.to_thread(self.close)

    async def answer(self, call: Call) -> Response | None:
        scope = call.scope
        if scope["type"] == "http" and (scope["method"], scope["path"]) == ("GET", COUNTS):
            return JSONResponse({"not_stored": self.counts.all(), "waiting_seconds": round(self.apart.behind(), 1)})
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        if scope["path"] != FEEDBACK:
            return await self.chat(call)
        body, whole, again = await read(call.receive, LONGEST_FEEDBACK)
        if not whole:
            await drained(again)
        too_long = f"the body is longer than {LONGEST_FEEDBACK} bytes"
        status, answer = await self.answer_of_feedback(body) if whole else (413, refused(too_long))
        return JSONResponse(answer, status)

    def close(self) -> None:
        self.apart.close()
        self.counts.close()

    async def chat(self, call: Call) -> Response | None:
        """Have a request stored with its answer where it may be. What refuses it, if it is no JSON."""
        scope, headers = call.scope, Headers(scope=call.scope)
        if scope["path"] != CHAT or not self.consents(headers):
            path = scope["path"] if scope["path"] in OTHERS else "another path"
            self.counts.add("no consent" if scope["path"] == CHAT else f"not captured: {path}")
            return None
        body, whole, call.receive = await read(call.receive)
        try:
            request = asked(body) if whole else None
        except ValueError as problem:
            self.counts.add("no JSON, which was refused")
            return refusal(400, str(problem))
        key = self.chosen(headers, request) if request else ""
        if not key:
            self.counts.add("not in the sample" if request else "without messages" if whole else "too long")
            return None
        answered: dict[str, str | None] = {}
        self.apart.start()
        call.scope, call.send = {**scope, ANSWERED: answered}, Answer(self, body, key, answered, call.send)
        return None

    def consents(self, headers: Headers) -> bool:
        header = headers.get(CONSENT_HEADER, "").strip().lower()
        return header in ("yes", "true", "1") or (not header and self.is_assumed)

    def chosen(self, headers: Headers, request: Mapping[str, Any]) -> str:
        """The key of a conversation that is in the sample; empty for another."""
        name = named(headers, request)
        key = name if KEY.fullmatch(name) else key_of(PRODUCER, name)
        return key if int(key[-8:], 16) / 16**8 < self.rate else ""

    async def answer_of_feedback(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """The status and body that answer feedback, which is stored beside the server."""
        future = self.apart.call({"kind": "feedback"}, body)
        await asyncio.wait([asyncio.wrap_future(future)], timeout=FEEDBACK_PATIENCE)
        answer = future.result() if future.done() else {}
        self.noted(answer)
        if "answer" not in answer:
            return 503, refused("it was not stored: send it again")
        return answer["status"], answer["answer"]

    async def pass_on(self, key: str, version: str | None, body: bytes, answer: bytes) -> None:
        """Have a request stored with its answer, beside the server: it is on the disk when this ends, or that takes too
        long, or it is lost, which is counted."""
        behind, patience = self.apart.behind(), PATIENCE if self.apart.has_answered else START
        future = self.apart.call({"kind": "call", "key": key, "version": version}, body, answer)
        future.add_done_callback(lambda done: self.noted(done.result()))
        if behind < patience:
            await asyncio.wait([asyncio.wrap_future(future)], timeout=patience)
        if not future.done():
            self.counts.add(LATE)

    def noted(self, answer: Mapping[str, Any]) -> None:
        """Count what the process beside the server could not store."""
        for why in [answer["lost"]] if "lost" in answer else answer.get("missed", ()):
            self.counts.add(why)


class Keeper:
    """Masks and stores requests with their answers, and feedback on them: the process beside the server."""

    def __init__(self) -> None:
        from addons.production.traces.privacy import Privacy

        self.store, self.privacy = store(), Privacy()
        # Key of the conversation of each stored answer, by its hashed id; read from the store with the first feedback.
        self.answers: dict[str, str] | None = None
        self.missed: list[str] = []  # why something of the present call was not stored

    def keep(
        self, key: str, request: Mapping[str, Any], answers: list[dict[str, Any]], version: str | None = None
    ) -> None:
        """Store a request with its answers. What cannot be stored is named in `missed`."""
        try:
            for number, answer in enumerate(answers):
                record = self.record(key, request, answer, number) | {"version": version}
                if not self.store.append(record):
                    self.missed.append(FULL)
                elif self.answers is not None:
                    self.answers.setdefault(record["response"], key)
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            self.missed.append(cause(reason(problem)))
        except OSError as problem:
            self.missed.append(lost(problem))

    def record(self, key: str, request: Mapping[str, Any], answer: Mapping[str, Any], number: int) -> dict[str, Any]:
        """A call as the store has it, masked. ValueError where it holds what cannot be kept, such as an image."""
        messages = conversation_of(request["messages"])
        [spoken] = answer_of(answer["message"])
        name = str(answer["id"]) + (f"#{number}" if number else "")
        private = self.privacy
        return {
            "kind": "call",
            "response": hashed(name),
            "key": key,
            "time": moment(datetime.now(UTC)),
            "consent": True,
            "messages": [private.message(message) for message in messages],
            "answer": private.message(spoken),
            "tools": [private.tool(tool) for tool in tools_of(request.get("tools"))],
            "metadata": private.value(plain(mapping(request.get("metadata")))),
        }

    def take(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Store feedback. The answer's status and body. What costs nothing comes first: lengths, forms, and the id."""
        try:
            fields = outside_json.read(body)
            name = fields.get("response_id") if isinstance(fields, dict) else None
            if not isinstance(name, str) or not name:
                raise ValueError("the body must be an object with response_id, the id of the answer that it is about")
            unknown = sorted(fields.keys() - {"score", *LONGEST})
            if unknown:
                raise ValueError(f"there is no field {unknown[0][:40]}: give score, label, comment or correction")
            for field, most in LONGEST.items():
                if len(value if isinstance(value := fields.get(field), str) else json.dumps(value)) > most:
                    raise ValueError(f"{field} is longer than {most} characters")
            feedback = feedback_of(fields, moment(datetime.now(UTC)))
            if feedback.score is None and not (feedback.comment or feedback.correction or feedback.label):
                raise ValueError("it says nothing: give score, label, comment or correction")
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            return 400, refused(reason(problem))
        if self.answers is None:
            self.answers = self.store.keys()
        key = self.answers.get(feedback.response)
        if key is None:
            return 404, refused("no answer with this id was stored: it had no consent, or was not in the sample")
        feedback = self.privacy.feedback(feedback)
        try:
            is_stored = self.store.append({"kind": "feedback", "key": key, **feedback.model_dump(mode="json")})
        except Forgotten:
            return 404, refused("no answer with this id is stored: its conversation was forgotten")
        if not is_stored:
            self.missed.append(FULL)
            return 507, refused("the store is full: its operator can raise --capture-mb or shorten --capture-days")
        return 201, {"stored": True, "conversation": key}

    def answer(self, head: Mapping[str, Any], bodies: list[bytes]) -> dict[str, Any]:
        """What answers a call of the server."""
        self.missed, made = [], {}
        if head["kind"] == "feedback":
            status, content = self.take(bodies[0])
            made = {"status": status, "answer": content}
        elif request := asked(bodies[0]):
            if given := answers(bodies[1]):
                self.keep(head["key"], request, given, head["version"])
            else:
                self.missed.append("an answer that was cut off")
        return made | {"missed": self.missed}


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
                message.setdefault("headers", [])
                MutableHeaders(raw=message["headers"])[CONVERSATION_HEADER] = self.key
        elif message["type"] == "http.response.body" and self.status == 200 and not self.is_kept:
            body = message.get("body", b"")
            self.size += len(body)
            self.tail = (self.tail + body[-64:])[-64:]
            if self.size <= LARGEST:
                self.body += body
            if not message.get("more_body") or DONE.search(self.tail):
                self.is_kept = True
                if self.size > LARGEST:
                    self.capture.counts.add("too long")
                else:
                    await self.capture.pass_on(self.key, self.answered.get("version"), self.asked, bytes(self.body))
        await self.send(message)


def store() -> Store:
    """The store that the variables describe."""
    return Store(Path(os.environ[FOLDER]), int(os.environ[BYTES]), float(os.environ[DAYS]))


def is_usual(why: str) -> bool:
    """Whether a count is of requests that were not to be stored."""
    return why in ("no consent", "not in the sample") or why.startswith("not captured: ")


def refused(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "refused"}}


def main() -> None:
    """The process beside the server."""
    keeper = Keeper()
    serve(keeper.answer, keeper.store.together)


if __name__ == "__main__":
    main()
