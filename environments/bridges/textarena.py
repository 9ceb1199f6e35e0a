"""textarena's games for one player as tasks: `task: textarena:TowerOfHanoi-v0`.

The agent's action is the text that the package asks for, such as `[A C]`. The score is the package's reward, and an episode
has five turns more than the package gives it, at most 50; `?turns=200` says otherwise. How some games are won, for the gold
player, is in textarena_solved.py; the others can be trained on and evaluated, and their gold player gives up.
Games that need word lists from elsewhere (Wordle, Hangman) want nltk's data first. Games for several players are refused:
some of them can be begun alone, and are then won by any move.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

from environments import base
from environments.base import Message
from environments.bridges.packages import options_of
from environments.bridges.stepped import Game, Generators, Stepped, is_observation
from environments.bridges.textarena_solved import POLICIES, SOLVED

TURNS = 50  # most turns of an episode
SPARE = 5  # turns beyond the package's own limit, which does not count those that are none
HEADING = re.compile(r"^\s*(\[GAME\] ?)?", re.MULTILINE)
UPSIDE_DOWN = {
    "Bandit": "it pays a wrong button by how much worse than the best it is, and compares the right one with nothing"
}


class TextArenaGame(Game):
    shows_all = by_opening = False  # what a game keeps hidden is its point

    def __init__(self, name: str, seed: int) -> None:
        import textarena

        self.family = family_of(name)
        self.generators = Generators(seed)
        with self.generators.swapped():
            self.env = textarena.make(name)
            self.env.reset(num_players=1, seed=seed)
            self.text = self.read()
        self.rules = "This is a game. Call act with your action, written as the game asks for it, with its brackets."

    def read(self) -> str:
        """What the game has said since it was last read."""
        _, text = self.env.get_observation()
        return HEADING.sub("", str(text)).strip()

    def show(self) -> str:
        return self.text

    def take(self, action: str) -> None:
        with self.generators.swapped():
            self.is_over, _ = self.env.step(action)
            if not self.is_over:
                self.text = self.read()
                return
            rewards, infos = self.env.close()
        reward, reason = rewards[0], infos[0].get("reason")
        if isinstance(reward, str):  # some games swap the two where a move is none
            reward, reason = 0.0, reward
        self.score = max(0.0, float(reward))
        self.is_won, self.text = self.score >= 1.0, str(reason or "The game has ended.")

    @property
    def inner(self) -> Any:
        """The package's environment without its wrappers."""
        env = self.env
        while hasattr(env, "env"):
            env = env.env
        return env

    def solution(self) -> list[str]:
        """By `SOLVED`, or by a rule for the next action, which plays this episode."""
        if solve := SOLVED.get(self.family):
            return solve(self.inner)
        choose = POLICIES.get(self.family)
        return self.played(lambda: choose(self.inner), TURNS) if choose else []


def make(name: str) -> type[Stepped]:
    """The task of a game. ValueError where textarena has none of this name for one player."""
    import textarena

    task = f"textarena:{name}"
    name, options = options_of(name)
    turns = int(options.pop("turns", 0))
    if options:
        raise ValueError(f"{task}: only turns=N can follow the question mark")
    try:
        game = textarena.make(name)
        game.reset(num_players=1, seed=0)
    except Exception as problem:  # of many kinds: some games' modules are no Python 3.11, some lack their files
        raise ValueError(f"{task} cannot be played here by one player: {reason_of(problem)}") from None
    if reason := UPSIDE_DOWN.get(family_of(name)):
        raise ValueError(f"{task} rewards the wrong way round and is not played here: {reason}")
    if not isinstance(game.state, textarena.SinglePlayerState):
        raise ValueError(f"{task} is a game for several players, and only those for one can be played here")

    class TextArena(Stepped):
        max_turns = turns or min((game.state.max_turns or TURNS) + SPARE, TURNS)

        @classmethod
        def open(cls, seed: int) -> Game:
            return TextArenaGame(name, seed)

        def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
            """An action like one that the rules give as an example."""
            rules = next(str(message["content"]) for message in messages if is_observation(message))
            examples = re.findall(r"\[[\w ]{1,20}\]", rules) or ["[1]"]
            return base.use("act", action=rng.choice(examples))

        def random(self, messages: Sequence[Message], rng: Random) -> Message:
            return self.scripted(messages, rng)

    TextArena.task = task
    return TextArena


def family_of(name: str) -> str:
    return re.split(r"-v\d", name)[0]


def reason_of(problem: Exception) -> str:
    """In one line, what a package's error says; of nltk's notice, the command in it."""
    text = str(problem)
    if "nltk.download(" in text:
        data = text.partition("nltk.download(")[2].partition(")")[0].strip("'\"")
        return f"it needs nltk's data: `.venv/bin/python -m nltk.downloader {data}`"
    return f"{type(problem).__name__}: {' '.join(text.split())}"[:300]
