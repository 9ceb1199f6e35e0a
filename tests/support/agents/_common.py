"""What the agents share: the address (of a network that fails, where a test wants one), the mailbox, and its tools.

An episode is a scenario of email_search, whose tools the embedded policy can call: see environments/email_search/.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

from environments.base import Env
from environments.email_search import EmailSearch
from environments.kit.agents import Result

TURNS = 4
TIMEOUT = float(os.environ.get("STORM_TIMEOUT", "60"))  # seconds, of a request
RETRIES = int(os.environ.get("STORM_RETRIES", "60"))  # of a request, by the SDK
SCHEMAS: list[Any] = [tool.schema for tool in EmailSearch.tools().values()]


def base_url(episode: Any) -> str:
    """The episode's address, through the proxy at STORM_PROXY where there is one."""
    proxy = os.environ.get("STORM_PROXY")
    if not proxy:
        return str(episode.base_url)
    scheme, _, rest = str(episode.base_url).partition("://")
    return f"{scheme}://{proxy}/{rest.partition('/')[2]}"


@functools.cache
def mailbox() -> Any:
    return EmailSearch.load(Path(__file__).parent.parent.parent.parent / "tasks_data" / "email_search")


def world(episode: Any) -> Env:
    return EmailSearch(episode.scenario, mailbox())


def messages(episode: Any) -> list[Any]:
    """The system prompt and the question."""
    return [dict(message) for message in episode.scenario.messages]


def run(env: Env, name: str, arguments: Any) -> str:
    """What a tool answers, whatever the policy made of its name and arguments."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return "the arguments are not JSON"
    return env.call(name, arguments)


def result(calls: int) -> Result:
    """The number of answers that the agent got."""
    return Result(reward=float(calls % 2), components={"calls": float(calls)})
