"""The calls of agents in a batch: from a request to its recorded answer, whatever the protocol around it.

What is to be sampled goes to the engine, in the stage's process, by `send`; the results come back to `sampled`. Answers of
the same moment are one transaction of the journal, and are given out when they are on the disk.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from addons.agents.gateway import chat, completions, messages, replies, responses
from addons.agents.gateway.calls import Asked, Call, Execution, Waiter, branch_name, recorded
from addons.agents.gateway.journal import Answer, Entry, Journal, alternatives
from addons.agents.gateway.leases import Leases
from addons.agents.gateway.plan import Chats, Plan
from addons.agents.gateway.types import TOO_LONG, BadRequest, Dialect, Reply, Request
from addons.agents.section import Agents
from environments.kit.pictures import apart
from steps.policy.chat import Chat
from steps.sampling.episodes import turn_seed

if TYPE_CHECKING:
    from addons.agents.gateway.graph import Placement

DIALECTS: dict[str, Dialect] = {  # by their routes under /episodes/<id>/v1/
    "chat/completions": chat,
    "completions": completions,
    "responses": responses,
    "messages": messages,
}
MAX_TURNS = "max_turns"
# Seconds after a request before a round begins: agents that make calls side by side within an episode may find themselves in
# one round or in two.
SETTLE = 0.001
AT_ONCE = 16_384  # letters of a prompt that are tokenised in the event loop, which takes some milliseconds


class Rounds:
    """The calls that wait: when they are sampled, and in which order.

    lockstep: once every episode under way waits for an answer (and no further episode could begin), all calls that wait are
    sampled together, in the order of their episodes. What is in a batch, and with it how sums are rounded, then does not
    depend on how fast agents, tools and the network are. A slow tool holds up the others.
    free: each call is sampled at once, beside those that are being sampled.
    """

    def __init__(self, order: Literal["lockstep", "free"]) -> None:
        self.order = order
        self.waiting: list[Call] = []

    def add(self, call: Call) -> None:
        self.waiting.append(call)

    def begin(self, under_way: Iterable[Execution], is_more_expected: bool, is_sampling: bool) -> list[Call]:
        """The calls to sample now, in order; none where the round has to wait.

        `under_way` are the executions that have not ended; `is_more_expected` says that further ones are about to begin,
        `is_sampling` that the calls of the round before are being sampled.
        """
        if self.order == "lockstep":
            asking = {call.execution.episode for call in self.waiting}
            is_complete = all(execution.episode in asking for execution in under_way)
            if is_sampling or is_more_expected or not is_complete:
                return []
        ready = sorted(self.waiting, key=lambda call: (call.execution.place, call.number))
        self.waiting = []
        return ready

    def drop(self, execution: Execution) -> list[Call]:
        """Forget the waiting calls of an execution that has ended, and return them."""
        dropped = [call for call in self.waiting if call.execution is execution]
        self.waiting = [call for call in self.waiting if call.execution is not execution]
        return dropped


class Answers:
    """The calls of a batch's executions, and what has been answered."""

    def __init__(self, plan: Plan, chats: Chats, send: Callable[[dict[str, Any]], None]) -> None:
        self.plan, self.chats, self.send = plan, chats, send
        self.agents, self.journal = Agents(**plan.agents), Journal(Path(plan.journal))
        self.rounds = Rounds("free" if plan.order == "free" else "lockstep")
        self.episodes = {str(entry["episode"]): entry for entry in plan.episodes}
        self.executions: dict[str, Execution] = {}  # by episode: the latest that has not ended
        self.asked: dict[int, tuple[Call, int]] = {}  # what is being sampled, and which answer of it
        self.number = 0
        self.ignored: Counter[str] = Counter()
        self.tokens = self.repeated = 0
        self.began = time.monotonic()
        self.delivered: list[int] = []
        settings = (self.agents.concurrency, self.agents.retries, self.agents.heartbeat_seconds, self.agents.clients)
        self.leases = Leases(list(self.episodes), *settings)
        self.refused: dict[str, str] = {}  # by episode: the code of the latest refusal

    async def ask(self, execution: Execution, asked: Asked, waiter: Waiter) -> Call:
        """The call that a request belongs to: a new one, or one that is asked again. BadRequest where it is refused."""
        async with execution.lock:
            digest = asked.digest()
            call = await execution.find(asked, digest)
            if call is None:
                call = await self._open(execution, asked, digest)
            else:
                self.repeated += 1
            call.waiters.append(waiter)
        return call

    async def count(self, execution: Execution, asked: Asked) -> int:
        """The tokens of a request's prompt. BadRequest where it cannot be answered."""
        async with execution.lock:
            _, [placement, *_] = await self._place(execution, self.parse(execution, asked))
        return len(placement.prompt_ids)

    def refuse(self, execution: Execution, problem: BadRequest) -> None:
        """Note why a request was not answered, where that says how its episode may end."""
        if problem.code in (TOO_LONG, MAX_TURNS):
            self.journal.refuse(execution.episode, problem.code)
            self.refused[execution.episode] = problem.code

    @staticmethod
    def parse(execution: Execution, asked: Asked) -> Request:
        """BadRequest where the body cannot be answered."""
        if asked.dialect == "responses":  # which may name an earlier response instead of sending it again
            calls = [call for call in execution.calls if call.asked.dialect == "responses" and call.has_answer]
            earlier = responses.Recorded((call.asked.body, call.reply.result()) for call in calls)
            request = responses.parse(asked.body, earlier)
        else:
            request = DIALECTS[asked.dialect].parse(asked.body)
        messages, pictures = apart(request.messages)
        return request._replace(messages=messages, pictures=pictures)

    async def _place(self, execution: Execution, request: Request) -> tuple[Chat, list[Placement]]:
        """`_placed`, in a thread where that takes long, so that the other agents go on meanwhile. BadRequest, before any of
        the text is tokenised, where it cannot fit."""
        if self.chats.length(request) <= AT_ONCE:
            return self._placed(execution, request)
        placed = await asyncio.to_thread(self._placed, execution, request)
        if self.executions.get(execution.episode) is not execution:
            raise BadRequest("this execution of the episode is over")
        return placed

    def _placed(self, execution: Execution, request: Request) -> tuple[Chat, list[Placement]]:
        """The chat of a request, and where each of its answers stands in the token graph."""
        chat = self.chats.of(() if request.tool_choice == "none" else request.tools)
        first = execution.graph.place(request, chat)
        further = (first._replace(cause="alternative") for _ in range(request.n - 1))
        return chat, [first, *further]

    async def _open(self, execution: Execution, asked: Asked, digest: str) -> Call:
        request = self.parse(execution, asked)
        if self.plan.max_turns is not None and len(execution.calls) >= self.plan.max_turns:
            raise BadRequest(f"rollout.max_turns: {self.plan.max_turns} answers were given", "messages", MAX_TURNS)
        chat, placements = await self._place(execution, request)
        limit = min(request.max_tokens or self.plan.max_tokens, self.plan.max_tokens)
        tokens = len(placements[0].prompt_ids)
        if tokens + limit > self.chats.policy.context:
            most = f"policy.context is {self.chats.policy.context} tokens"
            reason = f"{most}: the prompt has {tokens}, and the answer may have {limit}"
            raise BadRequest(reason, "messages", TOO_LONG)
        if replies.is_held_to_one_call(request) and chat.tool_parser != replies.TAGGED:
            request = request._replace(ignored=(*request.ignored, "parallel_tool_calls"))
        if (request.max_tokens or 0) > limit:
            request = request._replace(ignored=(*request.ignored, "max_tokens"))
        limits = replies.limits(request, chat, limit, self.plan.grammar)
        self.refused.pop(execution.episode, None)
        self.ignored.update(request.ignored)
        number = max((call.number for call in execution.calls), default=-1) + 1
        placements = [execution.graph.ask(placement) for placement in placements]
        call = Call(execution, number, asked, digest, request, chat, placements)
        call.limits = limits
        execution.open(call)
        if (entry := execution.recorded_answer(call.digest)) is not None and len(entry.answers) == len(placements):
            call.answers = list(entry.answers)
            self._finish([call])
        else:
            self.rounds.add(call)
            asyncio.get_running_loop().call_later(0 if self.plan.order == "free" else SETTLE, self.pump)
        return call

    def seed(self, name: str, turn: str | int) -> int:
        """The seed of an episode's draws for a turn, or of those of its agent."""
        episode = self.episodes[name]
        return turn_seed(self.plan.seed, episode["scenario"]["id"], episode["attempt"], turn)

    def pump(self) -> None:
        """Send the engine what can be sampled now."""
        samples = []
        more = self.leases.is_more_expected()
        for call in self.rounds.begin(self.executions.values(), more, bool(self.asked)):
            for choice, placement in enumerate(call.placements):
                self.number += 1
                self.asked[self.number] = call, choice
                seed = self.seed(call.execution.episode, branch_name(placement, call.request.seed, choice))
                sample = {"key": self.number, "ids": list(placement.prompt_ids), "seed": seed}
                sample |= {"pictures": [list(each) for each in placement.pictures]} if placement.pictures else {}
                samples.append(sample | {"limits": call.limits})
        if samples:
            self.send({"sample": samples})

    def sampled(self, results: Iterable[dict[str, Any]]) -> None:
        """Take what the engine has sampled."""
        whole = []
        for result in results:
            call, choice = self.asked.pop(result["key"])
            if call.is_answered:  # another of its answers failed
                continue
            ids, logprobs = tuple(result["completion_ids"]), tuple(result["logprobs"])
            call.answers[choice] = Answer(ids, logprobs, result["finish_reason"], alternatives(result["top"]))
            self.tokens += len(ids)
            if None not in call.answers:
                whole.append(call)
        self._finish(whole)

    def failed(self, failures: Iterable[dict[str, Any]]) -> None:
        """Refuse the calls that the engine cannot sample, such as for a schema that it does not know."""
        for failure in failures:
            call, _ = self.asked.pop(failure["key"])
            if not call.reply.done():
                call.reply.set_exception(BadRequest(failure["reason"], "response_format"))
                call.reply.exception()  # nobody may wait for it
                call.execution.calls.remove(call)
        self.pump()

    def _finish(self, calls: Sequence[Call]) -> None:
        """Record answered calls, then give the answers out."""
        entries = list(map(self._entry, calls))
        for call, entry, number in zip(calls, entries, self.journal.record(entries), strict=True):
            call.entry = number
            current = self.executions.get(entry.episode)
            if current is not None and current is not call.execution and not current.has_asked(call.digest):
                current.recorded[call.digest].append(entry)  # it was lost meanwhile: the answer is the next one's
            self._give(call, entry)
        if calls:
            asyncio.get_running_loop().call_soon(self.pump)

    def _entry(self, call: Call) -> Entry:
        prompts = tuple((each.parent, each.prompt_ids[each.cached :]) for each in call.placements)
        answers = tuple(answer for answer in call.answers if answer is not None)
        return Entry(
            *(call.execution.episode, call.execution.lease, call.number, call.digest, call.asked.idempotency),
            *(call.asked.dialect, call.asked.body, secrets.token_hex(12), int(time.time()), self.plan.adapter),
            *(answers, prompts),
        )

    def _give(self, call: Call, entry: Entry) -> None:
        """Add the answers to the token graph, and let the clients have them."""
        choices = []
        for place, (placement, answer) in enumerate(zip(call.placements, entry.answers, strict=True)):
            name = f"{entry.episode} {call.digest} {call.number} {place}"
            choices.append(replies.read(answer, call.request, call.chat, name, self.plan.grammar))
            call.execution.graph.add(placement, call.request, call.chat, answer, choices[-1].message)
        prompt, made = call.placements[0], (entry.reply, entry.created, replies.MODEL, tuple(choices))
        call.reply.set_result(Reply(*made, len(prompt.prompt_ids), prompt.cached))

    def deliver(self, call: Call) -> None:
        """A client has the answer."""
        if not call.is_delivered:
            call.is_delivered = True
            self.delivered.append(call.entry)
            if len(self.delivered) >= 64:
                self._note_delivered()

    def _note_delivered(self) -> None:
        self.journal.deliver(self.delivered)
        self.delivered = []

    def recall(self, execution: Execution) -> None:
        """Read what this batch's policy answered before: in earlier executions of the episode, and in this one, to which its
        calls belong again, where an earlier process answered them."""
        if execution.unread is None:
            return
        execution.unread = None
        entries = [pair for pair in self.journal.entries(execution.episode) if pair[1].adapter == self.plan.adapter]
        execution.recorded = recorded(entry for _, entry in entries if entry.lease < execution.lease)
        for number, entry in entries:
            if entry.lease == execution.lease:
                self._again(execution, entry, number)

    def _again(self, execution: Execution, entry: Entry, number: int) -> None:
        """Put a recorded call back into its execution."""
        asked = Asked(entry.dialect, entry.body, entry.idempotency)
        request = self.parse(execution, asked)
        chat, placements = self._placed(execution, request)
        placements = [execution.graph.ask(placement) for placement in placements]
        call = Call(execution, entry.asked, asked, entry.digest, request, chat, placements)
        call.answers, call.is_delivered, call.entry = list[Answer | None](entry.answers), entry.delivered, number
        execution.open(call)
        execution.recorded_answer(entry.digest)
        self._give(call, entry)
