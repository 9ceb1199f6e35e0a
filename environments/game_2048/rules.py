"""The board of 2048: how tiles slide and appear, what a board is worth, and the best move by looking ahead."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable
from functools import cache, lru_cache, reduce
from random import Random
from typing import Any, Literal, get_args

Row = tuple[int, ...]
Board = tuple[Row, ...]
Direction = Literal["up", "down", "left", "right"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
LOST = -100.0  # the value of a board without a legal move: less than any other
FOURS = 0.1  # share of the tiles that appear


@cache
def slide(row: Row) -> tuple[Row, int]:
    """A row after a move to the left, and the score of its merges. Each tile merges at most once."""
    tiles, score, at = [tile for tile in row if tile], 0, 0
    while at + 1 < len(tiles):
        if tiles[at] == tiles[at + 1]:
            tiles[at : at + 2] = [2 * tiles[at]]
            score += tiles[at]
        at += 1
    return (*tiles, *(0,) * (len(row) - len(tiles))), score


@cache
def slide_back(row: Row) -> tuple[Row, int]:
    """A row after a move to the right, and the score of its merges."""
    moved, score = slide(row[::-1])
    return moved[::-1], score


def swipe(board: Board, direction: Direction) -> tuple[Board, int]:
    """The board before the next tile appears, and the score gained. An invalid move gives the same board."""
    is_column = direction in ("up", "down")
    lines = zip(*board, strict=True) if is_column else board
    moved, scores = zip(*map(slide if direction in ("up", "left") else slide_back, lines), strict=True)
    return (tuple(zip(*moved, strict=True)) if is_column else moved), sum(scores)


def legal(board: Board) -> list[Direction]:
    columns: Board = tuple(zip(*board, strict=True))
    sides = ((slide, columns), (slide_back, columns), (slide, board), (slide_back, board))  # in DIRECTIONS' order
    changes = (any(move(line)[0] != line for line in lines) for move, lines in sides)
    return [direction for direction, is_changed in zip(DIRECTIONS, changes, strict=True) if is_changed]


def largest(board: Board) -> int:
    return max(map(max, board))


def empty_cells(board: Board) -> list[tuple[int, int]]:
    return [(row, column) for row, tiles in enumerate(board) for column, tile in enumerate(tiles) if not tile]


def put(board: Board, row: int, column: int, tile: int) -> Board:
    return (*board[:row], (*board[row][:column], tile, *board[row][column + 1 :]), *board[row + 1 :])


def spawn(board: Board, number: int, seed: int) -> Board:
    """A 2 or a 4 in a random empty cell: the `number`th tile of this seed's game."""
    rng = Random(seed * 10_000 + number)
    return put(board, *rng.choice(empty_cells(board)), 4 if rng.random() < FOURS else 2)


@lru_cache(1 << 14)  # a scenario's is asked for by its split, by whether it can be won, and by its messages
def start(seed: int, opening: int = 0, size: int = 4) -> Board:
    """A board with two tiles after `opening` random moves, or fewer if no move is left."""
    empty = ((0,) * size,) * size
    board, rng = spawn(spawn(empty, 0, seed), 1, seed), Random(f"opening {seed}")
    for number in range(opening):
        if not (possible := legal(board)):
            break
        board = spawn(swipe(board, rng.choice(possible))[0], number + 2, seed)
    return board


def same(board: Board) -> Board:
    """The first of the boards that are the same but for a turn or a reflection."""
    turned, views = board, list[Board]()
    for _ in range(4):
        turned = tuple(zip(*turned[::-1], strict=True))
        views += [turned, turned[::-1]]
    return min(views)


@cache
def worth(row: Row) -> float:
    """The value of a row or column: empty cells, equal neighbours, and tiles in rising or falling order count for it."""
    logs = [tile.bit_length() - 1 if tile else 0 for tile in row]
    steps = [after**2 - before**2 for before, after in itertools.pairwise(logs)]  # squares favour large tiles
    bends = min(sum(step for step in steps if step > 0), -sum(step for step in steps if step < 0))
    tiles = [log for log in logs if log]
    return row.count(0) + 2.0 * sum(tile == other for tile, other in itertools.pairwise(tiles)) - 0.1 * bends


def expectimax(board: Board, depth: int) -> tuple[float, Direction | None]:
    """(value, best move) looking `depth` moves ahead, averaged over the tiles that may appear between them."""
    best: tuple[float, Direction | None] = (LOST, None)
    for direction in DIRECTIONS:
        moved, score = swipe(board, direction)
        if moved != board:
            candidate = (math.log2(1 + score) * 0.5 + expected(moved, depth - 1), direction)
            best = max(best, candidate, key=lambda pair: pair[0])
    return best


def added(values: Iterable[float]) -> float:
    """From left to right, as sum() does not add floats any more since Python 3.12: a tie of two moves stays as it is."""
    return reduce(operator.add, values, 0)


def expected(board: Board, depth: int) -> float:
    """The mean value over the tiles that may appear next."""
    if depth == 0:
        return added(map(worth, board)) + added(map(worth, zip(*board, strict=True)))
    cells = empty_cells(board)
    twos, fours = (added(expectimax(put(board, *cell, tile), depth)[0] for cell in cells) for tile in (2, 4))
    return ((1 - FOURS) * twos + FOURS * fours) / len(cells)


def can_be_won(data: dict[str, Any], seed: int) -> bool:
    """Whether expectimax reaches the target in this game. With a tight limit of moves some games cannot be won."""
    board = start(seed, data["opening"], data["size"])
    for number in range(data["max_moves"]):
        if largest(board) >= data["target"]:
            return number > 0  # but not in the opening
        direction = expectimax(board, data["depth"])[1]
        if direction is None:
            return False
        board = spawn(swipe(board, direction)[0], data["opening"] + number + 2, seed)
    return largest(board) >= int(data["target"])


def show(board: Board) -> str:
    return "\n".join(" ".join(map(str, row)) for row in board)


def smoothness(board: Board) -> float:
    """1 - mean |log2 a - log2 b| of neighbours / log2 of the largest tile: 1 if all tiles are equal."""
    lines = [[tile.bit_length() - 1 for tile in line if tile] for line in (*board, *zip(*board, strict=True))]
    gaps = [abs(tile - other) for line in lines for tile, other in itertools.pairwise(line)]
    return 1 - sum(gaps) / len(gaps) / (largest(board).bit_length() - 1) if gaps else 1.0
