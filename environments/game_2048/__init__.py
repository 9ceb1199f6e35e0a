"""2048 up to a target tile: slide all tiles, equal ones that meet merge, and a 2 or a 4 appears.

The board's size, the target, the limit of moves and the weights of the reward are set in tasks_data/game_2048/game.json. A
board is a square of numbers, and a move looks up each of its rows. The tiles that appear depend only on the scenario's seed
and the number of the move, so that all attempts at a scenario have the same luck.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
from collections.abc import Iterable, Sequence
from functools import cache, reduce
from pathlib import Path
from random import Random
from statistics import fmean as mean
from typing import Any, ClassVar, Literal, get_args

from environments import base
from environments.base import Component, Env, Message, Outcome, Scenario, Split, tool

Row = tuple[int, ...]
Board = tuple[Row, ...]
Direction = Literal["up", "down", "left", "right"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
LOST = -100.0  # the value of a board without a legal move: less than any other
FOURS = 0.1  # share of the tiles that appear
IDLE_TURNS = 4  # turns in a row without a move end the game; a player who sees the board needs at most three
WIN = 1.0  # in the mode "win" only the target counts in full
NEARLY = 0.5  # weight of the largest tile, so that failed attempts still differ
LARGEST = "log2 of the largest tile over log2 of the target"
PARTS = ("win", "largest", "score", "empty", "smoothness", "invalid")  # in the mode "shaped", with weights
KEYS = {"size", "target", "opening", "max_moves", "depth", "reward", "weights"}  # of game.json
SIZES = range(3, 9)  # rows and columns of a board
SEEDS = 200_000


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
    return [direction for direction in DIRECTIONS if swipe(board, direction)[0] != board]


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


def corner(board: Board) -> Direction:
    """Left if possible, else down, right, up, which keeps the large tiles in a corner. Used for demonstrations."""
    order: tuple[Direction, ...] = ("left", "down", "right", "up")
    return next((direction for direction in order if swipe(board, direction)[0] != board), "left")


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


def read_board(message: Message) -> Board | None:
    """The board that a message shows, or None."""
    if message["role"] not in ("user", "tool") or base.is_error(message):
        return None
    rows = re.findall(r"^\d+(?: \d+)+$", str(message["content"]), re.MULTILINE)
    board = tuple(tuple(map(int, row.split())) for row in rows)
    return board if rows and {len(row) for row in board} == {len(rows)} else None


def boards_of(messages: Sequence[Message]) -> list[Board]:
    """The boards that the policy was shown, in order."""
    return [board for board in map(read_board, messages) if board]


def last_board(messages: Sequence[Message]) -> Board:
    return next(board for board in map(read_board, reversed(messages)) if board)


def score_of(messages: Sequence[Message]) -> int:
    """The score as the game counts it: the sum of all merged tiles."""
    board, score = boards_of(messages)[0], 0
    for _, arguments, observation in base.tool_calls(messages):
        if after := read_board(observation):
            score += swipe(board, arguments["direction"])[1]
            board = after
    return score


def smoothness(board: Board) -> float:
    """1 - mean |log2 a - log2 b| of neighbours / log2 of the largest tile: 1 if all tiles are equal."""
    lines = [[tile.bit_length() - 1 for tile in line if tile] for line in (*board, *zip(*board, strict=True))]
    gaps = [abs(tile - other) for line in lines for tile, other in itertools.pairwise(line)]
    return 1 - sum(gaps) / len(gaps) / (largest(board).bit_length() - 1) if gaps else 1.0


class Game2048(Env):
    """One game. Plain words, unreadable calls and invalid moves are turns without a move."""

    task: ClassVar[str] = "game_2048"
    sources = ("seed",)
    openings_repeat = True  # within a split, boards of few tiles; splits share none (`split_of`)
    max_turns = 250  # sixty moves, each after three turns without one, and a few more; also bounds max_moves

    def __init__(self, scenario: Scenario, data: Any) -> None:
        super().__init__(scenario, data)
        hidden = scenario.data
        self.board: Board = start(hidden["seed"], hidden["opening"], hidden.get("size", 4))  # earlier runs' have none
        self.moves = 0
        self.score = 0  # as the game counts it: the sum of all merged tiles
        self.idle = 0  # turns in a row without a move

    @classmethod
    def load(cls, folder: Path) -> dict[str, Any]:
        """The rules and the weights of the reward in game.json. ValueError names a rule that they break."""
        path = folder / "game.json"
        game: dict[str, Any] = json.loads(base.read_text(path))
        if set(game) != KEYS:
            raise ValueError(f"{path} holds {', '.join(sorted(KEYS))}; it differs in {sorted(KEYS ^ set(game))}")
        rules = {
            f"size is from {SIZES[0]} to {SIZES[-1]}": game["size"] in SIZES,
            "target is a power of two from 8 to 131072": game["target"] in (2**power for power in range(3, 18)),
            f"max_moves is from 1 to {cls.max_turns}, the turns of an episode": 0 < game["max_moves"] <= cls.max_turns,
            "opening is 0 or more": game["opening"] >= 0,
            "depth is 1 or more": game["depth"] >= 1,
            'reward is "win" or "shaped"': game["reward"] in ("win", "shaped"),
            f"weights are for {', '.join(PARTS)}": set(game["weights"]) == set(PARTS),
        }
        for rule, is_kept in rules.items():
            if not is_kept:
                raise ValueError(f"{path}: {rule}, not {game[rule.split()[0]]}")
        return game

    @classmethod
    def scenarios(cls, data: dict[str, Any], split: Split, count: int, seed: int) -> list[Scenario]:
        scenarios: list[Scenario] = []
        for number in Random(f"{split} {seed}").sample(range(SEEDS), SEEDS if count <= SEEDS else 0):
            if len(scenarios) == count:
                break
            if cls.split_of(data, number) == split and cls.is_winnable(data, number):
                scenarios.append(cls.from_seed(data, split, number))
        if len(scenarios) < count:
            held = f"the split {split} has {len(scenarios)} that can be won" if scenarios else f"there are {SEEDS}"
            raise ValueError(f"{count} scenarios of {cls.task} need as many seeds, and {held}")
        return scenarios

    @classmethod
    def split_of(cls, data: dict[str, Any], number: int) -> Split:
        """By the opening, whichever way it is turned, so that splits share none."""
        return base.split_of(f"game_2048 {same(cls.opening(data, number))}")

    @classmethod
    def cluster(cls, scenario: Scenario, data: Any) -> str:
        """The opening, whichever way it is turned."""
        return show(same(boards_of(scenario.messages)[0]))

    @classmethod
    def opening(cls, data: dict[str, Any], number: int) -> Board:
        """The board that the game of this seed begins with."""
        return start(number, data["opening"], data["size"])

    @classmethod
    def is_winnable(cls, data: dict[str, Any], number: int) -> bool:
        """Whether `gold` succeeds in the game of this seed."""
        return can_be_won(data, number)

    @classmethod
    def from_seed(cls, data: dict[str, Any], split: Split, number: int) -> Scenario:
        target, size = data["target"], data["size"]
        system = (
            f"2048 on {size}x{size} cells: slide the tiles, equal ones merge. "
            f"Reach {target} in {data['max_moves']} moves."
        )
        hidden = {
            "kind": f"target {target}",
            "difficulty": min(5, max(1, target.bit_length() - 5)),
            "seed": number,
            **{key: data[key] for key in ("size", "target", "opening", "max_moves", "reward", "weights")},
        }
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": show(cls.opening(data, number))},
        ]
        return Scenario.make(cls.task, split, messages, hidden)

    @tool
    def move(self, direction: Direction) -> str:
        """Slide all tiles.

        Args:
            direction: where to
        """
        if self.done:
            return base.error("the game is over")
        moved, score = swipe(self.board, direction)
        if moved == self.board:
            return base.error(f"no tile can move {direction}")
        hidden = self.scenario.data
        self.moves += 1
        self.score += score
        self.board = spawn(moved, hidden["opening"] + self.moves + 1, hidden["seed"])
        ending = self.ending()
        self.done = bool(ending)
        return self.state() + ending

    def state(self) -> str:
        """What the policy sees of the game."""
        return show(self.board)

    def ending(self) -> str:
        """The last line of the game's last observation; empty while it goes on."""
        hidden = self.scenario.data
        if largest(self.board) >= hidden["target"]:
            return f"\nYou reached {hidden['target']}."
        return "\nGame over." if self.moves >= hidden["max_moves"] or not legal(self.board) else ""

    def step(self, message: Message, problems: Sequence[str] = ()) -> list[Message]:
        """As in every task, but the game also ends after IDLE_TURNS turns without a move."""
        before = self.moves
        answers = super().step(message, problems)
        self.idle = 0 if self.moves > before else self.idle + 1
        self.done = self.done or self.idle >= IDLE_TURNS
        return answers

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Plays expectimax on the last board shown."""
        return base.use("move", direction=expectimax(last_board(messages), self.data["depth"])[1])

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        return base.use("move", direction=rng.choice(legal(last_board(messages))))

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """Plays expectimax on the true board; scenarios are games that it wins."""
        return base.use("move", direction=expectimax(self.board, self.data["depth"])[1])

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Moves up and down only, even where that is not possible."""
        return base.use("move", direction=rng.choice(("up", "down")))

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        """In the mode "win" 1 for the target, else up to 0.5 for the largest tile; in "shaped" the weighted parts below."""
        target, boards = scenario.data["target"], boards_of(messages)
        won = cls.success(scenario, messages)
        reached = min(1.0, math.log2(largest(boards[-1])) / math.log2(target))
        if scenario.data["reward"] == "win":
            if won:
                return [Component("win", WIN, f"a tile of {target}")]
            return [Component("largest", NEARLY * reached, f"{reached:.3g} × {NEARLY}: {LARGEST}")]
        full = target * (math.log2(target) - 1)  # the score of one target tile made of twos
        measured = {
            "win": (float(won), f"a tile of {target}"),
            "largest": (reached, LARGEST),
            "score": (min(1.0, math.log1p(score_of(messages)) / math.log1p(full)), "log score over that of the target"),
            "empty": (mean(sum(row.count(0) for row in board) / 16 for board in boards), "empty cells: room to move"),
            "smoothness": (mean(map(smoothness, boards)), "neighbours of like size: tiles that will merge"),
            "invalid": (
                float(base.count_errors(messages)),
                "moves that change nothing, calls that cannot be read: steps lost",
            ),
        }
        weights = scenario.data["weights"]
        return [
            Component(name, weights[name] * amount, f"{amount:.3g} × {weights[name]}: {why}")
            for name, (amount, why) in measured.items()
            if amount
        ]

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        """Whether the target was reached."""
        return largest(last_board(messages)) >= int(scenario.data["target"])

    @classmethod
    def anchor_state(cls, scenario: Scenario, messages: Sequence[Message]) -> str:
        """The board, and the moves made: on them depend the tiles that will appear."""
        moves = sum(message["role"] == "tool" and not base.is_error(message) for message in messages)
        return f"{moves} {last_board(messages)}"

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        """No particular result is expected and the optimum is unknown; the game must be played to its end."""
        target = scenario.data["target"]
        endings = (f"\nYou reached {target}.", "\nGame over.")
        shown = [
            str(message["content"]) for message in messages if message["role"] == "tool" and not base.is_error(message)
        ]
        played = any(text.endswith(endings) for text in shown)
        reached = min(1.0, math.log2(largest(last_board(messages))) / math.log2(target))
        return Outcome(required={"play to the end": played}, accuracy=reached)
