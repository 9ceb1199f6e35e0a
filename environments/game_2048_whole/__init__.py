"""Whole games of 2048: from a board of a few tiles until no move is left, or up to a limit of moves.

Tiles and rules are those of game_2048 (environments/game_2048/), which plays a few moves of a game up to a target tile.
Four random moves come before a game: boards of two tiles are so few that splits would have no opening of their own. Here
nothing ends the game early: a larger tile and a higher score are always worth more. The board's size, the limit of
moves, the tile that counts as a success and the weights of the reward are set in tasks_data/game_2048_whole/game.json. The
state shows the score and the legal moves. The scripted reference player is an expectimax that looks `depth` of its own moves
ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any, ClassVar

from environments import base
from environments.base import Component, Message, Scenario, Split
from environments.game_2048 import LARGEST, POWERS, SIZES, Game2048, boards_of, last_board, rules, score_of

OPENING = 4  # random moves before a game
PARTS = ("largest", "score", "invalid")  # of the reward, with weights
TILES = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # rows of an evaluation's table of largest tiles


def foresee(board: rules.Board, depth: int) -> tuple[float, rules.Direction | None]:
    """(value, best move) looking `depth` moves ahead. The tile that appears after the first is a 2 or a 4, those after later
    ones are taken to be a 2: a tenth of the tiles, at twice the work for each move that is looked ahead."""
    best: tuple[float, rules.Direction | None] = (rules.LOST, None)
    for direction in rules.DIRECTIONS:
        moved, score = rules.swipe(board, direction)
        if moved == board:
            continue
        if depth == 1:
            after = rules.expected(moved, 0)
        else:
            cells = rules.empty_cells(moved)
            twos, fours = (
                rules.added(_value(rules.put(moved, *cell, tile), depth - 1) for cell in cells) for tile in (2, 4)
            )
            after = ((1 - rules.FOURS) * twos + rules.FOURS * fours) / len(cells)
        best = max(best, (math.log2(1 + score) * 0.5 + after, direction), key=lambda pair: pair[0])
    return best


@lru_cache(maxsize=200_000)  # many orders of moves lead to the same board
def _value(board: rules.Board, depth: int) -> float:
    """The value of a board to who moves next, where each tile that appears is a 2."""
    best = rules.LOST
    for direction in rules.DIRECTIONS:
        moved, score = rules.swipe(board, direction)
        if moved == board:
            continue
        if depth == 1:
            after = rules.expected(moved, 0)
        else:
            cells = rules.empty_cells(moved)
            after = rules.added(_value(rules.put(moved, *cell, 2), depth - 1) for cell in cells) / len(cells)
        best = max(best, math.log2(1 + score) * 0.5 + after)
    return best


class WholeGame2048(Game2048):
    """One whole game."""

    task = "game_2048_whole"
    keys: ClassVar[set[str]] = {"size", "max_moves", "target", "full", "depth", "weights"}
    max_turns = 800  # 200 moves, each after three turns without one; also bounds max_moves

    @classmethod
    def rules_of(cls, game: dict[str, Any]) -> dict[str, bool]:
        return {
            f"size is from {SIZES[0]} to {SIZES[-1]}": game["size"] in SIZES,
            f"max_moves is from 1 to {cls.max_turns}, the turns of an episode": 0 < game["max_moves"] <= cls.max_turns,
            "target is a power of two from 8 to 131072": game["target"] in POWERS,
            "full is a power of two from 8 to 131072": game["full"] in POWERS,
            "depth is from 1 to 4": game["depth"] in range(1, 5),
            f"weights are for {', '.join(PARTS)}": set(game["weights"]) == set(PARTS),
        }

    @classmethod
    def opening(cls, data: dict[str, Any], number: int) -> rules.Board:
        return rules.start(number, OPENING, data["size"])

    @classmethod
    def is_winnable(cls, data: dict[str, Any], number: int) -> bool:
        """Whether an expectimax that looks one move ahead reaches the target, as `gold` does."""
        return rules.can_be_won(data | {"opening": OPENING, "depth": 1}, number)

    @classmethod
    def from_seed(cls, data: dict[str, Any], split: Split, number: int) -> Scenario:
        size, moves = data["size"], data["max_moves"]
        system = f"2048 on {size}x{size} cells: slide the tiles, equal ones merge. Make large tiles in {moves} moves."
        hidden = {
            "kind": f"{size}x{size}",
            "difficulty": min(5, max(1, data["target"].bit_length() - 5)),
            "seed": number,
            "opening": OPENING,
            **{key: data[key] for key in ("size", "max_moves", "target", "full", "weights")},
        }
        board = cls.opening(data, number)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": described(board, 0)}]
        return Scenario.make(cls.task, split, messages, hidden)

    def state(self) -> str:
        return described(self.board, self.score)

    def ending(self) -> str:
        """The game goes on after the target."""
        return "\nGame over." if self.moves >= self.scenario.data["max_moves"] or not rules.legal(self.board) else ""

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """The reference player: expectimax on the last board shown, `depth` moves deep."""
        return base.use("move", direction=foresee(last_board(messages), self.data["depth"])[1])

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """Expectimax one move deep, on the true board; scenarios are games in which it reaches the target."""
        return base.use("move", direction=rules.expectimax(self.board, 1)[1])

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        """The largest tile and the score, by their logarithms, beside those of the tile `full`; and turns that were lost."""
        full, tile = scenario.data["full"], rules.largest(last_board(messages))
        score = full * (math.log2(full) - 1)  # of one tile `full` made of twos
        measured = {
            "largest": (math.log2(tile) / math.log2(full), LARGEST.replace("the target", f"{full}")),
            "score": (math.log1p(score_of(messages)) / math.log1p(score), f"log score over that of a tile of {full}"),
            "invalid": (
                float(base.count_errors(messages)),
                "moves that change nothing, calls that cannot be read: steps lost",
            ),
        }
        weights = scenario.data["weights"]
        return base.weighed(
            {name: amount for name, (amount, _) in measured.items()},
            {name: (weights[name], why) for name, (_, why) in measured.items()},
        )

    @classmethod
    def decisions(cls, scenario: Scenario, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        """The distribution of the largest tile, for the table of an evaluation: in which share of the games it was this one
        or a larger one. Tiles that the limit of moves keeps out of reach are left out: each move adds at most a 4."""
        tile, most = rules.largest(boards_of(messages)[-1]), 4 * (scenario.data["max_moves"] + OPENING + 2)
        return [(f"tile {size} or larger", tile >= size) for size in TILES if size <= most]


def described(board: rules.Board, score: int) -> str:
    """The board, the score and the legal moves, as the policy sees them."""
    return f"{rules.show(board)}\nscore {score}, legal moves: {', '.join(rules.legal(board)) or 'none'}"
