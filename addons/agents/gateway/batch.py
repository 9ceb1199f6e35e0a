"""One batch of episodes in the gateway: which have ended, who plays the others, and what they leave in the journal.

The calls of the agents are in answers.py. Everything runs in one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from addons.agents.gateway.answers import Answers
from addons.agents.gateway.calls import Execution
from addons.agents.gateway.graph import Graph
from addons.agents.gateway.leases import Loss
from addons.agents.gateway.plan import Chats, Plan
from addons.agents.gateway.types import TOO_LONG, BadRequest
from environments.kit.values import Result


class Batch(Answers):
    """The episodes of one batch, their executions, and their calls."""

    def __init__(self, plan: Plan, chats: Chats, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(plan, chats, send)
        self.is_finished = False
        self.news = asyncio.Event()  # episodes can be leased that could not be before, perhaps
        self._restore()

    def _restore(self) -> None:
        """Go on where an earlier process was: which episodes have ended, and who has which lease. What was answered is read
        when it is needed (`recall`)."""
        for name, state in self.journal.episodes().items():
            if name not in self.episodes:
                continue
            if state.ended:
                self.leases.restore_ended(name, state.error)
            elif state.lease:
                if state.refused:
                    self.refused[name] = state.refused
                self.leases.restore_lease(name, state.lease, state.lost, time.monotonic())
                execution = Execution(name, self.leases.places[name], state.lease, state.key, Graph(self.plan.grammar))
                execution.unread = state.calls
                self.executions[name] = execution

    # --- What clients say: each by its id and a body. LookupError for what comes too late, or is of another task

    def register(self, _: str, body: dict[str, Any]) -> dict[str, Any]:
        """A client is there; what it has under way stays its own where it can."""
        client = str(body.get("client") or secrets.token_hex(8))
        if (task := body.get("task")) is not None and task != self.plan.task:
            raise LookupError(f"the client plays {task}, and the task is {self.plan.task}")
        name, capacity = str(body["name"])[:80], int(body["capacity"])
        self.leases.register(client, name, capacity, time.monotonic(), _held(body))
        self.wake()
        batch = Path(self.plan.journal).parent.name
        seconds = self.agents.heartbeat_seconds
        return {"client": client, "heartbeat_seconds": seconds, "task": self.plan.task, "batch": batch}

    def leave(self, client: str, _: dict[str, Any]) -> dict[str, Any]:
        self._lose(self.leases.leave(client))
        return {}

    def forget_missing(self, client: str, body: dict[str, Any]) -> None:
        """Begin again what a client was given and never got."""
        self._lose(self.leases.missing(client, _held(body), time.monotonic()))

    def lease(self, client: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Begin executions of episodes that a client takes, as it gets them."""
        given, now = [], time.monotonic()
        leased = [
            (name, lease, secrets.token_urlsafe(24))
            for name, lease in self.leases.lease(client, int(body["free"]), now)
        ]
        if leased:
            self.journal.lease([(*entry, self.leases.losses[entry[0]]) for entry in leased])
        for name, lease, key in leased:
            self.executions[name] = Execution(name, self.leases.places[name], lease, key, Graph(self.plan.grammar))
            seed, seconds = self.seed(name, 0), self.agents.episode_seconds
            more = {"lease": lease, "seed": seed, "api_key": key, "seconds": seconds}
            given.append(self.episodes[name] | more | {"suspect": name in self.leases.suspects})
        self.pump()
        return given

    def heartbeat(self, client: str, body: dict[str, Any]) -> dict[str, Any]:
        cancelled = self.leases.heartbeat(client, _held(body), time.monotonic())
        return {"cancelled": [list(pair) for pair in cancelled]}

    def report(self, _: str, body: dict[str, Any]) -> dict[str, Any]:
        """Note how an episode ended, or that it was lost."""
        name, lease, now = str(body["episode"]), int(body["lease"]), time.monotonic()
        execution, late = self.executions.get(name), LookupError("the episode is another client's by now, or has ended")
        if execution is None or execution.lease != lease or execution.key != body.get("api_key"):
            raise late
        error = None if body.get("error") is None else str(body["error"])
        if body.get("lost"):
            loss = self.leases.give_back(name, lease, error, now)
            self._lose([loss] if loss else [])
            return {}
        error = error and error[:2000]
        result = None if body.get("result") is None else Result.model_validate(body["result"])
        if not self.leases.report(name, lease, now, error):
            raise late
        self._end(name, execution, result, error)
        return {}

    def sweep(self) -> None:
        """To be called about once a second."""
        self._lose(self.leases.sweep(time.monotonic()))
        self.pump()

    def _lose(self, losses: Iterable[Loss]) -> None:
        """Close executions that are over without a report; some end their episodes."""
        for loss in losses:
            execution = self.executions.get(loss.episode)
            if loss.error is not None and execution is not None:
                self._end(loss.episode, execution, None, loss.error)
            else:
                self._close(loss.episode)

    def _end(self, name: str, execution: Execution, result: Result | None, error: str | None) -> None:
        """Write the record of an episode."""
        self.recall(execution)
        episode = self.episodes[name]
        written = execution.graph.trajectory(
            name, episode["scenario"]["id"], episode["attempt"], self.plan.adapter, result, error
        )
        if error is not None and self.refused.get(name) == TOO_LONG:
            written = written.model_copy(update={"stop_reason": "context"})
        self.journal.end(name, written.model_dump(mode="json"))
        self._close(name)

    def _close(self, name: str) -> None:
        """An execution has ended, or was lost."""
        if (execution := self.executions.pop(name, None)) is not None:
            for call in self.rounds.drop(execution):
                call.reply.set_exception(BadRequest("this execution of the episode is over"))
                call.reply.exception()  # nobody may wait for it
        ended, whole = self.leases.count_ended(), len(self.episodes)
        self.send({"progress": [ended, whole, f"episodes, {self._rate():.0f} tokens/s"]})
        self.tell_end()
        self.wake()
        self.pump()

    def tell_end(self) -> None:
        """Tell the stage, once, that every episode has ended, where that is so."""
        if self.leases.count_ended() == len(self.episodes) and not self.is_finished:
            self.is_finished = True
            self._note_delivered()
            counts = {"repeated": self.repeated, "ignored": dict(self.ignored)}
            self.send({"finished": True, **counts})

    def wake(self) -> None:
        """End the waiting of those who await `news`."""
        self.news.set()
        self.news = asyncio.Event()

    def status(self) -> dict[str, Any]:
        """How things stand, as JSON: for /status and the viewer's page."""
        shown = self.leases.status(time.monotonic())
        for entry in shown["under_way"]:
            execution = self.executions.get(entry["episode"])
            entry["calls"] = len(execution.calls) + (execution.unread or 0) if execution else 0
        counts = {"calls": self.number, "repeated": self.repeated, "ignored": dict(self.ignored)}
        named = {"batch": self.plan.adapter, "task": self.plan.task, "order": self.plan.order}
        return named | shown | counts | {"tokens_per_second": round(self._rate(), 1)}

    def _rate(self) -> float:
        """Tokens a second since the batch began."""
        return self.tokens / max(time.monotonic() - self.began, 1e-3)


def _held(body: dict[str, Any]) -> list[tuple[str, int]]:
    """The executions that a client says it has under way."""
    return [(str(episode), int(lease)) for episode, lease in body.get("held", ())]
