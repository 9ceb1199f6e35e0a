"""Samples turns on vLLM's servers: the methods of EngineSampler (steps/sampling/engine.py), over HTTP.

sampler = ServerSampler(policy, adapter, temperature=1.0, max_tokens=64, stop=2)
sampler.submit(0, prompt_ids, seed=1)
while sampler.pending: for sampled in sampler.step(): …
"""

from __future__ import annotations

import asyncio
import queue
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.fleet.replica import Refused, drawn
from addons.fleet.servers import get
from steps.core.errors import UserError
from steps.sampling.engine import Limits, Sampled

if TYPE_CHECKING:
    from steps.core.params import Policy


class ServerSampler:
    """A batch of requests to one adapter with one set of sampling parameters, on the policy's servers. Temperature 0 is
    greedy."""

    def __init__(
        self,
        policy: Policy,
        adapter: Path,
        temperature: float,
        max_tokens: int,
        stop: int,
        logit_bias: dict[int, float] | None = None,  # nats, by token id
    ) -> None:
        self.fleet = get(policy)
        self.version = self.fleet.run(self.fleet.use(adapter))
        self.sampling: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "stop_token_ids": [stop],
            "ignore_eos": True,  # a turn ends with the template's token, not with the model's
            "logprobs": 0 if temperature > 0 else None,
            "detokenize": False,
            "logit_bias": logit_bias,
        }
        self.open: dict[int, Future[None]] = {}  # by key
        self.ended: queue.SimpleQueue[Sampled | Exception] = queue.SimpleQueue()

    @property
    def pending(self) -> int:
        return len(self.open)

    def submit(self, key: int, prompt_ids: list[int], seed: int, limits: Limits | None = None) -> None:
        """As EngineSampler.submit. A grammar is tried with one token first, because vLLM may refuse it with a ValueError."""
        sampling = self.sampling | {"seed": seed} | (limits.fields() if limits else {})
        if "structured_outputs" in sampling:
            try:
                self.fleet.run(self.fleet.turn(self.version, prompt_ids, sampling | {"max_tokens": 1}))
            except Refused as refused:
                raise ValueError(str(refused)) from None
        count = limits.top_logprobs if limits and limits.top_logprobs else 0
        turn = self._turn(key, prompt_ids, sampling, count)
        self.open[key] = asyncio.run_coroutine_threadsafe(turn, self.fleet.loop)

    async def _turn(self, key: int, ids: list[int], sampling: dict[str, Any], count: int) -> None:
        try:
            self.ended.put(finished_turn(key, await self.fleet.turn(self.version, ids, sampling), count))
        except Refused as refused:
            why = f"a server refuses a request of {len(ids)} tokens (status {refused.status}: {refused})"
            self.ended.put(UserError(why))
        except Exception as problem:
            self.ended.put(problem)

    def step(self) -> list[Sampled]:
        """Wait for a finished turn; returns all that have finished, in the order of their keys.

        UserError where a server is not what it should be, or none answers; nothing of the batch is kept then.
        """
        finished = [self._next()]
        while not self.ended.empty():
            finished.append(self._next())
        for sampled in finished:
            del self.open[sampled.key]
        if not self.open:
            self.fleet.run(self.fleet.verify(self.version))
        return sorted(finished)

    def _next(self) -> Sampled:
        ended = self.ended.get()
        if isinstance(ended, Exception):
            for turn in self.open.values():
                turn.cancel()
            self.open.clear()
            raise ended
        return ended


def finished_turn(key: int, answer: dict[str, Any], count: int) -> Sampled:
    """vLLM's answer as a finished turn; `count`: how many of the most probable tokens were asked for at each place."""
    ids, logprobs = drawn(answer)
    [choice] = answer["choices"]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    if count:
        places = (
            sorted(token["top_logprobs"], key=lambda best: best["rank"]) for token in choice["logprobs"]["content"]
        )
        top = tuple(
            tuple((best["token_id"], best["logprob"]) for best in place if best["rank"] <= count) for place in places
        )
    return Sampled(key, ids, logprobs, str(choice["finish_reason"]), top)
