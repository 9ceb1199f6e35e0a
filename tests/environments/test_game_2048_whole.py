"""Whole games of 2048: they go on after the target; the size of the board, what the state says, and the reference player."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from environments.base import Message, Scenario, use
from environments.game_2048 import last_board, score_of
from environments.game_2048.rules import Board, expected, expectimax, largest, legal, swipe
from environments.game_2048_whole import WholeGame2048, described, foresee
from tests.conftest import ROOT

DATA = ROOT / "tasks_data" / "game_2048_whole"
GAME: dict[str, Any] = WholeGame2048.load(DATA)


def game(seed: int = 1, **changes: Any) -> tuple[Scenario, WholeGame2048]:
    scenario = WholeGame2048.from_seed(GAME | changes, "train", seed)
    return scenario, WholeGame2048(scenario, GAME | changes)


def total(board: Board) -> int:
    return sum(map(sum, board))


@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_game_begins_after_a_few_moves_on_a_board_of_its_size(size: int) -> None:
    scenario, env = game(size=size)
    board = last_board(scenario.messages)
    assert board == env.board
    assert [len(row) for row in board] == [size] * size
    assert 4 <= sum(map(sum, board)) // 2 <= 12  # two tiles and four more, each a 2 or a 4
    assert scenario.data["kind"] == f"{size}x{size}"


def test_the_state_has_the_score_and_the_legal_moves() -> None:
    _, env = game()
    env.board = ((2, 2, 4, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    text = env.call("move", {"direction": "left"})
    lines = text.splitlines()
    assert lines[0].startswith("4 4")
    assert lines[4] == f"score 4, legal moves: {', '.join(legal(env.board))}"
    stuck: Board = ((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 4), (4, 2, 4, 2))
    assert described(stuck, 8).endswith("score 8, legal moves: none")


def test_the_game_goes_on_after_the_target() -> None:
    _, env = game(target=64)
    env.board = ((32, 32, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    text = env.call("move", {"direction": "left"})
    assert largest(env.board) == 64
    assert not env.done
    assert "You reached" not in text


@pytest.mark.parametrize(("seed", "size"), [(1, 3), (2, 4), (3, 4)])
def test_a_game_ends_with_its_limit_of_moves_or_without_a_legal_one(seed: int, size: int) -> None:
    scenario, env = game(seed, size=size)
    messages = env.play("random")
    text = str(messages[-1]["content"])
    assert text.endswith("\nGame over.")
    assert env.moves == scenario.data["max_moves"] or not legal(env.board)
    assert score_of(messages) == env.score
    assert f"score {env.score}," in text
    assert WholeGame2048.outcome(scenario, messages).required == {"play to the end": True}


def test_the_reward_rises_with_the_largest_tile_and_the_score() -> None:
    """The longer of two games by the same player, from the same seed."""
    means = []
    for moves in (20, 60, 200):
        scenario, env = game(max_moves=moves)
        means.append(sum(part.value for part in WholeGame2048.reward(scenario, env.play("gold"))))
    assert means == sorted(means)
    assert means[0] < means[1] < means[2]


def test_the_reward_by_hand() -> None:
    scenario, env = game(full=64)
    env.board = ((16, 16, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    begin: Message = {"role": "user", "content": described(env.board, 0)}
    messages = [begin, use("move", direction="right")]
    messages += env.step(messages[-1])
    messages.append(use("move", direction="sideways"))
    messages += env.step(messages[-1])
    parts = {part.name: part.value for part in WholeGame2048.reward(scenario, messages)}
    # log2 32 / log2 64, and log 33 / log 321: the score of one 64 made of twos is 64 × 5
    assert parts == pytest.approx({"largest": 5 / 6, "score": 0.5 * 3.4965076 / 5.7714411, "invalid": -0.05})


def test_the_distribution_of_the_largest_tile() -> None:
    scenario, _ = game()
    board: Board = ((128, 2, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    rows = dict(WholeGame2048.decisions(scenario, [{"role": "user", "content": described(board, 0)}]))
    assert [kind for kind, is_right in rows.items() if is_right] == [f"tile {size} or larger" for size in (32, 64, 128)]
    assert list(rows)[-1] == "tile 512 or larger", "200 moves add at most 800"


# --- The reference player


def plain(board: Board, depth: int, fours: bool = True) -> float:
    """The value that `foresee` should give, with nothing kept: the best move's score and what follows, on average."""
    values = []
    for direction in legal(board):
        moved, score = swipe(board, direction)
        tiles = ((2, 0.9), (4, 0.1)) if fours else ((2, 1.0),)
        gain = expected(moved, 0)
        if depth > 1:
            cells = [
                (row, column) for row in range(len(moved)) for column in range(len(moved)) if not moved[row][column]
            ]
            gain = 0.0
            for row, column in cells:
                for tile, weight in tiles:
                    after = [list(line) for line in moved]
                    after[row][column] = tile
                    gain += weight * plain(tuple(map(tuple, after)), depth - 1, fours=False) / len(cells)
        values.append(gain + 0.5 * math.log2(1 + score))
    return max(values, default=-100.0)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_foresee_is_expectimax(depth: int) -> None:
    """A crowded board, so that the plain recursion is quick; one move deep it is the expectimax of game_2048."""
    board: Board = ((2, 4, 8, 16), (4, 8, 16, 32), (8, 16, 32, 64), (2, 2, 4, 0))
    value, direction = foresee(board, depth)
    assert value == pytest.approx(plain(board, depth))
    assert direction in legal(board)
    if depth == 1:
        assert (value, direction) == expectimax(board, 1)


def test_the_reference_and_gold_beat_random_moves() -> None:
    """The first 60 moves of three games, by score."""
    scores: dict[str, list[int]] = {"scripted": [], "gold": [], "random": []}
    for seed in (1, 2, 3):
        for player, kept in scores.items():
            _, env = game(seed, max_moves=60, depth=2)
            kept.append(score_of(env.play(player)))
    assert sum(scores["scripted"]) > sum(scores["random"])
    assert sum(scores["gold"]) > sum(scores["random"])


# --- The data


def test_scenarios_are_games_that_gold_wins() -> None:
    for scenario in WholeGame2048.scenarios(GAME, "val", 3, 1):
        messages = WholeGame2048(scenario, GAME).play("gold")
        assert WholeGame2048.success(scenario, messages)
        assert scenario.task == "game_2048_whole"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"size": 9}, "size is from 3 to 8"),
        ({"max_moves": 801}, "max_moves is from 1 to 800"),
        ({"depth": 5}, "depth is from 1 to 4"),
        ({"target": 100}, "target is a power of two"),
        ({"full": 1}, "full is a power of two"),
        ({"weights": {}}, "weights are for largest, score, invalid"),
        ({"opening": 3}, "it differs in"),
    ],
)
def test_rules_that_are_broken_are_named(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    (tmp_path / "game.json").write_text(json.dumps(GAME | change))
    with pytest.raises(ValueError, match=expected):
        WholeGame2048.load(tmp_path)
