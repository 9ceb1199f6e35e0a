"""How some of textarena's games are won, for the gold player: from the package's own state, which no agent sees.

A solver takes the package's environment (without its wrappers) and gives the actions that win. A game whose next move
depends on what chance brings gives a rule for the next action instead, which plays the episode (`POLICIES`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


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


def lights(grid: Sequence[Sequence[bool]]) -> list[str]:
    """Presses that put out all lights: the first row by trial, each further row by what the row above leaves on."""
    size = len(grid)
    for first in range(2**size):
        board, presses = [list(row) for row in grid], []
        for row in range(size):
            for column in range(size):
                if (first >> column & 1) if row == 0 else board[row - 1][column]:
                    presses.append(f"[{row} {column}]")
                    for y, x in ((row, column), *((row + dy, column + dx) for dy, dx in STEPS.values())):
                        if 0 <= y < size and 0 <= x < size:
                            board[y][x] = not board[y][x]
        if not any(map(any, board)):
            return presses
    return []


def frozen_lake(grid: Sequence[Sequence[str]], start: tuple[int, int]) -> list[str]:
    """The shortest way to G that meets no H."""
    waiting, seen = deque([(start, list[str]())]), {start}
    while waiting:
        (row, column), path = waiting.popleft()
        if grid[row][column] == "G":
            return path
        for name, (down, right) in STEPS.items():
            there = row + down, column + right
            is_inside = 0 <= there[0] < len(grid) and 0 <= there[1] < len(grid)
            if is_inside and there not in seen and grid[there[0]][there[1]] != "H":
                seen.add(there)
                waiting.append((there, [*path, f"[{name}]"]))
    return []


def pegs(board: list[bool], jumps: Sequence[tuple[int, int, int]]) -> list[str] | None:
    """Jumps after which one peg is left; depth first."""
    if sum(board) == 1:
        return []
    for start, over, end in jumps:
        if board[start] and board[over] and not board[end]:
            after = list(board)
            after[start], after[over], after[end] = False, False, True
            if (rest := pegs(after, jumps)) is not None:
                return [f"[{start} {end}]", *rest]
    return None


def countdown(numbers: list[int], target: int) -> list[str] | None:
    """Operations that make the target; the result stands behind the numbers that are left, as the package has it."""
    if target in numbers:
        return []
    for i, first in enumerate(numbers):
        for j, second in enumerate(numbers):
            if i == j:
                continue
            rest = [number for place, number in enumerate(numbers) if place not in (i, j)]
            results = {"+": first + second, "*": first * second} if i < j else {}
            results |= {"-": first - second} if first > second else {}
            results |= {"/": first // second} if second > 1 and first % second == 0 else {}
            for operation, result in results.items():
                if (more := countdown([*rest, result], target)) is not None:
                    return [f"[{i} {j} {operation}]", *more]
    return None


def marks(tables: dict[str, Any]) -> list[str]:
    """All marks of a logic puzzle's tables."""
    return [
        f"[{row} {column} {mark}]"
        for table in tables.values()
        for row, cells in table.items()
        for column, mark in cells.items()
    ]


def letters(solution: Sequence[Sequence[str]]) -> list[str]:
    """The letters of a crossword."""
    cells = ((row, column, cell) for row, line in enumerate(solution) for column, cell in enumerate(line))
    return [f"[{row} {column} {cell}]" for row, column, cell in cells if cell != "."]


def digits(env: Any) -> list[str]:
    """What is missing in a sudoku; rows and columns are counted from 1."""
    return [
        f"[{row + 1} {column + 1} {env.full_grid[row][column]}]"
        for row in range(9)
        for column in range(9)
        if not env.state.game_state["board"][row][column]
    ]


def secretary(draws: Sequence[float]) -> list[str]:
    """Past all values before the largest."""
    return ["[continue]"] * draws.index(max(draws)) + ["[accept]"]


SOLVED: dict[str, Callable[[Any], list[str]]] = {
    "GuessTheNumber": lambda env: [f"[{env.state.game_state['game_number']}]"],
    "Mastermind": lambda env: [f"[{' '.join(map(str, env.state.game_state['secret_code']))}]"],
    "TowerOfHanoi": lambda env: hanoi(env.state.game_state["towers"]),
    "LightsOut": lambda env: lights(env.state.game_state["grid"]),
    "FrozenLake": lambda env: frozen_lake(env.state.game_state["grid"], tuple(env.player_pos)),
    "PegJump": lambda env: pegs(list(env.state.game_state["board"]), env.ALLOWED_MOVES) or [],
    "Countdown": lambda env: countdown(list(env.numbers), env.target) or [],
    "LogicPuzzle": lambda env: marks(env.game_board_solution),
    "Crosswords": lambda env: letters(env.state.game_state["solution"]),
    "Sudoku": digits,
    "Secretary": lambda env: secretary(env.state.game_state["draws"]),
    "ThreeCardMonte": lambda env: [f"[{env.ball_pos}]"],
}


def safe_cell(env: Any) -> str:
    """Of Minesweeper: a hidden cell without a mine. The mines are laid after the first move."""
    cells = ((row, column) for row in range(env.rows) for column in range(env.cols))
    hidden = [(row, column) for row, column in cells if not env.revealed[row][column]]
    row, column = next((row, column) for row, column in hidden if env.first_move or env.grid[row][column] != -1)
    return f"[{row} {column}]"


def slide(env: Any) -> str:
    """Of 2048: down where that changes the board, else left, right, up."""
    board = env.state.game_state["board"]
    columns = [list(column) for column in zip(*board, strict=True)]
    lines = {"Down": [column[::-1] for column in columns], "Left": board}
    lines |= {"Right": [row[::-1] for row in board], "Up": columns}
    return f"[{next((name for name, rows in lines.items() if any(map(moves, rows))), 'Down')}]"


def moves(line: Sequence[int]) -> bool:
    """Whether a line changes when it is pushed to its beginning."""
    tiles = [tile for tile in line if tile]
    return list(line[: len(tiles)]) != tiles or any(first == second for first, second in pairwise(tiles))


POLICIES: dict[str, Callable[[Any], str]] = {
    "Minesweeper": safe_cell,
    "2048": slide,
    "Blackjack": lambda env: "[Hit]" if env._hand_score(env.state.game_state["player_hand"]) < 17 else "[Stand]",
}
