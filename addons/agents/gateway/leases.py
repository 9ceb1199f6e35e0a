"""Which client plays which episode: clients register, lease episodes, are heard, lost, and report.

A lease is one execution of an episode by one client; each episode's leases are numbered from 1. An execution is lost when
its client has been silent for `heartbeat_seconds`, has left, or says that the process which ran it died. The episode then
waits for another client, and begins before all that come after it. What the first client reports after that is late, and is
refused: so every episode ends exactly once.

This class reads no clock, file or socket. `now` is in seconds of any clock that never goes back; the caller does what the
methods return, and calls `sweep` about once a second.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LONGEST_REASON = 200  # characters of an error by which failures are counted
NOBODY = ""  # has an execution after the gateway's restart, until its client registers again


class Loss(NamedTuple):
    """An execution that is over without a report."""

    episode: str
    lease: int
    error: str | None  # None: the episode waits for another client. Otherwise it has ended with this error


@dataclass
class Client:
    """A client that is registered."""

    name: str
    capacity: int  # most episodes at the same time
    heard: float  # when it last asked for anything
    ended: int = 0  # episodes that it has reported
    held: dict[str, int] = field(default_factory=dict)  # episode -> lease


class Running(NamedTuple):
    """An execution under way."""

    client: str
    lease: int
    began: float


class Leases:
    """The episodes of a batch, and the clients that play them."""

    def __init__(
        self,
        episodes: Sequence[str],  # in the order in which they begin
        concurrency: int,  # most episodes under way
        retries: int,  # how often an episode begins again after a loss
        heartbeat_seconds: float,  # silence after which a client is lost
        clients: int = 0,  # that are about to register, because the stage starts them
    ) -> None:
        self.episodes, self.concurrency, self.retries = list(episodes), concurrency, retries
        self.heartbeat_seconds, self.awaited = heartbeat_seconds, clients
        self.places = {episode: place for place, episode in enumerate(episodes)}
        self.waiting = list(range(len(self.episodes)))  # a heap of places
        self.numbers: Counter[str] = Counter()  # the latest lease of each episode
        self.losses: Counter[str] = Counter()  # that count against `retries`
        self.suspects: set[str] = set()  # were in a process that died: a client runs them alone, to spare the others
        self.running: dict[str, Running] = {}
        self.ended: dict[str, str | None] = {}  # with the error, if it failed
        self.failures: Counter[str] = Counter()  # by reason
        self.clients: dict[str, Client] = {}
        self.registered: set[str] = set()  # clients that were ever there
        self.swept: float | None = None

    # --- Going on after the gateway was killed; called before any client is there

    def restore_ended(self, episode: str, error: str | None) -> None:
        """The episode had ended."""
        self._take(episode)
        self._end(episode, error)

    def restore_lease(self, episode: str, lease: int, lost: int, now: float) -> None:
        """The episode was under way. Its client may register again and go on, within `heartbeat_seconds` from now."""
        self._take(episode)
        self.numbers[episode], self.losses[episode] = lease, lost
        self.running[episode] = Running(NOBODY, lease, now)

    def _take(self, episode: str) -> None:
        del self.waiting[bisect_left(self.waiting, self.places[episode])]  # sorted until the first lease

    # --- What clients say

    def register(self, client: str, name: str, capacity: int, now: float, held: Iterable[tuple[str, int]] = ()) -> None:
        """A client is there, for the first time or again. `held` are the executions (episode, lease) that it has under way:
        those that nobody has since the gateway's restart become its own again. ValueError for a capacity below 1."""
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        entry = self.clients.setdefault(client, Client(name, capacity, now))
        entry.name, entry.capacity, entry.heard = name, capacity, now
        self.registered.add(client)
        for episode, lease in held:
            running = self.running.get(episode)
            if running is not None and running.lease == lease and running.client == NOBODY:
                self.running[episode] = running._replace(client=client)
                entry.held[episode] = lease

    def knows(self, client: str) -> bool:
        """Whether a client is registered. One that was lost must register again."""
        return client in self.clients

    def heartbeat(self, client: str, held: Iterable[tuple[str, int]], now: float) -> list[tuple[str, int]]:
        """A client is alive; of the executions that it has under way, those that it can stop, because they are no longer its
        own. KeyError for a client that is not registered."""
        entry = self.clients[client]
        entry.heard = now
        return [(episode, lease) for episode, lease in held if entry.held.get(episode) != lease]

    def missing(self, client: str, held: Iterable[tuple[str, int]], now: float) -> list[Loss]:
        """Executions that a client was given and does not have, because the answer to its request for leases was lost. They
        wait again. To be called with each request for leases: a client makes one at a time, and says in it what it has.
        KeyError for a client that is not registered."""
        entry = self.clients[client]
        entry.heard = now
        kept = set(held)
        gone = [episode for episode, lease in entry.held.items() if (episode, lease) not in kept]
        return [self._lose(episode, None) for episode in gone]

    def lease(self, client: str, free: int, now: float) -> list[tuple[str, int]]:
        """Up to `free` episodes for a client, each with the number of its new lease; none while `concurrency` are under way.
        KeyError for a client that is not registered."""
        entry = self.clients[client]
        entry.heard = now
        count = min(free, entry.capacity - len(entry.held), self.concurrency - len(self.running), len(self.waiting))
        given = []
        for _ in range(count):
            episode = self.episodes[heapq.heappop(self.waiting)]
            self.numbers[episode] += 1
            lease = entry.held[episode] = self.numbers[episode]
            self.running[episode] = Running(client, lease, now)
            given.append((episode, lease))
        return given

    def report(self, episode: str, lease: int, now: float, error: str | None = None) -> bool:
        """An execution has come to a result, or to an error. False where it is late: the lease is not the current one, or
        the episode has ended."""
        running = self.running.get(episode)
        if running is None or running.lease != lease:
            return False
        if (entry := self._release(episode)) is not None:
            entry.heard = now
            entry.ended += 1
        self._end(episode, error)
        return True

    def give_back(self, episode: str, lease: int, reason: str | None, now: float) -> Loss | None:
        """A client says that an execution is over without a result. With a reason, the process that ran it has died, which
        counts against `retries`, and makes the episode a suspect. None where it is late."""
        running = self.running.get(episode)
        if running is None or running.lease != lease:
            return None
        if running.client in self.clients:
            self.clients[running.client].heard = now
        if reason is not None:
            self.suspects.add(episode)
        return self._lose(episode, reason)

    def leave(self, client: str) -> list[Loss]:
        """A client goes. What it had under way begins again elsewhere, which does not count against `retries`."""
        if client not in self.clients:
            return []
        losses = [self._lose(episode, None) for episode in list(self.clients[client].held)]
        del self.clients[client]
        return losses

    # --- What time does

    def sweep(self, now: float) -> list[Loss]:
        """Lose the clients that were silent for too long, and what they had under way. Where the gateway itself stood still,
        that is nobody's silence."""
        pause = now - self.swept if self.swept is not None else 0.0
        self.swept = now
        losses = []
        if pause > self.heartbeat_seconds / 2:
            for entry in self.clients.values():
                entry.heard = min(entry.heard + pause, now)
        for client, entry in list(self.clients.items()):
            silence = now - entry.heard
            if silence > self.heartbeat_seconds:
                reason = f"the client {entry.name} was silent for {silence:.0f} seconds"
                losses += [self._lose(episode, reason) for episode in list(entry.held)]
                del self.clients[client]
        for episode, running in list(self.running.items()):
            if running.client == NOBODY and now - running.began > self.heartbeat_seconds:
                losses.append(self._lose(episode, None))
        return losses

    def _lose(self, episode: str, reason: str | None) -> Loss:
        """End an execution. With a reason it counts as a loss, and one too many ends the episode."""
        lease = self.running[episode].lease
        self._release(episode)
        self.losses[episode] += reason is not None
        if self.losses[episode] > self.retries:
            error = f"lost {self.losses[episode]} times, more than agents.retries ({self.retries}) allows: {reason}"
            self._end(episode, error)
            return Loss(episode, lease, error)
        heapq.heappush(self.waiting, self.places[episode])
        return Loss(episode, lease, None)

    def _release(self, episode: str) -> Client | None:
        """Take an execution from its client, who is returned if still registered."""
        entry = self.clients.get(self.running.pop(episode).client)
        if entry is not None:
            del entry.held[episode]
        return entry

    def _end(self, episode: str, error: str | None) -> None:
        self.ended[episode] = error
        if error is not None:
            self.failures[" ".join(error.split())[:LONGEST_REASON]] += 1

    # --- How things stand

    def count_ended(self) -> int:
        return len(self.ended)

    def is_more_expected(self) -> bool:
        """Whether further executions are about to begin: episodes wait, and there is room in the batch and at a client, or
        clients that the stage starts have not come yet. A round in lockstep waits for them."""
        if not self.waiting or len(self.running) >= self.concurrency:
            return False
        has_room = any(len(entry.held) < entry.capacity for entry in self.clients.values())
        return has_room or len(self.registered) < self.awaited

    def status(self, now: float) -> dict[str, Any]:
        """Counts, clients, executions under way, and failures by reason, as JSON. Times are seconds before `now`."""
        return {
            "episodes": len(self.episodes),
            "ended": len(self.ended),
            "queue": len(self.waiting),
            "clients": [
                {
                    "name": entry.name,
                    "capacity": entry.capacity,
                    "under_way": len(entry.held),
                    "ended": entry.ended,
                    "silent": now - entry.heard,
                }
                for entry in self.clients.values()
            ],
            "under_way": [
                {
                    "episode": episode,
                    "lease": running.lease,
                    "seconds": now - running.began,
                    "client": self.clients[running.client].name if running.client in self.clients else NOBODY,
                }
                for episode, running in sorted(self.running.items(), key=lambda pair: self.places[pair[0]])
            ],
            "failures": dict(self.failures.most_common()),
        }
