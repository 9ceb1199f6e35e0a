"""pettingzoo's classic games for two as tasks, against a seeded opponent: `task: pettingzoo:connect_four_v3`.

The opponent takes any legal move, drawn from the scenario's seed and the number of the move, so that all attempts at a
scenario meet the same opponent; the seed also decides who begins. In go it passes after a pass. Only winning is a success; a
draw scores half, and so does a hand of cards without gain or loss. `key=value` are arguments of the game:
`pettingzoo:go_v5?board_size=5`. How boards and moves are written is in pettingzoo_boards.py; games that are
not there are refused, as are those in which both move at once (rps) or win together (hanabi).
"""

from __future__ import annotations

import importlib
from random import Random
from typing import Any

from environments.bridges.packages import options_of
from environments.bridges.pettingzoo_boards import BOARDS, Board, legal_moves
from environments.bridges.stepped import Game, Generators, Stepped, after, solution

MOVES = 400  # that the search for a win may try


class PettingZooGame(Game):
    by_opening = False  # the seed also decides the opponent's moves

    def __init__(self, env: type[Stepped], name: str, options: dict[str, Any], board: Board, seed: int) -> None:
        self.env_class, self.board, self.seed, self.moves = env, board, seed, 0
        self.generators = Generators(seed)
        with self.generators.swapped():
            self.env = importlib.import_module(f"pettingzoo.classic.{name}").raw_env(**options)
            self.env.reset(seed=seed)
        self.rules = board.rules
        players = self.env.possible_agents
        self.agent = players[0] if board.begins else Random(f"side {seed}").choice(players)
        self.answer()

    def solution(self) -> list[str] | None:
        """By `board.move`, which plays this episode, or by search."""
        if self.board.move is None:
            return winning(self.env_class, self.seed, [], [MOVES]) or []
        return self.played(self.good_move, self.board.turns)

    def good_move(self) -> str:
        assert self.board.move is not None
        with self.asked():
            place = self.board.move(self.env, self.agent)
        return self.board.names(self.env, self.agent, [place])[0]

    def asked(self) -> Any:
        """The package's own generators, and of go the size of this episode's board, which it keeps in its module."""
        if hasattr(self.env, "_overwrite_go_global_variables"):
            self.env._overwrite_go_global_variables(self.env._N)
        return self.generators.swapped()

    def show(self) -> str:
        return self.board.show(self.env, self.agent)

    def legal(self) -> list[int]:
        """Moves of the player whose turn it is."""
        with self.asked():
            return legal_moves(self.env, self.env.agent_selection)

    def actions(self) -> list[str]:
        return [] if self.is_over else self.board.names(self.env, self.agent, self.legal())

    def take(self, action: str) -> None:
        self.move(self.legal()[self.actions().index(action)])
        self.answer()

    def answer(self) -> None:
        """Let the opponent move until it is the agent's turn again."""
        while not self.is_over and self.env.agent_selection != self.agent:
            legal = self.legal()
            drawn_from = self.board.answer(self.env, legal) if self.board.answer else legal
            self.move(Random(f"move {self.seed} {self.moves}").choice(drawn_from))

    def move(self, place: int) -> None:
        with self.asked():
            self.env.step(place)
        self.moves += 1
        if any(self.env.terminations.values()) or any(self.env.truncations.values()):
            reward = float(self.env.rewards[self.agent])
            self.is_over, self.is_won, self.score = True, reward > 0, (1 + reward / self.board.most) / 2


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
    """The task of a game. ValueError where pettingzoo has no such classic game, or none that can be written as text here."""
    task = f"pettingzoo:{name}"
    name, options = options_of(name)
    family = name.rpartition("_v")[0]
    try:
        module = importlib.import_module(f"pettingzoo.classic.{name}")
    except ModuleNotFoundError as problem:
        if problem.name != f"pettingzoo.classic.{name}":
            raise
        raise ValueError(f"pettingzoo has no classic game {name}, such as tictactoe_v3 or connect_four_v3") from None
    if family not in BOARDS:
        raise ValueError(f"{task} is not written as text here: known are games for two by turns, {', '.join(BOARDS)}")
    board = BOARDS[family]
    try:
        module.raw_env(**options)
    except TypeError as problem:
        raise ValueError(f"{task}: {problem}") from None

    class PettingZoo(Stepped):
        max_turns = board.turns

        @classmethod
        def open(cls, seed: int) -> Game:
            return PettingZooGame(cls, name, options, board, seed)

        @classmethod
        def is_fair(cls, seed: int) -> bool:
            return board.move is not None or bool(solution(cls, seed))

    PettingZoo.task = task
    return PettingZoo
