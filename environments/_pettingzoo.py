"""pettingzoo's classic games for two as tasks, against a seeded opponent: `task: pettingzoo:connect_four_v3`.

The opponent takes any legal move, drawn from the scenario's seed and the number of the move, so that all attempts at a
scenario meet the same opponent; the seed also decides who begins. Only winning is a success; a draw scores half.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from random import Random
from typing import Any

from environments._stepped import Game, Generators, Stepped, after, solution

SYMBOLS = ".XO"
MOVES = 400  # that the search for a win may try
RULES = {
    "tictactoe": "Tic-tac-toe: three in a row win. You are X. Call act with the number of an empty cell, 0 to 8: column by "
    "column from the left, each from the top.",
    "connect_four": "Connect four: four in a row, in any direction, win. You are X. Call act with the number of a column, "
    "0 to 6; a piece falls to the lowest free cell.",
}


def planes(env: Any, agent: str) -> Any:
    """The board of an observation whose last axis is (own pieces, the opponent's): 0 free, 1 own, 2 the opponent's."""
    seen = env.observe(agent)["observation"]
    return seen[..., 0] + 2 * seen[..., 1]


BOARDS: dict[str, Callable[[Any, str], Any]] = {
    "tictactoe": lambda env, agent: planes(env, agent).T,
    "connect_four": planes,
}


class PettingZooGame(Game):
    by_opening = False  # the seed also decides the opponent's moves

    def __init__(self, env: type[Stepped], name: str, seed: int) -> None:
        self.env_class, self.family, self.seed, self.moves = env, name.rpartition("_v")[0], seed, 0
        self.generators = Generators(seed)
        with self.generators.swapped():
            self.env = importlib.import_module(f"pettingzoo.classic.{name}").raw_env()
            self.env.reset(seed=seed)
        self.rules = RULES.get(
            self.family, f"This is {name} of pettingzoo. Call act with the number of a legal action."
        )
        self.agent = Random(f"side {seed}").choice(self.env.possible_agents)
        self.answer()

    def solution(self) -> list[str] | None:
        return winning(self.env_class, self.seed, [], [MOVES]) or []

    def show(self) -> str:
        rows = BOARDS.get(self.family, planes)(self.env, self.agent)
        return "\n".join(" ".join(SYMBOLS[int(cell)] for cell in row) for row in rows)

    def actions(self) -> list[str]:
        legal = self.env.observe(self.agent)["action_mask"]
        return [] if self.is_over else [str(place) for place, is_legal in enumerate(legal) if is_legal]

    def take(self, action: str) -> None:
        self.move(int(action))
        self.answer()

    def answer(self) -> None:
        """Let the opponent move until it is the agent's turn again."""
        while not self.is_over and self.env.agent_selection != self.agent:
            mask = self.env.observe(self.env.agent_selection)["action_mask"]
            legal = [place for place, is_legal in enumerate(mask) if is_legal]
            self.move(Random(f"move {self.seed} {self.moves}").choice(legal))

    def move(self, place: int) -> None:
        with self.generators.swapped():
            self.env.step(place)
        self.moves += 1
        if any(self.env.terminations.values()) or any(self.env.truncations.values()):
            reward = float(self.env.rewards[self.agent])
            self.is_over, self.is_won, self.score = True, reward > 0, (1 + reward) / 2


def winning(env: type[Stepped], seed: int, path: list[str], budget: list[int]) -> list[str] | None:
    """Moves that win against these answers, or None where none were found with a budget of [moves]: depth first, the same
    move before others, because it makes a row."""
    actions = after(env, seed, path).actions()
    for action in sorted(actions, key=lambda action: action not in path[-1:]):
        budget[0] -= 1
        if budget[0] < 0:
            return None
        game = after(env, seed, [*path, action])
        if game.is_won:
            return [*path, action]
        if not game.is_over and (moves := winning(env, seed, [*path, action], budget)):
            return moves
    return None


def make(name: str) -> type[Stepped]:
    """The task of a game. ValueError where pettingzoo has no such game for two with listed actions."""
    try:
        module = importlib.import_module(f"pettingzoo.classic.{name}")
    except ModuleNotFoundError as problem:
        if problem.name != f"pettingzoo.classic.{name}":
            raise
        raise ValueError(f"pettingzoo has no classic game {name}, such as tictactoe_v3 or connect_four_v3") from None
    game = module.raw_env()
    game.reset(seed=0)
    if len(game.possible_agents) != 2 or "action_mask" not in (game.observe(game.agent_selection) or ()):
        raise ValueError(f"pettingzoo:{name} is not a game for two whose legal actions are listed")

    class PettingZoo(Stepped):
        task = f"pettingzoo:{name}"
        max_turns = 25

        @classmethod
        def open(cls, seed: int) -> Game:
            return PettingZooGame(cls, name, seed)

        @classmethod
        def is_fair(cls, seed: int) -> bool:
            return bool(solution(cls, seed))

    return PettingZoo
