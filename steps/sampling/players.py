"""Plays episodes with policies that are asked in messages, not in tokens: scripted, random, or a model behind a server.

They cannot learn here, for nobody knows their tokens and logprobs: `Turn` has none, and `Played` carries what they cost. For
comparisons (steps/analytics/baselines.py) and evaluations (`policy.kind`). A model's episodes run at once, as many
calls as its
endpoint allows; an environment's own work holds up the others, which is nothing where a step takes microseconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import traceback
from collections.abc import Sequence
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from environments.base import Env, Message, Scenario, unwritable
from steps.core.errors import UserError
from steps.core.progress import measure_turns, progress
from steps.core.records import StopReason, Trajectory, Turn

if TYPE_CHECKING:
    from steps.core.params import Policy
    from steps.llm.client import Client, Reply
from steps.llm.messages import wire

NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of functions, as servers accept them


class Played(NamedTuple):
    """A trajectory, and what it took."""

    trajectory: Trajectory
    input_tokens: int  # as the server counted them
    output_tokens: int
    cost: float
    seconds: float  # of the player's turns; for a model, of its answers, however many were asked at once


class Answered(NamedTuple):
    """One turn of a player."""

    message: Message
    problems: Sequence[str] = ()  # calls that could not be read
    cut_off: bool = False


class Episode:
    """One attempt at one scenario, while it is played."""

    def __init__(self, env: type[Env], data: Any, scenario: Scenario, attempt: int) -> None:
        self.env, self.scenario, self.attempt = env(scenario, data), scenario, attempt
        self.messages = list(scenario.messages)
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        self.error: str | None = None
        self.tokens, self.cost, self.seconds = (0, 0), 0.0, 0.0
        self.asked = self.answered = 0.0  # time.perf_counter() of the latest request and its answer
        self.times: list[tuple[float, float, float]] = []  # of each turn: asked, answered, done

    def take(self, answered: Answered, limit: int) -> None:
        """A turn, and what the environment says to it."""
        said: list[Message] = []
        if not answered.cut_off:
            said = self.env.step(answered.message, answered.problems)
        self.messages += [answered.message, *said]
        self.turns.append(
            Turn(
                prompt_ids=(),
                completion_ids=(),
                logprobs=(),
                message=answered.message,
                observations=tuple(said),
                finish_reason="length" if answered.cut_off else "stop",
            )
        )
        self.times.append((self.asked, self.answered, perf_counter()))
        if answered.cut_off:
            self.stop = "length"
        elif self.env.done:
            self.stop = "done"
        elif len(self.turns) >= limit:
            self.stop = "max_turns"

    def fail(self, problem: Exception) -> None:
        """A failed episode is a record, not the end of the batch."""
        self.stop, self.error = "error", "".join(traceback.format_exception_only(problem)).strip()

    def played(self, prefix: str, policy: str) -> Played:
        assert self.stop is not None
        made = Trajectory(
            id=f"{prefix}-{self.scenario.id}-{self.attempt}",
            scenario_id=self.scenario.id,
            attempt=self.attempt,
            adapter_hash=policy,
            turns=tuple(self.turns),
            stop_reason=self.stop,
            error=self.error,
        )
        return Played(made, *self.tokens, self.cost, self.seconds)


def name(policy: Policy) -> str:
    """What stands in place of an adapter's hash."""
    return policy.endpoint.model if policy.endpoint else policy.kind


def play(
    policy: Policy,
    env: type[Env],
    data: Any,
    attempts: Sequence[tuple[Scenario, int]],  # (scenario, number of the attempt)
    *,
    prefix: str,  # of the trajectories' ids
    max_turns: int | None = None,
) -> list[Played]:
    """Play all attempts, in the order given. UserError where the policy cannot play at all."""
    episodes = [Episode(env, data, scenario, attempt) for scenario, attempt in attempts]
    limit = max_turns or env.max_turns
    began, now = time.time(), perf_counter()
    if policy.endpoint is not None:
        _ask(policy, env, episodes, limit)
    else:
        for done, episode in enumerate(episodes, 1):
            _act(policy.kind, episode, limit)
            progress(done, len(episodes), "episodes")
    failed = [episode for episode in episodes if episode.stop == "error"]
    if failed and len(failed) == len(episodes):
        raise UserError(f"all {len(failed)} episodes of {name(policy)} failed; the first: {failed[0].error}")
    played = [episode.played(prefix, name(policy)) for episode in episodes]
    measure_turns(
        began,
        {
            one.trajectory.fingerprint(): [
                (asked - now, answered - now, done - now) for asked, answered, done in of.times
            ]
            for one, of in zip(played, episodes, strict=True)
        },
    )
    return played


def _act(player: str, episode: Episode, limit: int) -> None:
    """By the environment's own player, with the draws of `Env.play`."""
    rng = Random(f"{player} {episode.attempt} {episode.scenario.id}")
    while episode.stop is None:
        episode.asked = perf_counter()
        try:
            message = getattr(episode.env, player)(episode.messages, rng)
            episode.answered = perf_counter()
            episode.seconds += episode.answered - episode.asked
            episode.take(Answered(message), limit)
        except Exception as problem:
            episode.fail(problem)


def _ask(policy: Policy, env: type[Env], episodes: list[Episode], limit: int) -> None:
    """By a model: every episode is a task of its own."""
    from steps.llm.client import Client, Request, together

    assert policy.endpoint is not None
    endpoint, tools = policy.endpoint, [tool.schema for tool in env.tools().values()]
    done = 0

    async def one(client: Client, episode: Episode) -> None:
        nonlocal done
        while episode.stop is None:
            episode.asked = perf_counter()
            try:
                reply = await client.ask(Request(wire(episode.messages), tools, seed=episode.attempt or None))
                episode.answered = perf_counter()
                told = episode.tokens
                episode.tokens = (told[0] + reply.input_tokens, told[1] + reply.output_tokens)
                episode.cost += reply.cost
                episode.seconds += reply.latency_seconds
                episode.take(read(reply), limit)
            except UserError:
                raise
            except Exception as problem:
                episode.fail(problem)
        done += 1
        progress(
            done, len(episodes), f"episodes, {client.asked} calls" + (f", cost {client.spent:.4g}" * bool(client.spent))
        )

    async def every() -> None:
        async with Client(endpoint) as client:
            await together(one(client, episode) for episode in episodes)

    asyncio.run(every())


def read(reply: Reply) -> Answered:
    """A server's message as a turn. Malformed calls are left out and listed as problems, as in steps/policy/chat.py."""
    calls, problems = [], []
    given = reply.message.get("tool_calls")
    for call in given if isinstance(given, list) else []:
        try:
            called, text = call["function"]["name"], call["function"]["arguments"]
            arguments = text if isinstance(text, dict) else json.loads(text or "{}")
            if not (isinstance(arguments, dict) and NAMES.fullmatch(called)):
                raise ValueError
        except (ValueError, LookupError, TypeError, RecursionError):
            problems.append("a tool call must have the name of a tool, and arguments that are an object in valid JSON")
            continue
        if unwritable(arguments):
            problems.append("a tool call holds characters that are no text, or is nested too deeply")
            continue
        calls.append({"type": "function", "function": {"name": called, "arguments": arguments}})
    text = reply.text.replace("\0", "").encode(errors="replace").decode()
    message: Message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
    return Answered(message, problems, reply.finish_reason == "length")
