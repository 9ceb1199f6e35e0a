"""Each shard is played once, whatever becomes of engines."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from addons.fleet.shards import TRIES, Lost, Played, Ready, dispatch
from steps.core.errors import UserError


class FakeEngines:
    """Engines that take a random time for a shard, may join late, and die where a test says so."""

    def __init__(self, engines: int, seed: int, deaths: int = 0, late: int = 0) -> None:
        self.random, self.deaths = random.Random(seed), deaths
        self.joining: list[tuple[int, int]] = [
            (0 if place < engines - late else self.random.randint(1, 5), place) for place in range(engines)
        ]
        self.next, self.now = engines, 0
        self.playing: dict[int, tuple[int, int]] = {}  # engine -> (shard, moment when it ends)
        self.free: set[int] = set()
        self.begun: list[int] = []
        self.unplayed: list[int] = []

    def idle(self) -> list[Ready]:
        return []

    def begin(self, engine: int, shard: int) -> None:
        self.free.remove(engine)
        self.begun.append(shard)
        self.playing[engine] = shard, self.now + self.random.randint(1, 4)

    def news(self, unplayed: int) -> Iterable[Ready | Played | Lost]:
        self.now += 1
        self.unplayed.append(unplayed)
        events: list[Ready | Played | Lost] = []
        for moment, engine in list(self.joining):
            if moment <= self.now:
                self.joining.remove((moment, engine))
                self.free.add(engine)
                events.append(Ready(engine))
        for engine, (shard, end) in list(self.playing.items()):
            if self.deaths and self.random.random() < 0.3:
                self.deaths -= 1
                del self.playing[engine]
                self.joining.append((self.now + 1, self.next))
                self.next += 1
                events.append(Lost(engine, "it was killed"))
            elif end <= self.now:
                del self.playing[engine]
                self.free.add(engine)
                events.append(Played(engine, f"shard {shard}"))
        return events


@pytest.mark.parametrize("engines", [1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_results_are_the_same_whatever_engines_there_are(engines: int, seed: int) -> None:
    fakes = FakeEngines(engines, seed, deaths=seed, late=engines // 2)
    assert dispatch(8, fakes, tries=9) == [f"shard {number}" for number in range(8)]
    assert fakes.deaths == 0 or seed == 0 or len(fakes.begun) > 8
    assert sorted(set(fakes.begun)) == list(range(8))
    assert len(fakes.begun) == 8 + seed - fakes.deaths  # again after each death, and never else
    assert fakes.unplayed[0] == 8


def test_an_engine_that_joins_late_gets_shards() -> None:
    class Late(FakeEngines):
        def begin(self, engine: int, shard: int) -> None:
            super().begin(engine, shard)
            players.append(engine)

    players: list[int] = []
    fakes = Late(1, 0)
    fakes.joining.append((4, 77))
    dispatch(8, fakes)
    assert {0, 77} == set(players)


def test_a_lost_shard_is_played_before_the_others() -> None:
    fakes = FakeEngines(1, 1, deaths=1)
    dispatch(4, fakes)
    place = next(place for place, (a, b) in enumerate(zip(fakes.begun, fakes.begun[1:], strict=False)) if a == b)
    assert fakes.begun[place] == fakes.begun[place + 1]


def test_an_engine_that_always_dies_ends_the_stage_with_its_reason() -> None:
    with pytest.raises(
        UserError, match=rf"{TRIES} engines were lost with shard 1 of 4, the last one because it was killed"
    ):
        dispatch(4, FakeEngines(1, 1, deaths=10**6))


def test_engines_that_never_start_end_the_stage_too() -> None:
    class Stillborn:
        def idle(self) -> list[Ready]:
            return []

        def begin(self, engine: int, shard: int) -> None:
            raise AssertionError("no engine was ready")

        def news(self, unplayed: int) -> Iterable[Lost]:
            return [Lost(1, "the memory ran out")]

    with pytest.raises(UserError, match="engines were lost, the last one because the memory ran out"):
        dispatch(2, Stillborn())


def test_a_shard_that_kills_its_engines_is_named() -> None:
    class Deadly(FakeEngines):
        """Shard 2 kills every engine; the others are played between."""

        def news(self, unplayed: int) -> Iterable[Ready | Played | Lost]:
            for event in super().news(unplayed):
                if isinstance(event, Played) and event.result == "shard 2":
                    self.free.discard(event.engine)
                    self.joining.append((self.now + 1, self.next))
                    self.next += 1
                    yield Lost(event.engine, "of an illegal instruction")
                else:
                    yield event

    with pytest.raises(UserError, match="shard 2 of 40, the last one because of an illegal instruction"):
        dispatch(40, Deadly(3, 5), tries=4)


def test_engines_of_an_earlier_batch_begin_at_once() -> None:
    class Kept(FakeEngines):
        def idle(self) -> list[Ready]:
            self.free.add(9)
            return [Ready(9)]

    fakes = Kept(0, 0)
    assert dispatch(2, fakes) == ["shard 0", "shard 1"]
    assert fakes.unplayed[0] == 2
