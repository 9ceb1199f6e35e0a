"""textarena's games for one player as tasks: `task: textarena:TowerOfHanoi-v0`.

The agent's action is the text that the package asks for, such as `[A C]`. The score is the package's reward. `SOLVED` says
how some games are won, for the gold player. The others can be trained on and evaluated, and their gold player gives up.
Games that need word lists from elsewhere (Wordle, Hangman) want nltk's data first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from environments import base
from environments._stepped import Game, Generators, Stepped, is_observation
from environments.base import Message

HEADING = re.compile(r"^\s*(\[GAME\] ?)?", re.MULTILINE)


def hanoi(towers: dict[str, list[int]]) -> list[str]:
    """Moves that bring all disks from where they are to C."""
    at = {disk: name for name, disks in towers.items() for disk in disks}
    moves: list[str] = []

    def bring(disk: int, target: str) -> None:
        if disk == 0:
            return
        if at[disk] == target:
            bring(disk - 1, target)
            return
        bring(disk - 1, next(name for name in "ABC" if name not in (at[disk], target)))
        moves.append(f"[{at[disk]} {target}]")
        at[disk] = target
        bring(disk - 1, target)

    bring(len(at), "C")
    return moves


# How each of these games is won from the package's own state.
SOLVED: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "GuessTheNumber": lambda state: [f"[{state['game_number']}]"],
    "Mastermind": lambda state: [f"[{' '.join(map(str, state['secret_code']))}]"],
    "TowerOfHanoi": lambda state: hanoi(state["towers"]),
    "LightsOut": lambda state: lights(state["grid"]),
}


def lights(grid: Sequence[Sequence[bool]]) -> list[str]:
    """Presses that put out all lights: the first row by trial, each further row by what the row above leaves on."""
    size = len(grid)
    for first in range(2**size):
        board, presses = [list(row) for row in grid], []
        for row in range(size):
            for column in range(size):
                if (first >> column & 1) if row == 0 else board[row - 1][column]:
                    presses.append(f"[{row} {column}]")
                    for y, x in (
                        (row, column),
                        (row - 1, column),
                        (row + 1, column),
                        (row, column - 1),
                        (row, column + 1),
                    ):
                        if 0 <= y < size and 0 <= x < size:
                            board[y][x] = not board[y][x]
        if not any(map(any, board)):
            return presses
    return []


class TextArenaGame(Game):
    shows_all = by_opening = False  # what a game keeps hidden is its point

    def __init__(self, name: str, seed: int) -> None:
        import textarena

        self.family = name.rpartition("-v")[0]
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
        self.score = max(0.0, float(rewards[0]))
        self.is_won, self.text = self.score >= 1.0, str(infos[0].get("reason") or "The game has ended.")

    def solution(self) -> list[str]:
        solve = SOLVED.get(self.family)
        return solve(self.env.state.game_state) if solve else []


def make(name: str) -> type[Stepped]:
    """The task of a game. ValueError where textarena has none of this name for one player."""
    import textarena

    try:
        game = textarena.make(name)
        game.reset(num_players=1, seed=0)
    except (ValueError, AssertionError, LookupError) as problem:
        raise ValueError(f"textarena has no game {name} for one player that can be played here: {problem}") from None

    class TextArena(Stepped):
        task = f"textarena:{name}"
        max_turns = 20

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

    return TextArena
