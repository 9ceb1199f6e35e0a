"""2048 up to a target tile: slide all tiles, equal ones that meet merge, and a 2 or a 4 appears.

The board's size, the target, the limit of moves and the weights of the reward are set in tasks_data/game_2048/game.json. A
board is a square of numbers, and a move looks up each of its rows. The tiles that appear depend only on the scenario's seed
and the number of the move, so that all attempts at a scenario have the same luck.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean as mean
from typing import Any, ClassVar

from environments import base
from environments.base import Component, Env, Message, Outcome, Scenario, Split, tool
from environments.game_2048 import rules
from environments.kit.seeds import by_seed

IDLE_TURNS = 4  # turns in a row without a move end the game; a player who sees the board needs at most three
WIN = 1.0  # in the mode "win" only the target counts in full
NEARLY = 0.5  # weight of the largest tile, so that failed attempts still differ
LARGEST = "log2 of the largest tile over log2 of the target"
PARTS = ("win", "largest", "score", "empty", "smoothness", "invalid")  # in the mode "shaped", with weights
POWERS = [2**power for power in range(3, 18)]
SIZES = range(3, 9)  # rows and columns of a board
SEEDS = 200_000


def read_board(message: Message) -> rules.Board | None:
    """The board that a message shows, or None."""
    if message["role"] not in ("user", "tool") or base.is_error(message):
        return None
    rows = re.findall(r"^\d+(?: \d+)+$", str(message["content"]), re.MULTILINE)
    board = tuple(tuple(map(int, row.split())) for row in rows)
    return board if rows and {len(row) for row in board} == {len(rows)} else None


def boards_of(messages: Sequence[Message]) -> list[rules.Board]:
    """The boards that the policy was shown, in order."""
    return [board for board in map(read_board, messages) if board]


def last_board(messages: Sequence[Message]) -> rules.Board:
    return next(board for board in map(read_board, reversed(messages)) if board)


def score_of(messages: Sequence[Message]) -> int:
    """The score as the game counts it: the sum of all merged tiles."""
    board, score = boards_of(messages)[0], 0
    for _, arguments, observation in base.tool_calls(messages):
        if after := read_board(observation):
            score += rules.swipe(board, arguments["direction"])[1]
            board = after
    return score


class Game2048(Env):
    """One game. Plain words, unreadable calls and invalid moves are turns without a move."""

    task: ClassVar[str] = "game_2048"
    keys: ClassVar[set[str]] = {"size", "target", "opening", "max_moves", "depth", "reward", "weights"}  # of game.json
    sources = ("seed",)
    openings_repeat = True  # within a split, boards of few tiles; splits share none (`split_of`)
    max_turns = 250  # sixty moves, each after three turns without one, and a few more; also bounds max_moves

    def __init__(self, scenario: Scenario, data: Any) -> None:
        super().__init__(scenario, data)
        hidden = scenario.data
        size = hidden.get("size", 4)  # earlier runs' have none
        self.board: rules.Board = rules.start(hidden["seed"], hidden["opening"], size)
        self.moves = 0
        self.score = 0  # as the game counts it: the sum of all merged tiles
        self.idle = 0  # turns in a row without a move

    @classmethod
    def load(cls, folder: Path) -> dict[str, Any]:
        """The rules and the weights of the reward in game.json. ValueError names a rule that they break."""
        path = folder / "game.json"
        game: dict[str, Any] = json.loads(base.read_text(path))
        if set(game) != cls.keys:
            raise ValueError(
                f"{path} holds {', '.join(sorted(cls.keys))}; it differs in {sorted(cls.keys ^ set(game))}"
            )
        for rule, is_kept in cls.rules_of(game).items():
            if not is_kept:
                raise ValueError(f"{path}: {rule}, not {game[rule.split()[0]]}")
        return game

    @classmethod
    def rules_of(cls, game: dict[str, Any]) -> dict[str, bool]:
        """Sentence, which begins with a key of game.json -> whether that holds to it."""
        return {
            f"size is from {SIZES[0]} to {SIZES[-1]}": game["size"] in SIZES,
            "target is a power of two from 8 to 131072": game["target"] in POWERS,
            f"max_moves is from 1 to {cls.max_turns}, the turns of an episode": 0 < game["max_moves"] <= cls.max_turns,
            "opening is 0 or more": game["opening"] >= 0,
            "depth is 1 or more": game["depth"] >= 1,
            'reward is "win" or "shaped"': game["reward"] in ("win", "shaped"),
            f"weights are for {', '.join(PARTS)}": set(game["weights"]) == set(PARTS),
        }

    @classmethod
    def scenarios(cls, data: dict[str, Any], split: Split, count: int, seed: int) -> list[Scenario]:
        def made(number: int) -> list[Scenario]:
            is_one = cls.split_of(data, number) == split and cls.is_winnable(data, number)
            return [cls.from_seed(data, split, number)] if is_one else []

        return by_seed(cls.task, split, count, seed, SEEDS, made)

    @classmethod
    def split_of(cls, data: dict[str, Any], number: int) -> Split:
        """By the opening, whichever way it is turned, so that splits share none."""
        return base.split_of(f"game_2048 {rules.same(cls.opening(data, number))}")

    @classmethod
    def cluster(cls, scenario: Scenario, data: Any) -> str:
        """The opening, whichever way it is turned."""
        return rules.show(rules.same(boards_of(scenario.messages)[0]))

    @classmethod
    def opening(cls, data: dict[str, Any], number: int) -> rules.Board:
        """The board that the game of this seed begins with."""
        return rules.start(number, data["opening"], data["size"])

    @classmethod
    def is_winnable(cls, data: dict[str, Any], number: int) -> bool:
        """Whether `gold` succeeds in the game of this seed."""
        return rules.can_be_won(data, number)

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
            {"role": "user", "content": rules.show(cls.opening(data, number))},
        ]
        return Scenario.make(cls.task, split, messages, hidden)

    @tool
    def move(self, direction: rules.Direction) -> str:
        """Slide all tiles.

        Args:
            direction: where to
        """
        if self.done:
            return base.error("the game is over")
        moved, score = rules.swipe(self.board, direction)
        if moved == self.board:
            return base.error(f"no tile can move {direction}")
        hidden = self.scenario.data
        self.moves += 1
        self.score += score
        self.board = rules.spawn(moved, hidden["opening"] + self.moves + 1, hidden["seed"])
        ending = self.ending()
        self.done = bool(ending)
        return self.state() + ending

    def state(self) -> str:
        """What the policy sees of the game."""
        return rules.show(self.board)

    def ending(self) -> str:
        """The last line of the game's last observation; empty while it goes on."""
        hidden = self.scenario.data
        if rules.largest(self.board) >= hidden["target"]:
            return f"\nYou reached {hidden['target']}."
        return "\nGame over." if self.moves >= hidden["max_moves"] or not rules.legal(self.board) else ""

    def step(self, message: Message, problems: Sequence[str] = ()) -> list[Message]:
        """As in every task, but the game also ends after IDLE_TURNS turns without a move."""
        before = self.moves
        answers = super().step(message, problems)
        self.idle = 0 if self.moves > before else self.idle + 1
        self.done = self.done or self.idle >= IDLE_TURNS
        return answers

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Plays expectimax on the last board shown."""
        return base.use("move", direction=rules.expectimax(last_board(messages), self.data["depth"])[1])

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        return base.use("move", direction=rng.choice(rules.legal(last_board(messages))))

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """Plays expectimax on the true board; scenarios are games that it wins."""
        return base.use("move", direction=rules.expectimax(self.board, self.data["depth"])[1])

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Moves up and down only, even where that is not possible."""
        return base.use("move", direction=rng.choice(("up", "down")))

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        """In the mode "win" 1 for the target, else up to 0.5 for the largest tile; in "shaped" the weighted parts below."""
        target, boards = scenario.data["target"], boards_of(messages)
        won = cls.success(scenario, messages)
        reached = min(1.0, math.log2(rules.largest(boards[-1])) / math.log2(target))
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
            "smoothness": (mean(map(rules.smoothness, boards)), "neighbours of like size: tiles that will merge"),
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
        return rules.largest(last_board(messages)) >= int(scenario.data["target"])

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
        reached = min(1.0, math.log2(rules.largest(last_board(messages))) / math.log2(target))
        return Outcome(required={"play to the end": played}, accuracy=reached)
