"""Shards: parts of a batch of episodes, each sampled apart from the others, and who plays which.

The bytes of a sampled token depend on what is in the engine's batch beside it. A shard is such a batch, whole: its content
decides its bytes, whichever engine plays it, and whether one engine plays all shards in turn or each has one of its own.

`dispatch` gives shards to engines that come and go. It knows nothing of what they are: addons/fleet/cluster.py has vLLM's
on Ray, the tests have fakes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from steps.core.errors import UserError
from steps.core.progress import say

if TYPE_CHECKING:
    from environments.base import Scenario

    Attempt = tuple[Scenario, int]  # (scenario, number of the attempt)

TRIES = 5  # engines that may be lost with the same shard, or in a row before one is ready


class Ready(NamedTuple):
    """An engine takes a shard."""

    engine: Hashable


class Played(NamedTuple):
    """An engine has played its shard, and takes another."""

    engine: Hashable
    result: Any


class Lost(NamedTuple):
    """An engine has gone, whether it had a shard or not."""

    engine: Hashable
    reason: str


class Engines(Protocol):
    """Where shards are played."""

    def begin(self, engine: Hashable, shard: int) -> None:
        """Have an engine that is ready play a shard."""

    def news(self, unplayed: int) -> Iterable[Ready | Played | Lost]:
        """What has happened since the last call; waits a moment for it. `unplayed` shards are waiting or being played, which
        is how many engines could be used at most."""
        ...


def cut(attempts: Sequence[Attempt], count: int) -> list[list[Attempt]]:
    """The attempts in `count` parts of as many scenarios each, or one more; in their order, and a scenario's attempts
    together. Fewer parts where there are fewer scenarios."""
    groups = [list(group) for _, group in groupby(attempts, key=lambda attempt: attempt[0].id)]
    count = max(1, min(count, len(groups)))
    size, larger = divmod(len(groups), count)
    starts = [place * size + min(place, larger) for place in range(count + 1)]
    return [[attempt for group in groups[start:end] for attempt in group] for start, end in pairwise(starts)]


def dispatch(count: int, engines: Engines, tries: int = TRIES) -> list[Any]:
    """The results of `count` shards, in their order. A shard whose engine is lost is played by another, before all others.

    UserError where `tries` engines are lost with one shard, or in a row before any was ready.
    """
    waiting, results = deque(range(count)), dict[int, Any]()
    idle = dict[Hashable, None]()  # in the order in which they became ready
    playing = dict[Hashable, int]()
    losses, in_a_row = Counter[int](), 0
    while len(results) < count:
        for event in engines.news(count - len(results)):
            if isinstance(event, Lost):
                idle.pop(event.engine, None)
                shard = playing.pop(event.engine, None)
                in_a_row += 1
                if shard is not None:
                    waiting.appendleft(shard)
                    losses[shard] += 1
                most = max(in_a_row, losses[shard] if shard is not None else 0)
                if most >= tries:
                    with_shard = "" if in_a_row >= tries else f" with shard {shard} of {count}"
                    raise UserError(f"{most} engines were lost{with_shard}, the last one because {event.reason}")
                again = "" if shard is None else f"; shard {shard} of {count} is played again"
                say(f"an engine was lost ({event.reason}){again}")
            else:
                if isinstance(event, Played):
                    results[playing.pop(event.engine)] = event.result
                in_a_row = 0
                idle[event.engine] = None
        while idle and waiting:
            engine = next(iter(idle))
            del idle[engine]
            playing[engine] = waiting.popleft()
            engines.begin(engine, playing[engine])
    return [results[shard] for shard in range(count)]
