"""Other packages' environments that take one action a turn: what gymnasium, pettingzoo and textarena share here.

An adapter gives a `Game`, one episode that is opened with a seed, shows itself as text and takes an action as text. This
module makes an `Env` of it: scenarios by seed, the tool `act`, players, and a reward. The reward of a transcript is what the
package says when the transcript's actions are played again from the scenario's seed; words in the transcript claim nothing.

Where the text that an episode starts with tells all that the seed decides (`by_opening`), it decides the split, and each is
used once, so that splits share no opening; elsewhere, as with hidden numbers and opponents, the seed decides. Left out:
actions that are no text, pictures, and rewards before the end.
"""

from __future__ import annotations

import random
import re
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from random import Random
from typing import Any, ClassVar, NamedTuple

from environments import base
from environments.base import Component, Message, Scenario, Split, tool
from environments.bridges.packaged import Packaged

SEEDS = 100_000
SCANNED = 50  # openings that are looked at for each scenario wanted, before there are too few
LONGEST = 500  # characters of an action
SEARCHED = 5_000  # states that gold looks at
ERROR, MOST_ERRORS = -0.05, 20
ACTIONS = "Actions: "


class Refused(ValueError):
    """An action that cannot be taken now: what is wrong, in words without a full stop. The episode is as it was."""


class Game(ABC):
    """One episode. `score` is the package's own measure, about 0 to 1; `is_won` is what counts as a success."""

    rules: str  # of the package's environment, for the system message
    score: float = 0.0
    is_over: bool = False
    is_won: bool = False
    shows_all: ClassVar[bool] = True  # whether the text holds all of the state
    by_opening: ClassVar[bool] = True  # whether the first text tells all that the seed decides

    @abstractmethod
    def show(self) -> str:
        """What the agent sees now."""

    @abstractmethod
    def take(self, action: str) -> None:
        """Take an action, one of `actions` where those are listed. Refused where the package refuses it."""

    def actions(self) -> list[str]:
        """The actions that can be taken; empty where any text is one."""
        return []

    def played(self, choose: Callable[[], str], turns: int) -> list[str]:
        """The actions of a rule for the next one, which plays this episode."""
        path: list[str] = []
        while not self.is_over and len(path) < turns:
            path.append(choose())
            self.take(path[-1])
        return path

    def solution(self) -> list[str] | None:
        """Actions that win from the opening, for the gold player, where the adapter knows them; None: search for them."""
        return None


class Ending(NamedTuple):
    """What the actions of a transcript come to."""

    score: float
    is_won: bool


