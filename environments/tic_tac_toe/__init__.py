"""Tic-tac-toe against a seeded opponent: one move per turn, as X or O, until three in a row or a full board.

A board is a text of nine characters, row by row: X, O or a dot. The opponents (their shares are set in
tasks_data/tic_tac_toe/game.json) are `random`, `minimax`, and `self`, which plays by the rules of the scripted player.
Minimax plays perfectly. It never loses from the empty board, and a random opening can be lost for it before its first move;
its scenarios are openings that perfect play draws, so that it loses none of them. Against it a draw is a success, against
the others a win. The moves of these opponents depend only on the scenario's seed and the board, so that all attempts at a
scenario meet the same opponent. In training `rollout.opponent` seats another one, such as an earlier adapter of the same run
(docs/games.md); evaluations keep those of the scenarios.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from environments import base
from environments.base import Component, Message, Outcome, Scenario, Split, tool
from environments.kit.seeds import by_seed
from environments.kit.two_sided import WAITING, TwoSided, early
from environments.tic_tac_toe import rules

SYSTEM = "Tic-tac-toe: three in a row win. Play an empty cell, 1 to 9, row by row."
ILLEGAL = "an illegal move ends the game"

SEEDS = 300_000  # half of those against `self`, the opponent that is hardest to beat, cannot be won and are left out
DIFFICULTY = {"random": 1, "self": 3, "minimax": 4}  # plus 1 as O, who moves second

ACCURACY = {"win": 1.0, "draw": 0.5}  # how near an ending is to a win, 0 to 1, for judges

REWARD = {  # value, and why
    "win": (1.0, "three in a row"),
    "draw": (0.5, "not lost: half of a win, so that a lost cause is still worth a block"),
    "loss": (0.0, "the opponent has three in a row"),
    "illegal": (-0.5, "clearly worse than a loss: else a lost game would be left by an illegal move"),
    "unfinished": (0.0, "no better than a loss: else not moving would save a lost game"),
    "no_move": (-0.05, "a turn without a move that can be read; small, for the game goes on"),
}
ENDINGS = {"You win.": "win", "Draw.": "draw", "You lose.": "loss"}


def opening(side: str, board: str) -> list[Message]:
    """The messages that begin a game for the side that moves next."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"You are {side}.\n{rules.show(board)}"}]


def read_board(message: Message) -> str:
    """The board that a message shows; an empty text if it shows none."""
    if message["role"] not in ("user", "tool") or base.is_error(message):
        return ""
    rows = re.findall(r"^([XO.]) ([XO.]) ([XO.])$", str(message["content"]), re.MULTILINE)
    return "".join(cell for row in rows for cell in row)


def last_board(messages: Sequence[Message]) -> str:
    return next(board for board in map(read_board, reversed(messages)) if board)


def seen_side(messages: Sequence[Message]) -> str:
    first = next(str(message["content"]) for message in messages if message["role"] == "user")
    return first.removeprefix("You are ")[0]


def result(messages: Sequence[Message]) -> str:
    """win, draw, loss, illegal or unfinished, read from the observations."""
    for message in messages:
        if message["role"] == "tool":
            text = str(message["content"])
            if base.is_error(message):  # may quote the policy, whose claims end nothing
                if text.endswith(f"{ILLEGAL}."):
                    return "illegal"
            elif (ending := text.rpartition("\n")[2]) in ENDINGS:
                return ENDINGS[ending]
    return "unfinished"


