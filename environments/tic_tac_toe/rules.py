"""The board of tic_tac_toe: its lines, the value of perfect play, what opponents play, and the openings of each split."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

from environments.base import Split

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
PREFERRED = ((4,), (0, 2, 6, 8), (1, 3, 5, 7))  # centre, corners, sides: ordered by the number of lines through them
EMPTY = "." * 9
OTHER = {"X": "O", "O": "X"}
MARKS = {"X": (0, 2, 4), "O": (1, 3)}  # on the board where a game begins
PARTS: dict[Split, tuple[float, float]] = {"train": (0, 0.4), "val": (0.4, 0.7), "test": (0.7, 1)}  # of all openings


def empty_cells(board: str) -> list[int]:
    return [cell for cell in range(9) if board[cell] == "."]


def put(board: str, cell: int, side: str) -> str:
    return board[:cell] + side + board[cell + 1 :]


@cache
def winner(board: str) -> str | None:
    """X or O if that side has three in a row, else None."""
    for a, b, c in LINES:
        if board[a] == board[b] == board[c] != ".":
            return board[a]
    return None


def is_over(board: str) -> bool:
    return winner(board) is not None or "." not in board


@cache
def value(board: str, side: str) -> int:
    """The value of perfect play to `side`, who moves next: above 0 wins (larger is sooner), below 0 loses."""
    if winner(board):
        return -1 - board.count(".")  # for the side that moved last
    return max((-value(put(board, cell, side), OTHER[side]) for cell in empty_cells(board)), default=0)


def perfect_cells(board: str, side: str) -> list[int]:
    worth = {cell: -value(put(board, cell, side), OTHER[side]) for cell in empty_cells(board)}
    return [cell for cell in worth if worth[cell] == max(worth.values())]


def rule_cells(board: str, side: str) -> list[int]:
    """Win if possible, else block, else centre, corner, side."""
    for who in (side, OTHER[side]):
        if cells := [cell for cell in empty_cells(board) if winner(put(board, cell, who)) == who]:
            return cells
    return next(free for cells in PREFERRED if (free := [cell for cell in cells if board[cell] == "."]))


OPPONENTS: dict[str, Callable[[str, str], list[int]]] = {  # the cells that each opponent chooses from
    "random": lambda board, side: empty_cells(board),
    "minimax": perfect_cells,
    "self": rule_cells,
}


def reply(board: str, side: str, opponent: str, seed: int) -> str:
    """The board after a move of the opponent, who plays `side`."""
    return put(board, Random(f"{seed} {board}").choice(OPPONENTS[opponent](board, side)), side)


def best_result(board: str, side: str, opponent: str, seed: int) -> tuple[int, int]:
    """(best result against this opponent: 1 win, 0 draw, -1 loss; the cell to play) for `side`, who moves next."""
    if opponent == "minimax":  # all its choices are perfect, so they make no difference
        worth = value(board, side)
        return (worth > 0) - (worth < 0), perfect_cells(board, side)[0]
    best = (-2, -1)
    for cell in sorted(empty_cells(board), key=lambda cell: value(put(board, cell, side), OTHER[side])):
        after = put(board, cell, side)
        if not is_over(after):
            after = reply(after, OTHER[side], opponent, seed)
        if is_over(after):
            result = {side: 1, None: 0}.get(winner(after), -1)
        else:
            result = best_result(after, side, opponent, seed)[0]
        best = max(best, (result, cell), key=lambda pair: pair[0])
        if result == 1:
            break
    return best


def alike(board: str) -> list[str]:
    """The boards that are the same but for a turn or a reflection, in order; the first stands for all."""
    turned, views = board, set[str]()
    for _ in range(4):
        turned = "".join(turned[cell] for cell in (6, 3, 0, 7, 4, 1, 8, 5, 2))
        views |= {turned, "".join(turned[cell] for cell in (2, 1, 0, 5, 4, 3, 8, 7, 6))}
    return sorted(views)


@cache
def openings(split: Split, side: str) -> list[str]:
    """The openings of a split in which `side` moves next, one for all that are alike. Splits share none, whoever plays, and
    have the same shares of those that perfect play draws."""
    boards, kinds = [EMPTY], list[str]()
    for marks in range(max(MARKS[side]) + 1):
        kinds += boards if marks in MARKS[side] else []
        after = {alike(put(board, cell, "XO"[marks % 2]))[0] for board in boards for cell in empty_cells(board)}
        boards = sorted(after)
    chosen = list[str]()
    for is_drawn in (True, False):
        kind = [board for board in kinds if (value(board, side) == 0) is is_drawn]
        first, last = (round(bound * len(kind)) for bound in PARTS[split])
        chosen += Random("openings of tic_tac_toe").sample(kind, len(kind))[first:last]
    return chosen


def show(board: str) -> str:
    return "\n".join(" ".join(board[start : start + 3]) for start in (0, 3, 6))
