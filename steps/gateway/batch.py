"""One batch of episodes in the gateway: from a request to its recorded answer, whatever the protocol around it.

Everything runs in one event loop. What is to be sampled goes to the engine, in the stage's process, by `send`; the results
come back to `sampled`. Answers of the same moment are one transaction of the journal, and are given out when they are on the
disk.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.params import Agents, Policy
from steps.gateway import replies, responses
from steps.gateway.calls import Asked, Call, Execution, Waiter, branch_name
from steps.gateway.dialects import DIALECTS
from steps.gateway.graph import Graph
from steps.gateway.journal import Answer, Entry, Journal
from steps.gateway.leases import Leases
from steps.gateway.rounds import SETTLE, Rounds
from steps.gateway.types import BadRequest, Request
from steps.policy.chat import Chat
from steps.policy.loading import load_tokenizer
from steps.sampling.episodes import turn_seed

if TYPE_CHECKING:
    from steps.gateway.graph import Placement


class Plan(NamedTuple):
    """What the stage wants played; it travels as JSON."""

    journal: str  # path
    task: str
    policy: dict[str, Any]
    agents: dict[str, Any]
    adapter: str  # content hash
    order: str
    seed: int
    temperature: float
    max_tokens: int
    max_turns: int | None
    episodes: list[dict[str, Any]]  # {"episode", "scenario", "attempt"}, in the order in which they are begun


class Chats:
    """The chats of a policy, one for each list of tools."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.tokenizer = policy, load_tokenizer(policy)
        self.known: dict[str, Chat] = {}

    def of(self, tools: Sequence[dict[str, Any]]) -> Chat:
        """BadRequest where the policy's template cannot show these tools."""
        name = json.dumps(tools, sort_keys=True)
        if name not in self.known:
            policy = self.policy
            options, parsers = policy.chat_template_kwargs, (policy.tool_parser, policy.reasoning_parser)
            try:
                self.known[name] = Chat(self.tokenizer, tools, options, *parsers)
            except ValueError as problem:
                reason = f"the policy cannot use these tools, because {problem}"
                raise BadRequest(reason, "tools") from None
        return self.known[name]


