"""Asks models on OpenAI-compatible servers for chat completions, many at once. Each answer is kept and paid for only once.

    replies = ask_all(endpoint, [Request(messages), ...])  # in the order asked

An answer is written to the ledger (addons/models/replies.py) as soon as it arrives, under a hash of the whole question:
model, messages, tools, schema, temperature, limits and seed. The server's address is not part of the hash, so that the
answers of a run are found again when the server has moved or is gone. Other weights therefore need another model name.

httpx2 loads in 0.1 s and the `openai` package in 0.7 s; the latter's retries and limits would not be used here anyway. The
retries are written out, because the same rules with the package tenacity took 17 lines more. Left out: streaming, and the
newer Responses API, which other servers do not have. How an answer is cleaned before it is kept: addons/models/answers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import hashlib
import json
import os
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, NoReturn, TypeVar

from addons.models import answers
from addons.models.replies import Replies
from addons.models.section import Endpoint
from environments.kit import http_client
from steps.core.errors import UserError
from steps.core.progress import progress

T = TypeVar("T")
SHORTEST, LONGEST = 0.5, 30.0  # seconds before the first retry, and at most before later ones
PATIENCE = 300.0  # seconds; a call fails where the server asks to wait longer
AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}  # statuses after which the call is repeated
FATAL = {  # statuses after which no other call would succeed
    401: "refuses the key; set {key} to a valid one",
    402: "wants to be paid",
    403: "does not allow this; check {key} and the model",
    404: "knows no such path or model; check base_url (it mostly ends in /v1) and model",
}


class CallFailed(Exception):
    """One call was not answered, and why; others may be."""

    def __init__(self, reason: str, charged: bool = False) -> None:
        super().__init__(reason)
        self.charged = charged  # as in _Again


class _Again(Exception):
    """An attempt failed and may be repeated."""

    def __init__(self, reason: str, after: float = 0.0, charged: bool = False) -> None:
        super().__init__(reason)
        self.after = after  # seconds that the server asked to wait
        self.charged = charged  # the server may have worked on it, and may charge for it


@dataclass(frozen=True)
class Request:
    """A question. Different seeds get different answers to the same question; with None, no seed is sent."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]] = ()
    schema: dict[str, Any] | None = None  # JSON schema of the answer
    strict: bool = True  # the server enforces the schema; impossible for schemas with open objects
    seed: int | None = None

    def body(self, endpoint: Endpoint) -> dict[str, Any]:
        """The body of the HTTP request."""
        body: dict[str, Any] = {"model": endpoint.model, "messages": list(self.messages)}
        body[endpoint.max_tokens_field] = endpoint.max_tokens
        if self.tools:
            body["tools"] = list(self.tools)
        if self.schema is not None:
            schema = {"name": "answer", "strict": self.strict, "schema": self.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        body |= {"temperature": endpoint.temperature} if endpoint.temperature is not None else {}
        body |= {"seed": self.seed} if self.seed is not None else {}
        return body | endpoint.extra_body

    def key(self, endpoint: Endpoint) -> str:
        return hashlib.sha256(_canonical(self.body(endpoint))).hexdigest()


@dataclass(frozen=True)
class Reply:
    """An answer; the same whether it comes from the server or from the ledger."""

    key: str
    message: dict[str, Any]  # the assistant's message, cleaned (addons/models/answers.py)
    finish_reason: str
    input_tokens: int  # both are 0 where the server counted none, or said what cannot be true
    output_tokens: int
    cost: float  # at the endpoint's prices; without counts, the most that the call can have cost
    latency_seconds: float

    @property
    def text(self) -> str:
        return answers.text_of(self.message)

    @property
    def stopped(self) -> str:
        """Why the answer may not be a full one, in a few words; empty where the server gave no reason."""
        return answers.stopped(self.message, self.finish_reason)

    def parsed(self, keys: Collection[str] = ()) -> Any:
        """The answer to a request with a schema of these keys. ValueError, with the reason, where it is not JSON."""
        try:
            return answers.parse(self.text, answers.without_doubles, keys, whole=bool(self.stopped))
        except ValueError as problem:
            raise ValueError(f"the answer {problem}{', ' if self.stopped else ''}{self.stopped}") from None


class Client:
    """`async with Client(endpoint) as client: reply = await client.ask(request)`. The endpoint limits calls at once."""

    def __init__(self, endpoint: Endpoint, spent: float | None = None) -> None:
        """With `spent`, max_cost applies to a whole run: its earlier costs count, and so do answers from the ledger."""
        self.endpoint = endpoint
        self.key = os.environ.get(endpoint.api_key_env, "").strip()
        if not (self.key.isascii() and all(letter.isprintable() for letter in self.key)):
            raise UserError(f"the key in {endpoint.api_key_env} holds characters that no HTTP header takes")
        self.asked = 0  # calls answered by the server and not by the ledger
        self.retries, self.seconds = 0, 0.0  # of those calls
        self.spent, self._counts_kept = spent or 0.0, spent is not None
        self.stopped = False  # whether the budget is spent
        self._reserved: list[float] = []  # the most that each attempt under way can cost
        self._slots = asyncio.Semaphore(endpoint.max_connections)
        self._settled = asyncio.Condition()
        self._locks: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> Client:
        self.ledger = Replies()
        connections = self.endpoint.max_connections
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self._http = http_client.Client(self.endpoint.base_url, headers=headers, connections=connections)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        self.ledger.__exit__()

    async def ask(self, request: Request) -> Reply:
        """Ask the ledger, then the server. CallFailed where this call is not answered; UserError where no call would be, or
        the budget is spent."""
        key, body = request.key(self.endpoint), request.body(self.endpoint)
        async with self._locks.setdefault(key, asyncio.Lock()):  # of equal questions at once, the first is asked
            reply = self._kept(key, body)
            if reply is None:
                async with self._slots:
                    row = self.ledger.put(await self._answer(key, body))
                self.asked += 1
                self.retries += row["retries"]
                self.seconds += row["latency_seconds"]
                return self._reply(row, body)
            if self._counts_kept:  # twice where two requests share the answer, in later runs too
                await self._reserve(reply.cost)
                await self._settle(reply.cost, reply.cost)
            return reply

    def _kept(self, key: str, body: dict[str, Any]) -> Reply | None:
        """The ledger's answer; None where there is none. One that cannot be read is removed, so that it is asked again."""
        try:
            row = self.ledger.get(key)
            return None if row is None else self._reply(row, body)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.ledger.forget([key])
            return None

    def _reply(self, row: dict[str, Any], body: dict[str, Any]) -> Reply:
        """A row of the ledger as an answer. It is cleaned once more, because earlier versions stored what a server sent."""
        message = answers.cleaned(dict(row["reply"]["message"]), self.key)
        reason = answers.cleaned(str(row["reply"]["finish_reason"]))
        counts = answers.token_counts(row["input_tokens"], row["output_tokens"])
        cost = self._bound(body) if counts is None else self.endpoint.cost(*counts)
        return Reply(row["key"], message, reason, *(counts or (0, 0)), cost, float(row["latency_seconds"]))

    async def ask_all(self, requests: Iterable[Request], note: str = "answers") -> list[Reply | CallFailed]:
        """Replies in the order asked, with a CallFailed in place of each that was not answered."""
        waiting, finished = list(requests), 0

        async def answer(request: Request) -> Reply | CallFailed:
            nonlocal finished
            try:
                return await self.ask(request)
            except CallFailed as problem:
                return problem
            finally:
                finished += 1
                progress(finished, len(waiting), note)

        return await together(map(answer, waiting))

    async def _answer(self, key: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call until there is an answer, and return the row for the ledger."""
        rng, bound = Random(key), self._bound(body)
        for attempt in range(self.endpoint.max_retries + 1):
            await self._reserve(bound)
            cost = bound  # until the price is clear: an attempt that is given up may be charged
            try:
                row = await self._attempt(body)
                cost = row["cost"] = bound if row["cost"] is None else row["cost"]
                return row | {"key": key, "retries": attempt}
            except _Again as failure:
                problem, cost = failure, bound if failure.charged else 0.0
            except (CallFailed, UserError) as failure:
                cost = bound if isinstance(failure, CallFailed) and failure.charged else 0.0
                raise
            finally:
                await self._settle(bound, cost)
            if problem.after > PATIENCE:
                raise CallFailed(f"{self._who()}: {problem}, and asks to wait {problem.after:.0f} s")
            if attempt < self.endpoint.max_retries:
                back_off = min(LONGEST, SHORTEST * 2**attempt) * rng.uniform(0.5, 1.0)
                await asyncio.sleep(max(back_off, problem.after))
        raise CallFailed(f"{self._who()}: {problem} ({attempt + 1} attempts)")  # pyrefly: ignore[unbound-name]  # one, at least

    async def _attempt(self, body: dict[str, Any]) -> dict[str, Any]:
        """One call; _Again, CallFailed or UserError where it is not answered."""
        limit, started = self.endpoint.timeout_seconds, time.perf_counter()
        most = answers.LARGEST + answers.TOKEN * self.endpoint.max_tokens
        try:
            sent = await self._http.ask("POST", "/chat/completions", body=body, seconds=limit, most=most)
        except http_client.Late:
            raise _Again(f"no answer within {limit:g} s", charged=True) from None
        except http_client.TooMuch as problem:
            raise CallFailed(
                f"{self._who()}: {problem} and was not read to its end; no answer of max_tokens "
                f"{self.endpoint.max_tokens} is that long",
                charged=True,
            ) from None
        except http_client.NoAnswer as problem:
            charged = not isinstance(problem, http_client.Unreachable)
            raise _Again(answers.cleaned(str(problem), self.key), charged=charged) from None
        text = sent.text
        if sent.status != 200:
            self._refused(sent, " ".join(answers.cleaned(text, self.key).split())[:300])
        try:
            answer = answers.cleaned(json.loads(text), self.key)  # some servers quote the request, key included
            choice, usage = answer["choices"][0], answer.get("usage")
            message = {**choice["message"]}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise _Again(f"an answer that is no chat completion: {self._begins(text)}", charged=True) from None
        fields = usage if isinstance(usage, dict) else {}
        counts = answers.token_counts(fields.get("prompt_tokens"), fields.get("completion_tokens"))
        reason, model = (
            str(value or "")[: answers.SHOWN] for value in (choice.get("finish_reason"), answer.get("model"))
        )
        return {
            "model": self.endpoint.model,
            "request": body,
            "reply": {"message": message, "finish_reason": reason, "model": model},
            "input_tokens": counts[0] if counts else 0,
            "output_tokens": counts[1] if counts else 0,
            "cost": self.endpoint.cost(*counts) if counts else None,
            "latency_seconds": round(time.perf_counter() - started, 4),
        }

    def _refused(self, sent: http_client.Answer, text: str) -> NoReturn:
        """Raise what a status other than 200 stands for: UserError, CallFailed or _Again."""
        status = sent.status
        if status in FATAL or "insufficient_quota" in text:
            what = FATAL.get(status, "says that the account is out of credit").format(key=self.endpoint.api_key_env)
            raise UserError(f"{self._who()} {what} ({status}: {text})")
        if status not in AGAIN:
            raise CallFailed(f"{self._who()}: {status}: {text}")
        raise _Again(f"{status}: {text}", _seconds(sent.headers.get("retry-after")))

    def _begins(self, text: str) -> str:
        """The beginning of what a server sent, for an error."""
        return repr(answers.cleaned(text, self.key)[:100])

    def _who(self) -> str:
        return f"{self.endpoint.model} at {self.endpoint.base_url}"

    # The budget: each attempt first reserves the most that it can cost, so that calls at the same time cannot exceed it.

    def _bound(self, body: dict[str, Any]) -> float:
        """The most that a call can cost: there are no more input tokens than bytes."""
        return self.endpoint.cost(len(_canonical(body)), int(body[self.endpoint.max_tokens_field]))

    async def _reserve(self, bound: float) -> None:
        limit = self.endpoint.max_cost
        async with self._settled:
            if limit is not None:
                await self._settled.wait_for(lambda: not self._reserved or self._planned() + bound <= limit)
                if self.stopped or self._planned() + bound > limit:
                    self.stopped = True
                    raise UserError(
                        f"the budget is spent: {self.spent:.6g} of max_cost {limit:g}, {self.asked} calls answered, and the "
                        f"next may cost {bound:.2g}; all answers are kept: raise max_cost and run the same command again"
                    )
            self._reserved.append(bound)

    def _planned(self) -> float:
        return self.spent + sum(self._reserved)

    async def _settle(self, bound: float, cost: float) -> None:
        async with self._settled:
            self._reserved.remove(bound)
            self.spent += cost
            self._settled.notify_all()


def ask_all(endpoint: Endpoint, requests: Iterable[Request], note: str = "answers") -> list[Reply | CallFailed]:
    """Client.ask_all for code that is not asynchronous."""

    async def ask() -> list[Reply | CallFailed]:
        async with Client(endpoint) as client:
            return await client.ask_all(requests, note)

    return asyncio.run(ask())


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at the same time; results in order. The first exception cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")


def _seconds(retry_after: str | None) -> float:
    """Seconds from now that a Retry-After header asks for, as a number or a date; 0 where it is neither."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(retry_after or 0))
    with contextlib.suppress(ValueError, OverflowError):
        then = email.utils.parsedate_to_datetime(str(retry_after))
        return max(0.0, (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return 0.0