class Stepped(Packaged):
    """An episode of a package's environment. Adapters set `task` and `open`."""

    sources = ("seed",)
    openings_repeat = True
    max_turns = 30

    @classmethod
    @abstractmethod
    def open(cls, seed: int) -> Game:
        """A new episode."""

    def __init__(self, scenario: Scenario, data: Any) -> None:
        super().__init__(scenario, data)
        self.game = self.open(scenario.data["seed"])
        self._solution: list[str] | None = None

    @classmethod
    def scenarios(cls, data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        made: dict[str, Scenario] = {}
        instances = set[str]()
        rng = Random(f"{split} {seed}")
        if count <= SEEDS:
            for number in rng.sample(range(SEEDS), min(SEEDS, SCANNED * count)):
                game = cls.open(number)
                opening = shown(game)
                instance = opening if game.by_opening else str(number)
                instances.add(instance)
                if base.split_of(f"{cls.task} {instance}") != split or instance in made:
                    continue
                if not cls.is_fair(number):
                    continue
                messages = [{"role": "system", "content": game.rules}, {"role": "user", "content": opening}]
                made[instance] = Scenario.make(cls.task, split, messages, {"seed": number})
                if len(made) == count:
                    return list(made.values())
        raise ValueError(
            f"{cls.task} has no {count} different scenarios for the split {split}: {len(made)} were found among the "
            f"{len(instances)} beginnings of all splits that its seeds gave; ask for fewer"
        )

    @classmethod
    def is_fair(cls, seed: int) -> bool:
        """Whether an opening may be used; adapters leave out what nobody can win."""
        return True

    @tool
    def act(self, action: str) -> str:
        """Take an action.

        Args:
            action: the action, as the rules and the last observation name it
        """
        if self.done:
            return base.error("the episode is over")
        try:
            take(self.game, action)
        except Refused as problem:
            return base.error(str(problem))
        self.done = self.game.is_over
        return shown(self.game)

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        ending = cls.ending(scenario, messages)
        parts = [Component("score", ending.score, f"the score of {cls.task} for these actions")]
        if errors := min(base.count_errors(messages), MOST_ERRORS):
            parts.append(Component("error", ERROR * errors, f"{errors} × {ERROR}: turns without an action"))
        return parts

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        return cls.ending(scenario, messages).is_won

    @classmethod
    def anchor_state(cls, scenario: Scenario, messages: Sequence[Message]) -> str | None:
        """The last observation, where it tells all."""
        if not cls.open(scenario.data["seed"]).shows_all:
            return None
        return next(str(message["content"]) for message in reversed(messages) if is_observation(message))

    @classmethod
    def ending(cls, scenario: Scenario, messages: Sequence[Message]) -> Ending:
        """Plays the actions of a transcript again."""
        taken = [
            str(arguments.get("action"))
            for name, arguments, observation in base.tool_calls(messages)
            if name == "act" and not base.is_error(observation)
        ]
        return replayed(cls, scenario.data["seed"], tuple(taken))

    # Players

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Any of the actions that the last observation lists: nobody knows a script for every environment of a package."""
        listed = next(str(message["content"]) for message in reversed(messages) if is_observation(message))
        actions = listed.rpartition(ACTIONS)[2].splitlines()[0].split(", ") if ACTIONS in listed else ["wait"]
        return base.use("act", action=rng.choice(actions))

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        return base.use("act", action=rng.choice(self.game.actions() or ["wait"]))

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """The next action of a solution that search finds."""
        if self._solution is None:
            self._solution = list(solution(type(self), self.scenario.data["seed"]))
        if not self._solution:
            return self.bad(messages, rng)
        return base.use("act", action=self._solution.pop(0))

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Takes no action at all, turn after turn."""
        return base.words("I cannot do this.")


@lru_cache(maxsize=256)  # reward and success ask for the same
def replayed(env: type[Stepped], seed: int, actions: tuple[str, ...]) -> Ending:
    game = env.open(seed)
    for action in actions:
        if game.is_over:
            break
        try:
            take(game, action)
        except Refused:
            continue
    return Ending(min(1.0, max(-1.0, game.score)), game.is_won)


@lru_cache(maxsize=1024)
def solution(env: type[Stepped], seed: int) -> tuple[str, ...]:
    """Actions that win from a seed's opening: the adapter's, or the shortest by search; empty where none was found. Episodes
    are not copied, which some packages do wrongly, but opened and played again."""
    opened = env.open(seed)
    if (own := opened.solution()) is not None:
        return tuple(own)
    waiting, seen = deque([list[str]()]), {opened.show()}
    while waiting and len(seen) < SEARCHED:
        path = waiting.popleft()
        for action in after(env, seed, path).actions():
            game = after(env, seed, [*path, action])
            if game.is_won:
                return (*path, action)
            if not game.is_over and (text := game.show()) not in seen:
                seen.add(text)
                waiting.append([*path, action])
    return ()


def after(env: type[Stepped], seed: int, path: Sequence[str]) -> Game:
    """The episode of a seed after these actions."""
    game = env.open(seed)
    for action in path:
        game.take(action)
    return game


def take(game: Game, action: str) -> None:
    """Take an action after the checks that all games need. Refused where it is none."""
    action, actions = action.strip(), game.actions()
    if not action or len(action) > LONGEST or not action.isprintable():
        raise Refused(f"an action is a text of 1 to {LONGEST} printable characters")
    if actions and action not in actions:
        raise Refused(f"{action[:60]!r} is no action here; the actions are {', '.join(actions)}")
    game.take(action)


def shown(game: Game) -> str:
    """What the agent sees, with the actions where they can be listed, and whether the episode is over."""
    text = game.show().strip() or "Nothing is shown."
    if game.is_over:
        return f"{text}\nThe episode is over: {'a success' if game.is_won else 'no success'}."
    actions = game.actions()
    return f"{text}\n{ACTIONS}{', '.join(actions)}" if actions else text


def is_observation(message: Message) -> bool:
    return message["role"] in ("user", "tool") and not base.is_error(message)


LOCK = threading.RLock()


class Generators:
    """An episode's own state of Python's and numpy's global generators, for packages that draw from those.

    `with generators.swapped():` puts it in place and afterwards takes it away again, so that other episodes, and everything
    else in the process, draw as if the package did not exist. One thread at a time.
    """

    def __init__(self, seed: int) -> None:
        import numpy as np

        python = random.Random(seed)
        self.states: tuple[Any, Any] = python.getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def swapped(self) -> Iterator[None]:
        import numpy as np

        with LOCK:
            outside = random.getstate(), np.random.get_state()
            random.setstate(self.states[0])
            np.random.set_state(self.states[1])
            try:
                yield
            finally:
                self.states = random.getstate(), np.random.get_state()
                random.setstate(outside[0])
                np.random.set_state(outside[1])


def plain(text: str) -> str:
    """A text without colours and other control sequences of terminals."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
