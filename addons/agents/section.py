"""What params.yaml holds for your own agents."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steps.core.section import AddOnSection, MoreFields

Grammar = Literal["exact", "free", "off"]


class Agents(AddOnSection):
    """How your own agents (a module with a function `rollout`) are run; tasks with an `Env` read none of it."""

    concurrency: int = Field(64, ge=1, le=4096)
    """Most episodes under way at the same time."""
    clients: int = Field(1, ge=0, le=64)
    """Processes on this machine that run the agents. 0: only clients elsewhere (`python -m addons.agents.client`)."""
    episode_seconds: float = Field(600, gt=0)
    """Time limit of an episode, after which it has failed."""
    retries: int = Field(2, ge=0, le=10)
    """How often an episode begins again whose client was lost. An exception in the agent is no such loss: it is recorded."""
    heartbeat_seconds: float = Field(10, gt=0)
    """Silence after which a client counts as lost."""
    python: str | None = Field(None, min_length=1)
    """The interpreter that runs the agents, such as that of an environment of their own. None: this project's."""


class Grammars(MoreFields):
    """Of the section `rollout`."""

    grammar: Grammar = "exact"
    """Of turns for which your own agents ask for a JSON schema, or for a call. exact: sampled under the grammar and trained
    on, with probabilities among the tokens that it allowed (addons/agents/grammar.py). free: sampled without it, so that
    the agent's own check refuses what does not fit, and the policy learns the form. off: sampled under it, and not trained
    on."""