class TicTacToe(TwoSided):
    """One game."""

    opponents = tuple(rules.OPPONENTS)

    sources = ("seed",)
    openings_repeat = True  # within a split; splits share none (`openings`)
    max_turns = 6  # five moves at most, and one turn to spare

    def __init__(self, scenario: Scenario, data: Any) -> None:
        super().__init__(scenario, data)
        self.side: str = scenario.data["kind"]
        self.board: str = scenario.data["board"]
        self.opponent = scenario.data["opponent"]

    @classmethod
    def load(cls, folder: Path) -> dict[str, Any]:
        """The opponents and sides of game.json: {"opponents": {name: share}, "sides": [X, O]}; with "draw" also what a draw
        earns, from 0 (as a loss) to 1 (as a win), in place of 0.5. ValueError if invalid."""
        path = folder / "game.json"
        game: dict[str, Any] = json.loads(base.read_text(path))
        shares, sides = game["opponents"], game["sides"]
        if set(shares) - set(rules.OPPONENTS) or min(shares.values(), default=0) < 0 or not sum(shares.values()):
            raise ValueError(f"{path}: opponents are shares of {', '.join(rules.OPPONENTS)}, not {shares}")
        if not sides or set(sides) - set(rules.OTHER):
            raise ValueError(f"{path}: sides are X, O or both, not {sides}")
        if type(draw := game.get("draw", 0.5)) not in (int, float) or not 0 <= draw <= 1:
            raise ValueError(f"{path}: a draw earns 0 to 1, not {draw}")
        if unknown := set(game) - {"opponents", "sides", "draw"}:
            raise ValueError(f"{path}: there is no parameter {', '.join(sorted(unknown))}")
        return game

    @classmethod
    def scenarios(cls, data: dict[str, Any], split: Split, count: int, seed: int) -> list[Scenario]:
        def made(number: int) -> list[Scenario]:
            is_here = base.split_of(f"tic_tac_toe {number}") == split
            return cls.from_seed(data, split, number) if is_here else []

        return by_seed("tic_tac_toe", split, count, seed, SEEDS, made)

    @classmethod
    def from_seed(cls, data: dict[str, Any], split: Split, number: int) -> list[Scenario]:
        """The scenario of a seed in a list, or no scenario where nobody could succeed against this opponent."""
        rng = Random(number)
        side = rng.choice(data["sides"])
        [opponent] = rng.choices(list(data["opponents"]), list(data["opponents"].values()))
        begun = rules.openings(split, side)
        if opponent == "minimax":  # only those that perfect play draws: in others it has moved badly already
            begun = [board for board in begun if rules.value(board, side) == 0]
        board = rng.choice(rules.alike(rng.choice(begun)))
        if rules.best_result(board, side, opponent, number)[0] != (0 if opponent == "minimax" else 1):
            return []
        hidden = {
            "kind": side,
            "difficulty": DIFFICULTY[opponent] + (side == "O"),
            "opponent": opponent,
            "seed": number,
            "board": board,
        }
        hidden |= {"draw": data["draw"]} if "draw" in data else {}
        return [Scenario.make("tic_tac_toe", split, opening(side, board), hidden)]

    @classmethod
    def cluster(cls, scenario: Scenario, data: Any) -> str:
        """The opening, whichever way it is turned, and whoever plays."""
        return rules.alike(scenario.data["board"])[0]

    @tool
    def move(self, cell: int) -> str:
        """Play a cell.

        Args:
            cell: 1 to 9
        """
        if self.done:
            return base.error("the game is over")
        if self.waits:
            return early()
        if not 1 <= cell <= 9 or self.board[cell - 1] != ".":
            self.done = True
            return base.error(f"cell {cell} is {'taken' if 1 <= cell <= 9 else 'not on the board'}: {ILLEGAL}")
        self.board = rules.put(self.board, cell - 1, self.side)
        if not rules.is_over(self.board):
            if self.opponent is None:
                self.waits = True
                return WAITING
            self.board = rules.reply(self.board, rules.OTHER[self.side], self.opponent, self.scenario.data["seed"])
        return self.observe()

    def observe(self) -> str:
        """The board as the policy sees it, and how the game ended if it is over."""
        if not rules.is_over(self.board):
            return rules.show(self.board)
        self.done = True
        ending = {self.side: "You win.", None: "Draw."}.get(rules.winner(self.board), "You lose.")
        return f"{rules.show(self.board)}\n{ending}"

    def view(self, is_first: bool) -> list[Message]:
        if is_first:
            return opening(rules.OTHER[self.side], self.board)
        return [{"role": "tool", "name": "move", "content": rules.show(self.board)}]

    def counter(self, turn: Message | None) -> tuple[str, bool]:
        move = self.called(turn, "move")
        is_legal = move is not None and move.cell - 1 in rules.empty_cells(self.board)
        if is_legal:
            self.board = rules.put(self.board, move.cell - 1, rules.OTHER[self.side])
        else:
            self.board = rules.reply(self.board, rules.OTHER[self.side], "random", self.scenario.data["seed"])
        return self.observe(), is_legal

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Wins if possible, else blocks, else plays centre, corner or side."""
        return base.use("move", cell=rng.choice(rules.rule_cells(last_board(messages), seen_side(messages))) + 1)

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        return base.use("move", cell=rng.choice(rules.empty_cells(last_board(messages))) + 1)

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """Knows the opponent's replies and wins wherever this opponent can be beaten."""
        hidden = self.scenario.data
        return base.use(
            "move", cell=rules.best_result(self.board, self.side, hidden["opponent"], hidden["seed"])[1] + 1
        )

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Plays a taken cell; on an empty board first any cell."""
        taken = [cell for cell in range(9) if self.board[cell] != "."]
        return base.use("move", cell=rng.choice(taken or range(9)) + 1)

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        counts = {result(messages): 1}
        if wasted := base.count_errors(messages) - counts.get("illegal", 0):
            counts["no_move"] = wasted
        draw = scenario.data.get("draw")
        return base.weighed(counts, REWARD if draw is None else REWARD | {"draw": (draw, "not lost")})

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        """Whether the game was won; a draw is enough against minimax, which nobody beats."""
        enough = ("win", "draw") if scenario.data["opponent"] == "minimax" else ("win",)
        return result(messages) in enough

    @classmethod
    def decisions(cls, scenario: Scenario, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        """Whether the game was drawn or won, by the opponent, for the table of an evaluation. Against minimax, which loses
        none of its scenarios, nobody does better than to draw all of them. An illegal move is a loss here."""
        return [(f"not lost to {scenario.data['opponent']}", result(messages) in ("win", "draw"))]

    @classmethod
    def anchor_state(cls, scenario: Scenario, messages: Sequence[Message]) -> str:
        """The board."""
        return last_board(messages)

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        """No particular result is expected and the optimum is unknown; the game must be played to its end."""
        ending = result(messages)
        played = ending in ENDINGS.values()
        return Outcome(required={"play to the end": played}, accuracy=ACCURACY.get(ending, 0.0))
