"""What a rollout function of your own is given: one episode, and where its model is.

Only the standard library and the form of a scenario are imported here: a machine that only runs agents needs little more.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from functools import lru_cache
from typing import Any

from environments.base import Message, Scenario
from environments.kit.pictures import for_openai

# Of OpenAI's client, at 0.5 to 8 seconds from each other: a gateway that starts again is away for less than these take.
RETRIES = 20


@lru_cache(maxsize=1)
def tls() -> Any:
    """The certificates that connections trust, read once: that takes 20 ms, and each episode has a client of its own."""
    try:
        import httpx2
    except ModuleNotFoundError:  # in an environment of the agent's own, with an older openai
        return ssl.create_default_context()
    return httpx2.create_ssl_context()


class Episode:
    """One attempt at one scenario."""

    model = "policy"  # what to name as the model; the gateway has no other

    def __init__(
        self,
        id: str,  # unique in the run
        scenario: Scenario,  # `messages` for the model, `data` for the function alone
        attempt: int,  # counted from 0; attempts at one scenario are compared with each other
        seed: int,  # for random choices of the agent's own: the same in each run
        base_url: str,  # of this episode, for OpenAI's clients: …/v1
        api_key: str,
        seconds: float,  # time limit of the episode
    ) -> None:
        self.id, self.scenario, self.attempt, self.seed = id, scenario, attempt, seed
        self.base_url, self.api_key, self.seconds = base_url, api_key, seconds

    def __repr__(self) -> str:
        return f"Episode({self.id!r})"  # no key

    @property
    def messages(self) -> list[Message]:
        """The scenario's messages, as a list of the function's own; pictures are data URLs, in OpenAI's form."""
        return [dict(for_openai(message, self.scenario.pictures)) for message in self.scenario.messages]

    @property
    def question(self) -> str:
        """The text of the scenario's last message."""
        return str(self.scenario.messages[-1]["content"])

    @property
    def data(self) -> dict[str, Any]:
        """The scenario's data, which the model does not see."""
        return self.scenario.data

    def openai(self, **options: Any) -> Any:
        """A client of the package openai for this episode's model: AsyncOpenAI in an `async def`, else OpenAI.

        It waits for an answer as long as the episode may last, and asks again where the gateway is away. `options` are those
        of the client's class.
        """
        import openai

        try:
            asyncio.get_running_loop()
            kind: Any = openai.AsyncOpenAI
        except RuntimeError:
            kind = openai.OpenAI
        name = "DefaultAsyncHttpx{}Client" if kind is openai.AsyncOpenAI else "DefaultHttpx{}Client"
        transport: Any = getattr(openai, name.format("2"), None) or getattr(openai, name.format(""))
        usual: dict[str, Any] = {"timeout": self.seconds, "max_retries": RETRIES}
        if "http_client" not in options:
            usual["http_client"] = transport(verify=tls())
        return kind(base_url=self.base_url, api_key=self.api_key, **usual | options)

    def log(self, text: object) -> None:
        """Write a line to the client's log, with the episode's name before it, as `print` does in a rollout function."""
        print(text, file=sys.stderr, flush=True)
