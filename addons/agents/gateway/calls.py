"""The calls of an execution of an episode: which request is a new one, and which is asked again.

A call belongs to the execution, not to the connection that it came by: it goes on when the client goes away. A request is
the same call again where

- it has the idempotency key of an earlier one, or
- its body is the same, and the client says that it is a retry (`x-stainless-retry-count`, which the SDKs of OpenAI and
  Anthropic send), or
- its body is the same, and nobody waits for the earlier answer, and the client cannot be known to have it: it went away
  before, or has asked nothing else since. A client that counts its retries, and counts none, is known to have what was
  delivered to it.

So an agent that wants another answer to a prompt gets one through those SDKs; through others it asks at the same time, or
with `n`, different seeds or keys. Where an earlier execution of the episode was lost with its client, its answers are
given to the same requests of the next one, in their order.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from addons.agents.gateway.journal import Answer, Entry
from addons.agents.gateway.types import BadRequest, Reply

if TYPE_CHECKING:
    from addons.agents.gateway.graph import Graph, Placement
    from addons.agents.gateway.types import Request
    from steps.policy.chat import Chat


class Waiter(Protocol):
    """A client's connection that waits for an answer."""

    async def is_disconnected(self) -> bool: ...


class Asked(NamedTuple):
    """A request as it came."""

    dialect: str
    body: dict[str, Any]
    idempotency: str | None = None
    is_retry: bool | None = None  # None: the client does not say

    def digest(self) -> str:
        """Of all that decides the answer; how it is delivered (streamed or whole) is left out."""
        body = {name: value for name, value in self.body.items() if name not in ("stream", "stream_options")}
        text = json.dumps([self.dialect, body], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Call:
    """One request, while it waits for its answer and afterwards."""

    def __init__(
        self,
        execution: Execution,
        number: int,  # by the order of asking
        asked: Asked,
        digest: str,  # of what was asked
        request: Request,
        chat: Chat,  # of the request's tools
        placements: list[Placement],  # of its answers
    ) -> None:
        self.execution, self.chat = execution, chat
        self.number, self.asked, self.digest, self.request, self.placements = number, asked, digest, request, placements
        self.limits: dict[str, Any] = {}  # fields of steps.sampling.turns.Limits
        self.answers: list[Answer | None] = [None] * len(placements)
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.waiters: list[Waiter] = []
        self.is_delivered = False  # to a client that was still there
        self.is_confirmed = False  # something else was asked after the answer
        self.entry = 0  # its id in the journal

    @property
    def is_answered(self) -> bool:
        return self.reply.done()

    @property
    def has_answer(self) -> bool:
        return self.reply.done() and self.reply.exception() is None

    async def is_awaited(self) -> bool:
        """Whether a client is still connected that waits for the answer."""
        for waiter in list(self.waiters):
            if await waiter.is_disconnected():
                self.waiters.remove(waiter)
        return bool(self.waiters)


def recorded(earlier: Iterable[Entry]) -> dict[str, deque[Entry]]:
    """By digest, the answers that earlier executions were given, in their order. Each execution begins with the answers of
    those before, so the longest list of a digest has them all."""
    lists: dict[tuple[str, int], deque[Entry]] = defaultdict(deque)
    for entry in earlier:
        lists[entry.digest, entry.lease].append(entry)
    longest: dict[str, deque[Entry]] = defaultdict(deque)
    for (digest, _), entries in lists.items():
        longest[digest] = max(longest[digest], entries, key=len)
    return longest


class Execution:
    """One execution of an episode by a client: its key, its calls, and what was recorded of it."""

    def __init__(self, episode: str, place: int, lease: int, key: str, graph: Graph) -> None:
        self.episode, self.place, self.lease, self.key, self.graph = episode, place, lease, key, graph
        self.calls: list[Call] = []
        self.unread: int | None = 0  # calls that an earlier process answered; None: the journal's were read
        self.recorded: dict[str, deque[Entry]] = defaultdict(deque)  # what earlier executions were given, by digest
        self.lock = asyncio.Lock()  # a request is matched and placed before the next one is

    async def find(self, asked: Asked, digest: str) -> Call | None:
        """The call that this request asks again; None for a new one. BadRequest where a key comes with another body."""
        same = [call for call in self.calls if call.digest == digest]
        if asked.idempotency is not None:
            same_key = [call for call in self.calls if call.asked.idempotency == asked.idempotency]
            if same_key and same_key[-1].digest != digest:
                raise BadRequest("this idempotency key was used with another request", code="idempotency_error")
            if same_key:
                return same_key[-1]
            # A key of its own makes a call of its own.
            same = [call for call in same if call.asked.idempotency is None and asked.is_retry]
        missed = [call for call in same if not (call.is_delivered and (call.is_confirmed or asked.is_retry is False))]
        for call in missed:
            if not await call.is_awaited():
                return call
        if asked.is_retry and same:
            return missed[0] if missed else same[-1]
        return None

    def open(self, call: Call) -> None:
        """Add a new call. Answers to other requests have arrived, then."""
        for other in self.calls:
            other.is_confirmed |= other.is_answered and other.digest != call.digest
        self.calls.append(call)

    def recorded_answer(self, digest: str) -> Entry | None:
        """The next answer to this request that an earlier execution was given."""
        return self.recorded[digest].popleft() if self.recorded[digest] else None

    def has_asked(self, digest: str) -> bool:
        return any(call.digest == digest for call in self.calls)


def branch_name(placement: Placement, client_seed: int | None, choice: int) -> str:
    """What the draws of an answer depend on beside the run's seed, the scenario and the attempt.

    For an agent that only appends it is the number of answers before, as for an environment's turns, so that both sample the
    same. A request that forks depends on its prompt, too, and the same prompt again on how often it came.
    """
    parts = [str(placement.depth)]
    if placement.cause not in ("", "json_rewritten", "retry", "alternative"):
        prompt = json.dumps([*placement.prompt_ids, *(each.sha256 for each in placement.pictures)]).encode()
        parts.append(hashlib.sha256(prompt).hexdigest()[:16])
    if placement.occurrence + choice:
        parts.append(f"again {placement.occurrence + choice}")
    if client_seed is not None:
        parts.append(f"seed {client_seed}")
    return " ".join(parts)
