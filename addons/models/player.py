"""Plays episodes by a model behind a server (policy.kind: openai), as many calls at a time as its endpoint allows."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING

from addons.models.client import Client, Reply, Request, together
from environments.base import Message, unwritable
from environments.kit.pictures import for_openai
from steps.core.progress import progress
from steps.sampling.episodes import Action, Episode
from steps.sampling.players import MessageEpisode
from steps.sampling.wire import wire

if TYPE_CHECKING:
    from steps.core.params import Endpoint

NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of functions, as servers accept
KIMIS_ID = re.compile(r"functions\.[A-Za-z0-9_-]{1,64}:\d{1,4}")  # which the model writes itself, with each call


def play(endpoint: Endpoint, episodes: list[MessageEpisode], threads: ThreadPoolExecutor) -> None:
    """Play these episodes to their ends; a slow environment works in the threads."""
    asyncio.run(asked(endpoint, episodes, threads))


def shown(episode: Episode) -> list[Message]:
    """An episode's messages with its scenario's pictures as data URLs."""
    return [for_openai(message, episode.scenario.pictures) for message in episode.messages]


async def asked(endpoint: Endpoint, episodes: list[MessageEpisode], threads: ThreadPoolExecutor) -> None:
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
