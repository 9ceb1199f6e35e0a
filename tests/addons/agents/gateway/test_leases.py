"""Every episode ends exactly once, however clients join, fall silent, leave, lose answers, and report late."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from addons.agents.gateway.leases import Leases, Loss

NAMES = ["a", "b", "c", "d"]


def leases(concurrency: int = 8, retries: int = 2, clients: int = 0) -> Leases:
    return Leases(NAMES, concurrency, retries, 10.0, clients)


def test_episodes_begin_in_their_order_within_capacity_and_concurrency() -> None:
    batch = leases(concurrency=3)
    batch.register("x", "first", 2, 0.0)
    batch.register("y", "second", 9, 0.0)
    assert batch.lease("x", 9, 0.0) == [("a", 1), ("b", 1)]
    assert batch.lease("x", 9, 0.0) == []
    assert batch.lease("y", 9, 0.0) == [("c", 1)]
    assert batch.report("b", 1, 1.0)
    assert batch.lease("y", 9, 1.0) == [("d", 1)]
    assert [batch.report(name, 1, 2.0) for name in "acd"] == [True] * 3
    assert batch.count_ended() == 4
    with pytest.raises(KeyError):
        batch.lease("z", 1, 2.0)
    with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
        batch.register("z", "third", 0, 2.0)


def test_a_silent_client_loses_its_episodes_and_its_late_report_is_refused() -> None:
    batch = leases()
    batch.register("x", "first", 2, 0.0)
    assert batch.lease("x", 2, 0.0) == [("a", 1), ("b", 1)]
    batch.register("y", "second", 4, 9.0)
    assert batch.lease("y", 1, 9.0) == [("c", 1)]
    assert batch.sweep(10.0) == []
    assert batch.sweep(10.5) == [Loss("a", 1, None), Loss("b", 1, None)]
    assert not batch.knows("x")
    assert not batch.report("a", 1, 11.0)
    assert batch.lease("y", 2, 11.0) == [("a", 2), ("b", 2)]
    batch.register("x", "first", 2, 12.0, [("a", 1), ("b", 1)])
    assert batch.heartbeat("x", [("a", 1), ("b", 1)], 12.0) == [("a", 1), ("b", 1)]
    assert not batch.report("a", 1, 12.0)
    assert batch.report("a", 2, 12.0)
    assert not batch.report("a", 2, 12.0)


def test_an_episode_that_is_lost_too_often_ends_with_the_reason() -> None:
    batch = leases(retries=1)
    batch.register("x", "first", 1, 0.0)
    assert batch.lease("x", 1, 0.0) == [("a", 1)]
    assert batch.give_back("a", 1, "its process was killed", 1.0) == Loss("a", 1, None)
    assert batch.give_back("a", 1, "its process was killed", 1.0) is None
    assert batch.lease("x", 1, 1.0) == [("a", 2)]
    reason = "lost 2 times, more than agents.retries (1) allows: its process was killed"
    assert batch.give_back("a", 2, "its process was killed", 2.0) == Loss("a", 2, reason)
    assert batch.status(2.0)["failures"] == {reason: 1}
    assert batch.ended == {"a": reason}
    assert batch.suspects == {"a"}


def test_what_a_client_gives_back_without_a_reason_is_no_loss() -> None:
    batch = leases(retries=0)
    batch.register("x", "first", 1, 0.0)
    assert batch.lease("x", 1, 0.0) == [("a", 1)]
    assert batch.give_back("a", 1, None, 1.0) == Loss("a", 1, None)
    assert not batch.suspects
    assert batch.lease("x", 1, 1.0) == [("a", 2)]


def test_leaving_and_lost_answers_do_not_count_as_losses() -> None:
    batch = leases(retries=0)
    batch.register("x", "first", 3, 0.0)
    assert batch.lease("x", 2, 0.0) == [("a", 1), ("b", 1)]
    assert batch.missing("x", [("b", 1)], 1.0) == [Loss("a", 1, None)]
    assert batch.lease("x", 2, 1.0) == [("a", 2), ("c", 1)]
    assert batch.leave("x") == [Loss("b", 1, None), Loss("a", 2, None), Loss("c", 1, None)]
    assert batch.leave("x") == []
    batch.register("y", "second", 3, 2.0)
    assert batch.lease("y", 9, 2.0) == [("a", 3), ("b", 2), ("c", 2)]
    assert batch.ended == {}


def test_after_a_restart_clients_keep_what_they_have() -> None:
    batch = leases(retries=0)
    batch.restore_ended("a", "ValueError: no")
    for name in "bcd":
        batch.restore_lease(name, 4, 0, 100.0)
    assert batch.report("b", 4, 101.0), "it was finished while the gateway was away"
    batch.register("x", "first", 4, 102.0, [("c", 4), ("d", 3), ("a", 1)])
    assert batch.heartbeat("x", [("c", 4), ("d", 3)], 102.0) == [("d", 3)]
    assert batch.sweep(110.5) == [Loss("d", 4, None)], "nobody has it, which is the gateway's fault and no loss"
    assert batch.lease("x", 9, 111.0) == [("d", 5)]
    assert batch.ended == {"a": "ValueError: no", "b": None}


def test_the_gateways_own_pause_is_nobodys_silence() -> None:
    batch = leases()
    batch.register("x", "first", 1, 0.0)
    assert batch.lease("x", 1, 0.0) == [("a", 1)]
    assert batch.sweep(0.5) == []
    assert batch.sweep(60.0) == []
    assert batch.sweep(61.0) == []
    assert batch.sweep(64.0) == []
    assert batch.sweep(68.0) == []
    assert batch.sweep(72.0) == [Loss("a", 1, None)]


def test_rounds_wait_for_those_about_to_begin() -> None:
    batch = leases(concurrency=3, clients=2)
    assert batch.is_more_expected(), "two clients are about to come"
    batch.register("x", "first", 1, 0.0)
    batch.lease("x", 1, 0.0)
    assert batch.is_more_expected(), "one client is about to come"
    batch.register("y", "second", 3, 0.0)
    assert batch.is_more_expected(), "it has room"
    batch.lease("y", 3, 0.0)
    assert not batch.is_more_expected(), "three are under way"
    batch.report("a", 1, 1.0)
    assert batch.is_more_expected()
    batch.lease("x", 1, 1.0)
    batch.report("b", 1, 1.0)
    assert not batch.is_more_expected(), "all have begun"


def test_status_names_clients_queue_episodes_under_way_and_failures() -> None:
    batch = leases(concurrency=2)
    batch.register("x", "first", 4, 0.0)
    batch.lease("x", 4, 0.0)
    batch.report("b", 1, 3.0, "TimeoutError: it took longer\nthan 5 seconds")
    assert batch.status(5.0) == {
        "episodes": 4,
        "ended": 1,
        "queue": 2,
        "clients": [{"name": "first", "capacity": 4, "under_way": 1, "ended": 1, "silent": 2.0}],
        "under_way": [{"episode": "a", "client": "first", "lease": 1, "seconds": 5.0}],
        "failures": {"TimeoutError: it took longer than 5 seconds": 1},
    }


class World:
    """A simulated batch: clients that behave in every bad way, and what the gateway's journal would hold."""

    def __init__(self, seed: int) -> None:
        self.draw, self.now = Random(f"leases {seed}"), 0.0
        self.names = [f"e{number}" for number in range(self.draw.randint(1, 30))]
        self.settings = (self.draw.randint(1, 12), self.draw.randint(0, 3), 10.0)
        self.batch = Leases(self.names, *self.settings)
        self.held: dict[str, list[tuple[str, int]]] = {}  # what each living client really has
        self.capacity: dict[str, int] = {}
        self.ghosts: list[tuple[str, int]] = []  # executions of clients that were lost, which may still report
        self.ended: Counter[str] = Counter()
        self.journal: dict[str, tuple[int, int]] = {}  # episode -> (lease, losses)
        self.errors: dict[str, str | None] = {}
        self.given: set[tuple[str, int]] = set()
        self.restored = 0  # executions that the journal knew at the latest restart

    def lost(self, losses: list[Loss]) -> None:
        for loss in losses:
            if loss.error is not None:
                self.end(loss.episode, loss.error)

    def end(self, episode: str, error: str | None) -> None:
        self.ended[episode] += 1
        self.errors[episode] = error

    def join(self) -> None:
        client = f"c{len(self.capacity)}"
        self.capacity[client], self.held[client] = self.draw.randint(1, 6), []
        self.batch.register(client, client, self.capacity[client], self.now)

    def poll(self, client: str, is_answer_lost: bool) -> None:
        """A client asks for leases, after it has registered again where it must."""
        if not self.batch.knows(client):
            self.batch.register(client, client, self.capacity[client], self.now, self.held[client])
        for execution in self.batch.heartbeat(client, self.held[client], self.now):
            self.held[client].remove(execution)
            self.ghosts.append(execution)
        self.lost(self.batch.missing(client, self.held[client], self.now))
        for episode, lease in self.batch.lease(client, self.draw.randint(0, 6), self.now):
            assert (episode, lease) not in self.given
            self.given.add((episode, lease))
            self.journal[episode] = (lease, self.batch.losses[episode])
            if not is_answer_lost:
                self.held[client].append((episode, lease))

    def report(self, episode: str, lease: int, is_loss: bool) -> None:
        if is_loss:
            loss = self.batch.give_back(episode, lease, "its process died", self.now)
            self.lost([loss] if loss else [])
        elif self.batch.report(episode, lease, self.now, self.draw.choice([None, None, "ValueError: no"])):
            assert self.journal[episode][0] == lease, "a late report was accepted"
            self.end(episode, self.batch.ended[episode])

    def restart(self) -> None:
        """The gateway is killed, and goes on with its journal; clients know nothing of it."""
        self.batch = Leases(self.names, *self.settings)
        for episode, error in self.errors.items():
            self.batch.restore_ended(episode, error)
        for episode, (lease, losses) in self.journal.items():
            if episode not in self.errors:
                self.batch.restore_lease(episode, lease, losses, self.now)
        self.restored = len(self.batch.running)

    def step(self) -> None:
        self.now += self.draw.choice([0.0, 0.2, 1.0, 3.0])
        client = self.draw.choice(list(self.held) or [""])
        match self.draw.choices(
            ["join", "poll", "report", "ghost", "die", "leave", "restart"], [2, 9, 9, 3, 1, 1, 0.5]
        )[0]:
            case "join":
                self.join()
            case "poll" if client:
                self.poll(client, self.draw.random() < 0.1)
            case "report" if client and self.held[client]:
                execution = self.held[client].pop(self.draw.randrange(len(self.held[client])))
                self.report(*execution, is_loss=self.draw.random() < 0.2)
                self.ghosts.append(execution)  # its answer may be lost: it reports again
            case "ghost" if self.ghosts:
                self.report(*self.draw.choice(self.ghosts), is_loss=self.draw.random() < 0.2)
            case "die" if client:
                self.ghosts += self.held.pop(client)
            case "leave" if client:
                self.ghosts += self.held.pop(client)
                self.lost(self.batch.leave(client))
            case "restart":
                self.restart()
        self.lost(self.batch.sweep(self.now))
        assert len(self.batch.running) <= max(self.settings[0], self.restored)
        assert self.batch.count_ended() == len(self.ended) == len(self.errors)

    def finish(self) -> None:
        """From here on all clients that live behave well, and there is at least one."""
        self.now += 1.0
        self.join()
        for _ in range(1000):
            if len(self.ended) == len(self.names):
                return
            self.now += 0.5
            for client, held in self.held.items():
                self.poll(client, is_answer_lost=False)
                for execution in held:
                    self.report(*execution, is_loss=False)
                held.clear()
            self.lost(self.batch.sweep(self.now))
        raise AssertionError("the batch does not end")


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_every_episode_ends_exactly_once_whatever_clients_do(start: int) -> None:
    for seed in range(start, start + 100):
        world = World(seed)
        for _ in range(world.draw.randint(0, 400)):
            world.step()
        world.finish()
        assert world.ended == Counter(world.names), seed
        assert world.batch.ended == world.errors, seed
