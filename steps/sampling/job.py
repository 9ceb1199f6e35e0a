"""A batch of episodes to play: all that decides its bytes, and nothing of where it is played.

The bytes of a sampled token depend on what is in the engine's batch beside it. A shard is such a batch, whole: its content
decides its bytes, whichever engine plays it, and whether one engine plays all shards in turn or each has one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from steps.core.section import at
from steps.policy import adapter
from steps.policy.loading import turn_limit

if TYPE_CHECKING:
    from pydantic import BaseModel

    from environments.base import Env, Scenario
    from steps.core.params import Evaluate, Policy, Rollout
    from steps.sampling.episodes import Episode

    Attempt = tuple[Scenario, int]  # (scenario, number of the attempt)


class Opponent(Protocol):
    """Who plays the other side of a game (the port `opponent`)."""

    @property
    def adapter(self) -> Path | None: ...

    def check(self, env: type[Env]) -> None:
        """UserError where the environment has no seat for it."""

    def sit_down(self, job: Job, episodes: Sequence[Episode]) -> Any:
        """Take the other side of each episode. What samples its moves (addons/selfplay/rivals.py), or None."""


@dataclass(frozen=True)
class Job:
    """Attempts at scenarios by a policy, in an environment or as the model of an agent of one's own."""

    policy: Policy
    limits: Rollout | Evaluate
    adapter: Path | None  # None: the base model alone
    env: type[Env]
    attempts: Sequence[Attempt]
    prefix: str  # of the trajectories' ids
    seed: int
    data: Any = None  # of the environment
    task_data: Path | None = None  # the folder that `data` was loaded from
    logit_bias: dict[int, float] | None = None  # nats, by token id
    opponent: Opponent | None = None  # on the other side of a game, in place of the scenarios' own
    task: str = ""  # its name, by which agents of one's own are found
    settings: BaseModel | None = None  # what the stage declares, of which a sampler of an add-on reads its own section

    @property
    def shards(self) -> list[Job]:
        """The job in `limits.shards` parts."""
        return [replace(self, attempts=attempts) for attempts in cut(self.attempts, at(self.limits, "shards") or 1)]

    @cached_property
    def max_tokens(self) -> int:
        """The most tokens of a turn."""
        return turn_limit(self.policy, self.limits.max_tokens)

    @cached_property
    def adapter_hash(self) -> str:
        """By which the trajectories name the policy."""
        return adapter.adapter_hash(self.adapter) if self.adapter is not None else "base"


def cut(attempts: Sequence[Attempt], count: int) -> list[list[Attempt]]:
    """The attempts in `count` parts of as many scenarios each, or one more; in their order, and a scenario's attempts
    together. Fewer parts where there are fewer scenarios."""
    groups = [list(group) for _, group in groupby(attempts, key=lambda attempt: attempt[0].id)]
    count = max(1, min(count, len(groups)))
    size, larger = divmod(len(groups), count)
    starts = [place * size + min(place, larger) for place in range(count + 1)]
    return [[attempt for group in groups[start:end] for attempt in group] for start, end in pairwise(starts)]
