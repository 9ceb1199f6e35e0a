"""When the calls that wait are sampled, and in which order.

lockstep: once every episode under way waits for an answer (and no further episode could begin), all calls that wait are
sampled together, in the order of their episodes. What is in a batch, and with it how sums are rounded, then does not depend
on how fast agents, tools and the network are. A slow tool holds up the others.
free: each call is sampled at once, beside those that are being sampled.

Agents that make calls side by side within an episode may find themselves in one round or in two; SETTLE gives them a moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from addons.agents.gateway.calls import Call, Execution

SETTLE = 0.001  # seconds after a request before a round begins


class Rounds:
    """The calls that wait, and those that are being sampled."""

    def __init__(self, order: Literal["lockstep", "free"]) -> None:
        self.order = order
        self.waiting: list[tuple[Execution, Call]] = []
        self.sampled: set[Call] = set()  # being sampled

    def add(self, execution: Execution, call: Call) -> None:
        self.waiting.append((execution, call))

    def begin(self, under_way: Iterable[Execution], is_more_expected: bool) -> list[tuple[Execution, Call]]:
        """The calls to sample now, in order; none where the round has to wait.

        `under_way` are the executions that have not ended; `is_more_expected` says that further ones are about to begin.
        """
        if self.order == "lockstep":
            asking = {execution.episode for execution, _ in self.waiting}
            is_complete = all(execution.episode in asking for execution in under_way)
            if self.sampled or is_more_expected or not is_complete:
                return []
        ready = sorted(self.waiting, key=lambda pair: (pair[0].place, pair[1].number))
        self.waiting = []
        self.sampled |= {call for _, call in ready}
        return ready

    def end(self, call: Call) -> None:
        """A call was answered."""
        self.sampled.discard(call)

    def drop(self, execution: Execution) -> list[Call]:
        """Forget the waiting calls of an execution that has ended, and return them."""
        dropped = [call for other, call in self.waiting if other is execution]
        self.waiting = [pair for pair in self.waiting if pair[0] is not execution]
        return dropped