class Batch:
    """The episodes of one batch, their executions, and their calls."""

    def __init__(self, plan: Plan, chats: Chats, send: Callable[[dict[str, Any]], None]) -> None:
        self.plan, self.chats, self.send = plan, chats, send
        self.agents, self.journal = Agents(**plan.agents), Journal(Path(plan.journal))
        self.rounds = Rounds("free" if plan.order == "free" else "lockstep")
        self.episodes = {str(entry["episode"]): entry for entry in plan.episodes}
        self.places = {name: place for place, name in enumerate(self.episodes)}
        self.executions: dict[str, Execution] = {}  # by episode: the latest that has not ended
        self.asked: dict[
            int, tuple[Execution, Call, int]
        ] = {}  # by number: what is being sampled, and which answer of it
        self.number = 0
        self.ignored: Counter[str] = Counter()
        self.tokens = self.repeated = 0
        self.began = time.monotonic()
        self.delivered: list[int] = []
        self.leases = Leases(
            list(self.episodes), self.agents.concurrency, self.agents.retries, self.agents.heartbeat_seconds
        )
        self._restore()

    def _restore(self) -> None:
        """Go on where an earlier process was: which episodes have ended, who has which lease, what was answered."""
        entries: dict[str, list[Entry]] = defaultdict(list)
        numbers: dict[tuple[str, int, int], int] = {}
        for number, entry in self.journal.entries():
            if entry.adapter == self.plan.adapter and entry.episode in self.episodes:
                entries[entry.episode].append(entry)
                numbers[entry.episode, entry.lease, entry.asked] = number
        self.earlier = entries
        for name, state in self.journal.episodes().items():
            if name not in self.episodes:
                continue
            if state.ended:
                self.leases.restore_ended(name, state.error)
            elif state.lease:
                self.leases.restore_lease(name, state.lease, state.lost, time.monotonic())
                before = [entry for entry in entries[name] if entry.lease < state.lease]
                execution = Execution(name, self.places[name], state.lease, state.key, Graph(), before)
                for entry in entries[name]:
                    if entry.lease == state.lease:
                        self._again(execution, entry, numbers[name, entry.lease, entry.asked])
                self.executions[name] = execution

    def _again(self, execution: Execution, entry: Entry, number: int) -> None:
        """Put a recorded call back into its execution."""
        asked = Asked(entry.dialect, entry.body, entry.idempotency)
        request = self.parse(execution, asked)
        chat, placed = self._placed(execution, request)
        placements = [execution.graph.ask(placement) for placement in placed]
        call = Call(entry.asked, asked, entry.digest, request, placements)
        call.answers, call.is_delivered, call.entry = list(entry.answers), entry.delivered, number
        execution.open(call)
        execution.recorded_answer(entry.digest)
        self._give(execution, call, entry, chat)

    @staticmethod
    def parse(execution: Execution, asked: Asked) -> Request:
        """BadRequest where the body cannot be answered."""
        if asked.dialect == "responses":  # which may name an earlier response instead of sending it again
            return responses.parse(asked.body, execution.responses.get)
        return DIALECTS[asked.dialect].parse(asked.body)

    def _placed(self, execution: Execution, request: Request) -> tuple[Chat, list[Placement]]:
        """The chat of a request, and where each of its answers stands in the token graph."""
        chat = self.chats.of(() if request.tool_choice == "none" else request.tools)
        first = execution.graph.place(request, chat)
        further = (first._replace(cause="alternative") for _ in range(request.n - 1))
        return chat, [first, *further]

    def lease(self, client: str, free: int, now: float) -> list[dict[str, Any]]:
        """Begin executions of episodes that a client takes, as it gets them."""
        given = []
        for name, lease in self.leases.lease(client, free, now):
            key = secrets.token_urlsafe(24)
            if (old := self.executions.pop(name, None)) is not None:
                self.rounds.drop(old)
            self.journal.lease(name, lease, key, lost=lease - 1)
            self.executions[name] = Execution(name, self.places[name], lease, key, Graph(), self.earlier.get(name, []))
            episode = self.episodes[name]
            draws = turn_seed(self.plan.seed, episode["scenario"]["id"], episode["attempt"], 0)
            given.append({**episode, "seed": draws, "api_key": key, "seconds": self.agents.episode_seconds})
        self.pump()
        return given

    def report(self, name: str, lease: int, result: dict[str, Any] | None, error: str | None, now: float) -> bool:
        """Note how an episode ended. False where the lease is another's by now."""
        if not self.leases.report(name, lease, now, error):
            return False
        self.journal.end(name, result, error)
        self.close(name)
        return True

    def close(self, name: str) -> None:
        """An execution has ended, or was lost."""
        if (execution := self.executions.pop(name, None)) is not None:
            self.rounds.drop(execution)
        ended, whole = self.leases.count_ended(), len(self.episodes)
        self.send({"progress": [ended, whole, self._note()]})
        if ended == whole:
            self._note_delivered()
            self.send({"finished": True})
        self.pump()

    def _note(self) -> str:
        seconds = max(time.monotonic() - self.began, 1e-3)
        return f"episodes, {self.tokens / seconds:.0f} tokens/s"

    async def ask(self, execution: Execution, asked: Asked, waiter: Waiter) -> Call:
        """The call that a request belongs to: a new one, or one that is asked again. BadRequest where it is refused."""
        async with execution.lock:
            call = await execution.find(asked)
            if call is None:
                call = self._open(execution, asked)
            else:
                self.repeated += 1
            call.waiters.append(waiter)
        return call

    def _open(self, execution: Execution, asked: Asked) -> Call:
        request = self.parse(execution, asked)
        if self.plan.max_turns is not None and len(execution.calls) >= self.plan.max_turns:
            raise self._refused(execution, f"rollout.max_turns: {self.plan.max_turns} answers were given", "max_turns")
        chat, placements = self._placed(execution, request)
        limit = min(request.max_tokens or self.plan.max_tokens, self.plan.max_tokens)
        length = len(placements[0].prompt_ids)
        if length + limit > self.chats.policy.context:
            most = f"policy.context is {self.chats.policy.context} tokens"
            reason = f"{most}: the prompt has {length}, and the answer may have {limit}"
            raise self._refused(execution, reason, "context_length_exceeded")
        limits = replies.limits(request, chat, limit)
        self.ignored.update(request.ignored)
        placements = [execution.graph.ask(placement) for placement in placements]
        call = Call(len(execution.calls), asked, asked.digest(), request, placements)
        scenario = self.episodes[execution.episode]
        call.seeds = [
            turn_seed(self.plan.seed, scenario["scenario"]["id"], scenario["attempt"], branch)
            for branch in (branch_name(place, request.seed, choice) for choice, place in enumerate(placements))
        ]
        call.limits = limits
        execution.open(call)
        if (entry := execution.recorded_answer(call.digest)) is not None and len(entry.answers) == len(placements):
            call.answers = list(entry.answers)
            self._finish([(execution, call)])
        else:
            self.rounds.add(execution, call)
            asyncio.get_running_loop().call_later(0 if self.plan.order == "free" else SETTLE, self.pump)
        return call

    def _refused(self, execution: Execution, reason: str, code: str) -> BadRequest:
        self.journal.refuse(execution.episode, code)
        return BadRequest(reason, "messages", code)

    def pump(self) -> None:
        """Send the engine what can be sampled now."""
        samples = []
        for execution, call in self.rounds.begin(self.executions.values(), self.leases.is_more_expected()):
            for choice, placement in enumerate(call.placements):
                self.number += 1
                self.asked[self.number] = execution, call, choice
                sample = {"key": self.number, "ids": list(placement.prompt_ids), "seed": call.seeds[choice]}
                samples.append(sample | {"limits": call.limits})
        if samples:
            self.send({"sample": samples})

    def sampled(self, results: Iterable[dict[str, Any]]) -> None:
        """Take what the engine has sampled."""
        whole = []
        for result in results:
            execution, call, choice = self.asked.pop(result["key"])
            top = tuple(tuple((token, nats) for token, nats in place) for place in result.get("top", ()))
            call.answers[choice] = Answer(tuple(result["ids"]), tuple(result["logprobs"]), result["reason"], top)
            self.tokens += len(result["ids"])
            if None not in call.answers:
                whole.append((execution, call))
        self._finish(whole)

    def _finish(self, calls: Sequence[tuple[Execution, Call]]) -> None:
        """Record answered calls, then give the answers out."""
        entries = [self._entry(execution, call) for execution, call in calls]
        numbers = self.journal.record(entries)
        for (execution, call), entry, number in zip(calls, entries, numbers, strict=True):
            call.entry = number
            self.earlier[execution.episode].append(entry)
            current = self.executions.get(execution.episode)
            if current is not None and current is not execution and not current.has_asked(call.digest):
                current.recorded[call.digest].append(entry)  # it was lost meanwhile: the answer is the next one's
            self._give(
                execution, call, entry, self.chats.of(() if call.request.tool_choice == "none" else call.request.tools)
            )
            self.rounds.end(call)
        if calls:
            asyncio.get_running_loop().call_soon(self.pump)

    def _entry(self, execution: Execution, call: Call) -> Entry:
        prompts = []
        for placement in call.placements:
            start = execution.graph.length(placement.parent) if placement.parent is not None else 0
            prompts.append((placement.parent, placement.prompt_ids[start:]))
        answers = tuple(answer for answer in call.answers if answer is not None)
        return Entry(
            *(execution.episode, execution.lease, call.number, call.digest, call.asked.idempotency),
            *(call.asked.dialect, call.asked.body, secrets.token_hex(12), int(time.time()), self.plan.adapter),
            *(answers, tuple(prompts)),
        )

    def _give(self, execution: Execution, call: Call, entry: Entry, chat: Chat) -> None:
        """Add the answers to the token graph, and let the clients have them."""
        seed = f"{execution.episode} {call.digest} {call.number}"
        parsed = [
            replies.read(answer, call.request, chat, f"{seed} {place}") for place, answer in enumerate(entry.answers)
        ]
        for placement, answer, choice in zip(call.placements, entry.answers, parsed, strict=True):
            execution.graph.add(placement, call.request, chat, answer, choice.message)
        cached = sum(placement.cached for placement in call.placements[:1])
        reply = replies.reply(entry, call, parsed, cached)
        if entry.dialect == "responses":
            output = responses.render(reply, entry.body)
            asked = responses.items(entry.body, execution.responses.get)
            execution.responses[str(output["id"])] = asked, output["output"]
        call.reply.set_result(reply)

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
