"""Plays episodes with policies that are asked in messages, not in tokens: scripted, random, or a model behind a server.

They cannot learn here, because their tokens and logprobs are unknown: their turns have none. `Played` says what they cost.
For comparisons (addons/models/baselines.py) and evaluations (`policy.kind`). A model's episodes run at once, with as
many calls at a time as its endpoint allows. While an environment works, the other episodes wait, unless it is slow
(`Env.lag`): then it works in a thread.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.models.client import Client, Reply, Request, together
from addons.models.section import Endpoint, OnServer
from environments.base import Env, Message, Scenario, unwritable
from environments.kit.pictures import for_openai
from steps.core.errors import UserError
from steps.core.params_sections import SlowTools
from steps.core.progress import progress
from steps.core.records import Trajectory
from steps.sampling.episodes import TOOL_WORKERS, Action, Episode, closing, records
from steps.sampling.wire import wire

if TYPE_CHECKING:
    from steps.core.params import Policy


NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of functions, as servers accept
KIMIS_ID = re.compile(r"functions\.[A-Za-z0-9_-]{1,64}:\d{1,4}")  # which the model writes itself, with each call


class Played(NamedTuple):
    """A trajectory, and what it took."""

    trajectory: Trajectory
    input_tokens: int  # as the server counted them
    output_tokens: int
    cost: float
    seconds: float  # of the player's turns; of a model's answers, summed although they overlap


class MessageEpisode(Episode):
    """An episode of a policy that is asked in messages, and what it took."""

    input_tokens = output_tokens = 0  # as the server counted them
    cost = seconds = 0.0


def name(policy: Policy) -> str:
    """What a trajectory names in place of an adapter's hash."""
    endpoint = OnServer.of(policy).endpoint
    return endpoint.model if endpoint else policy.kind


def on_server(endpoint: Endpoint) -> Policy:
    """The policy that is the model on this server."""
    from steps.core.params import Policy

    return Policy.model_validate({"kind": "openai", "endpoint": endpoint})


def play(
    policy: Policy,
    env: type[Env],
    data: Any,
    attempts: Sequence[tuple[Scenario, int]],  # (scenario, number of the attempt)
    *,
    prefix: str,  # of the trajectories' ids
    max_turns: int | None = None,
    slow: SlowTools | None = None,  # limits of slow environments; None: the defaults
) -> list[Played]:
    """Play all attempts; results are in the same order. UserError where the policy cannot play at all."""
    if env.is_agent:
        raise UserError(
            f"{env.__module__} is an agent of your own, which only the run's own policy can play (policy.kind: vllm): "
            f"{name(policy)} cannot"
        )
    endpoint = OnServer.of(policy).endpoint
    if endpoint is None and not env.has_player(policy.kind):
        raise UserError(env.lacks(policy.kind))
    slow = slow or SlowTools()
    episodes = [
        MessageEpisode(env, data, scenario, attempt, prefix, max_turns, slow.tool_timeout)
        for scenario, attempt in attempts
    ]
    began, start = time.time(), perf_counter()
    with ThreadPoolExecutor(TOOL_WORKERS) as threads, closing(episodes):  # starts no thread before it has work
        if endpoint is not None:
            asyncio.run(ask(endpoint, episodes, threads))
        else:
            each = threads.map if env.lag() else map
            for count, _ in enumerate(each(partial(_act, policy.kind), episodes), 1):
                progress(count, len(episodes), "episodes")
    failed = [episode for episode in episodes if episode.stop_reason == "error"]
    if failed and len(failed) == len(episodes):
        raise UserError(f"all {len(failed)} episodes of {name(policy)} failed; the first: {failed[0].error}")
    trajectories = records(episodes, name(policy), began, start)
    return [
        Played(trajectory, episode.input_tokens, episode.output_tokens, episode.cost, episode.seconds)
        for trajectory, episode in zip(trajectories, episodes, strict=True)
    ]


def _act(player: str, episode: MessageEpisode) -> None:
    """Play an episode by the environment's own player, with the random draws of `Env.play`."""
    rng = Random(f"{player} {episode.attempt} {episode.scenario.id}")
    while episode.stop_reason is None:
        episode.asked = perf_counter()
        with episode.recording_errors():
            message = getattr(episode.env, player)(episode.messages, rng)
            episode.answered = perf_counter()
            episode.seconds += episode.answered - episode.asked
            episode.advance(Action(message))
    episode.env.release()


def shown(episode: Episode) -> list[Message]:
    """An episode's messages with its scenario's pictures as data URLs."""
    return [for_openai(message, episode.scenario.pictures) for message in episode.messages]


async def ask(endpoint: Endpoint, episodes: list[MessageEpisode], threads: ThreadPoolExecutor) -> None:
    """Play episodes by a model behind a server; each episode is a task of its own."""
    finished = 0

    async def converse(client: Client, episode: MessageEpisode) -> None:
        nonlocal finished
        tools = [tool.schema for tool in episode.env.tools().values()]
        while episode.stop_reason is None:
            episode.asked = perf_counter()
            with episode.recording_errors():
                reply = await client.ask(Request(wire(shown(episode)), tools, seed=episode.attempt or None))
                episode.answered = perf_counter()
                episode.input_tokens += reply.input_tokens
                episode.output_tokens += reply.output_tokens
                episode.cost += reply.cost
                episode.seconds += reply.latency_seconds
                action = read_reply(reply)
                if episode.env.limit:
                    await asyncio.get_running_loop().run_in_executor(threads, episode.advance, action)
                else:
                    episode.advance(action)
        episode.env.release()
        finished += 1
        cost = f", cost {client.spent:.4g}" if client.spent else ""
        progress(finished, len(episodes), f"episodes, {client.asked} calls{cost}")

    async with Client(endpoint) as client:
        await together(converse(client, episode) for episode in episodes)


def read_reply(reply: Reply) -> Action:
    """A server's message as a turn. Malformed calls are left out and listed as problems, as in steps/policy/chat.py."""
    calls, problems = [], []
    raw_calls = reply.message.get("tool_calls")
    for raw_call in raw_calls if isinstance(raw_calls, list) else []:
        try:
            function, text = raw_call["function"]["name"], raw_call["function"]["arguments"]
            arguments = text if isinstance(text, dict) else json.loads(text or "{}")
            if not (isinstance(arguments, dict) and NAMES.fullmatch(function)):
                raise ValueError
        except (ValueError, LookupError, TypeError, RecursionError):
            problems.append("a tool call must have the name of a tool, and arguments that are an object in valid JSON")
            continue
        if unwritable(arguments):
            problems.append("a tool call holds characters that are no text, or is nested too deeply")
            continue
        own_id = {"id": raw_call["id"]} if KIMIS_ID.fullmatch(str(raw_call.get("id"))) else {}
        calls.append({"type": "function", "function": {"name": function, "arguments": arguments}} | own_id)
    text = reply.text.replace("\0", "").encode(errors="replace").decode()
    message: Message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
    if isinstance(thoughts := reply.message.get("reasoning"), str) and thoughts.strip():
        message["reasoning"] = thoughts.replace("\0", "").encode(errors="replace").decode().strip()
    return Action(message, problems, is_cut_off=reply.finish_reason == "length")
