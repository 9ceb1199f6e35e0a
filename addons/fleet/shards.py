"""Who plays which shard of a batch (Job.shards), where engines come and go.

`dispatch` knows nothing of what they are: addons/fleet/cluster.py has vLLM's on Ray, the tests have fakes. Ray's own
restarts would keep a shard for the engine that was lost with it, until that has room and its model again; here the next
idle engine plays it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from steps.core.errors import UserError
from steps.core.progress import say

TRIES = 5  # engines that may be lost with the same shard, or in a row before one is ready


class Ready(NamedTuple):
    """An engine takes a shard."""

    engine: int


class Played(NamedTuple):
    """An engine has played its shard, and takes another."""

    engine: int
    result: Any


class Lost(NamedTuple):
    """An engine has gone, whether it had a shard or not."""

    engine: int
    reason: str


class Engines(Protocol):
    """Where shards are played."""

    def idle(self) -> list[Ready]:
        """The engines that are ready at once."""
        ...

    def begin(self, engine: int, shard: int) -> None:
        """Have an engine that is ready play a shard."""

    def news(self, unplayed: int) -> Iterable[Ready | Played | Lost]:
        """What has happened since the last call; waits a moment for it. `unplayed` shards are waiting or being played, which
        is how many engines could be used at most."""
        ...


def dispatch(count: int, engines: Engines, tries: int = TRIES) -> list[Any]:
    """The results of `count` shards, in their order. A shard whose engine is lost is played by another, before all others.

    UserError where `tries` engines are lost with one shard, or in a row before any was ready.
    """
    waiting, results = deque(range(count)), dict[int, Any]()
    idle = dict[int, None]()  # in the order in which they became ready
    playing = dict[int, int]()
    losses, in_a_row = Counter[int](), 0
    events: Iterable[Ready | Played | Lost] = engines.idle()
    while True:
        for event in events:
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
        if len(results) == count:
            return [results[shard] for shard in range(count)]
        while idle and waiting:
            engine = next(iter(idle))
            del idle[engine]
            playing[engine] = waiting.popleft()
            engines.begin(engine, playing[engine])
        events = engines.news(count - len(results))
