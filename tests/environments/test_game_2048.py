"""2048: the rules agree with OpenSpiel's move by move, hand tables of merges, and both rewards."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyspiel
import pytest

import environments
from environments.base import Message, Scenario, Split, is_error, use, words
from environments.game_2048 import Game2048, read_board, score_of
from environments.game_2048.rules import (
    DIRECTIONS,
    Board,
    Direction,
    Row,
    can_be_won,
    expectimax,
    largest,
    legal,
    show,
    slide,
    smoothness,
    spawn,
    start,
    swipe,
)
from tests.conftest import ROOT

DATA = ROOT / "tasks_data" / "game_2048"
SPLITS: tuple[Split, ...] = ("train", "val", "test")
PRESET: dict[str, Any] = Game2048.load(DATA)
GAME: dict[str, Any] = PRESET | {
    "size": 4,
    "target": 64,
    "opening": 27,
    "max_moves": 10,
}  # the boards below have 16 cells
EMPTY: Board = ((0,) * 4,) * 4
STUCK: Board = ((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 4), (4, 2, 4, 2))


def scenario(seed: int = 1, **changes: Any) -> Scenario:
    return Game2048.from_seed(GAME | changes, "train", seed)


def at(board: Board, **changes: Any) -> tuple[Scenario, Game2048]:
    """A game that stands at this board."""
    hidden = scenario(**changes).data
    one = Scenario.make("game_2048", "train", [{"role": "user", "content": show(board)}], hidden)
    env = Game2048(one, GAME)
    env.board = board
    return one, env


def told(board: Board, *turns: Message, **changes: Any) -> tuple[Scenario, list[Message], Game2048]:
    """A transcript of these turns from this board on."""
    one, env = at(board, **changes)
    messages = list(one.messages)
    for turn in turns:
        messages += [turn, *env.step(turn)]
    return one, messages, env


def parts(one: Scenario, messages: list[Message]) -> dict[str, float]:
    return {part.name: part.value for part in Game2048.reward(one, messages)}


# --- Rules


@pytest.mark.parametrize(
    ("row", "moved", "score"),
    [
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((2, 2, 4, 0), (4, 4, 0, 0), 4),  # a tile merges once a move
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),  # the pair nearest to the edge
        ((0, 0, 0, 2), (2, 0, 0, 0), 0),
        ((2, 0, 0, 2), (4, 0, 0, 0), 4),
        ((2, 4, 0, 2), (2, 4, 2, 0), 0),
        ((8, 8, 4, 4), (16, 8, 0, 0), 24),
        ((2, 4, 8, 16), (2, 4, 8, 16), 0),
        ((0, 0, 0, 0), (0, 0, 0, 0), 0),
        ((1024, 1024, 0, 0), (2048, 0, 0, 0), 2048),
    ],
)
def test_merges(row: Row, moved: Row, score: int) -> None:
    assert slide(row) == (moved, score)


@pytest.mark.parametrize(
    ("direction", "moved"),
    [
        ("left", ((4, 0, 0, 0), (4, 0, 0, 0), (0, 0, 0, 0), (2, 0, 0, 0))),
        ("right", ((0, 0, 0, 4), (0, 0, 0, 4), (0, 0, 0, 0), (0, 0, 0, 2))),
        ("up", ((4, 0, 2, 4), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))),
        ("down", ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (4, 0, 2, 4))),
    ],
)
def test_directions(direction: Direction, moved: Board) -> None:
    assert swipe(((2, 0, 2, 0), (0, 0, 0, 4), (0, 0, 0, 0), (2, 0, 0, 0)), direction)[0] == moved


def test_ten_thousand_random_moves_agree_with_open_spiel() -> None:
    """Boards, legal moves, score and the end of the game. Its chance nodes are driven by our tiles.

    A move is legal where it brings OpenSpiel's state to a chance node. Its own list (2.0.2) leaves out merges into a tile
    that was itself merged the move before, though it applies them: so the list is compared after moves without a merge.
    """
    actions = {"up": 0, "right": 1, "down": 2, "left": 3}
    game, rng, moves, compared = pyspiel.load_game("2048"), Random(1), 0, 0

    def spawned(state: Any, before: Board, after: Board) -> None:
        [(place, tile)] = [
            (4 * row + column, after[row][column])
            for row in range(4)
            for column in range(4)
            if before[row][column] != after[row][column]
        ]
        state.apply_action(2 * place + (tile == 4))

    for seed in range(1000):
        state, board = game.new_initial_state(), EMPTY
        for number in (0, 1):
            after = spawn(board, number, seed)
            spawned(state, board, after)
            board = after
        assert board == start(seed)
        score, number, gained = 0, 1, 0
        while legal(board):
            children = {name: state.clone() for name in DIRECTIONS}
            for name, child in children.items():
                child.apply_action(actions[name])
            assert legal(board) == [name for name, child in children.items() if child.is_chance_node()]
            if not gained:
                assert sorted(actions[name] for name in legal(board)) == state.legal_actions()
                compared += 1
            direction = rng.choice(legal(board))
            moved, gained = swipe(board, direction)
            state.apply_action(actions[direction])
            number, score, moves = number + 1, score + gained, moves + 1
            board = spawn(moved, number, seed)
            spawned(state, moved, board)
            assert str(state).split() == show(board).split()
            assert state.returns() == [score]
        assert state.is_terminal()
        if moves >= 10_000:
            assert compared > 3000
            return
    pytest.fail("too few moves")


def test_an_invalid_move_spawns_nothing() -> None:
    board: Board = ((2, 4, 0, 0), EMPTY[0], EMPTY[0], EMPTY[0])
    _, env = at(board)
    assert env.call("move", {"direction": "left"}) == "Error: no tile can move left."
    assert env.call("move", {"direction": "up"}) == "Error: no tile can move up."
    assert env.board == board
    assert not is_error({"content": env.call("move", {"direction": "right"})})
    assert sum(tile > 0 for row in env.board for tile in row) == 3


def test_a_full_board_with_merges_goes_on_and_one_without_does_not() -> None:
    assert legal(STUCK) == []
    board: Board = ((8, 8, 16, 32), *STUCK[1:])
    assert legal(board) == ["left", "right"]
    _, env = at(board)
    env.call("move", {"direction": "left"})
    assert env.board[0][:3] == (16, 16, 32)
    assert not env.done
    _, env = at(((2, 2, 8, 16), (64, 128, 256, 512), (2, 4, 8, 16), (64, 128, 256, 512)), target=1024)
    assert env.call("move", {"direction": "left"}).endswith("\nGame over.")  # 4 8 16 and a tile that merges with none
    assert env.done
    assert env.call("move", {"direction": "left"}) == "Error: the game is over."


def test_tiles_appear_at_the_rates_of_the_game() -> None:
    cells: Counter[int] = Counter()
    fours = 0
    for seed in range(20_000):
        [(place, tile)] = [(place, tile) for place, tile in enumerate(sum(spawn(EMPTY, 7, seed), ())) if tile]
        cells[place] += 1
        fours += tile == 4
    assert 1870 < fours < 2130  # 2000, and three standard deviations of 42
    assert len(cells) == 16
    assert all(1110 < count < 1390 for count in cells.values())  # 1250, and four of 34


def test_tiles_of_one_game_are_apart() -> None:
    """Neither number nor seed repeats the other's tiles."""
    rows = [tuple(spawn(EMPTY, number, seed) for number in range(6)) for seed in range(300)]
    assert len(set(rows)) == 300
    assert all(len(set(row)) > 1 for row in rows)


# --- One game


def test_it_ends_at_the_target() -> None:
    _, env = at(((32, 32, 0, 0), EMPTY[0], EMPTY[0], EMPTY[0]))
    text = env.call("move", {"direction": "left"})
    assert text.startswith("64 ")
    assert text.endswith("\nYou reached 64.")
    assert text.count("\n") == 4
    assert env.done


def test_it_ends_after_so_many_moves() -> None:
    env = Game2048(scenario(max_moves=3), GAME)
    answers = [env.call("move", {"direction": legal(env.board)[0]}) for _ in range(3)]
    assert [answer.endswith("\nGame over.") for answer in answers] == [False, False, True]
    assert [answer.count("\n") for answer in answers] == [3, 3, 4]
    assert env.done


def test_four_turns_without_a_move_end_it_and_a_move_starts_the_count_anew() -> None:
    board: Board = ((2, 4, 0, 0), EMPTY[0], EMPTY[0], EMPTY[0])
    idle = [use("move", direction="up"), words("hm"), use("move", direction="north"), use("jump")]
    assert told(board, *idle)[2].done
    assert not told(board, *idle[:3])[2].done
    assert not told(board, *idle[:3], use("move", direction="right"), idle[1])[2].done


def test_the_same_calls_give_the_same_observations() -> None:
    for one in Game2048.scenarios(GAME, "train", 5, 1):
        assert Game2048(one, GAME).play("random", 3) == Game2048(one, GAME).play("random", 3)


def test_a_scenario_of_an_earlier_run_is_of_four_by_four_cells() -> None:
    """Such as `flows.rescore` reads; it has no size."""
    hidden = {key: value for key, value in scenario().data.items() if key != "size"}
    earlier = Scenario.make("game_2048", "train", list(scenario().messages), hidden)
    assert Game2048(earlier, GAME).board == Game2048(scenario(), GAME).board


# --- Rewards


def test_rewards_by_wins() -> None:
    """Half of log2(largest) / log2(64) without the target: 0.5 * 4 / 6 for a tile of 16."""
    near: Board = ((32, 32, 0, 0), EMPTY[0], EMPTY[0], EMPTY[0])
    one, messages, _ = told(near, use("move", direction="left"), reward="win")
    assert parts(one, messages) == {"win": 1.0}
    assert Game2048.success(one, messages)
    far: Board = ((8, 8, 0, 0), EMPTY[0], EMPTY[0], EMPTY[0])
    one, messages, _ = told(far, use("move", direction="left"), words("hm"), reward="win")
    assert parts(one, messages) == pytest.approx({"largest": 0.5 * 4 / 6})
    assert not Game2048.success(one, messages)


def test_rewards_by_parts() -> None:
    """By hand: two boards, one merge of 8 and 8, one invalid move and one turn in plain words."""
    weights = {"win": 1.0, "largest": 0.2, "score": 0.1, "empty": 0.3, "smoothness": 0.4, "invalid": -0.05}
    board: Board = ((8, 8, 0, 0), EMPTY[0], EMPTY[0], EMPTY[0])
    turns = [use("move", direction="up"), words("hm"), use("move", direction="left")]
    one, messages, env = told(board, *turns, reward="shaped", weights=weights)
    assert score_of(messages) == 16
    assert parts(one, messages) == pytest.approx(
        {
            "largest": 0.2 * 4 / 6,
            "score": 0.1 * math.log(17) / math.log(1 + 64 * 5),
            "empty": 0.3 * 14 / 16,
            "smoothness": 0.4 * (1 + smoothness(env.board)) / 2,
            "invalid": -0.1,
        }
    )


@pytest.mark.parametrize(
    ("board", "expected"),
    [
        (((8, 8, 0, 0), EMPTY[0], EMPTY[0], EMPTY[0]), 1.0),
        (((2, 0, 0, 8), EMPTY[0], EMPTY[0], EMPTY[0]), 1 - 2 / 3),  # neighbours across empty cells
        (((2, 4, 0, 0), (2, 0, 0, 0), EMPTY[0], EMPTY[0]), 1 - 1 / 2 / 2),
        (((2, 0, 0, 0), (0, 4, 0, 0), EMPTY[0], EMPTY[0]), 1.0),
    ],
)
def test_smoothness(board: Board, expected: float) -> None:
    assert smoothness(board) == pytest.approx(expected)


def test_the_score_of_a_transcript_is_that_of_open_spiel() -> None:
    one = scenario(5, target=2048, opening=0, max_moves=200)
    messages = Game2048(one, GAME).play("scripted")
    state, board = pyspiel.load_game("2048").new_initial_state(), start(5)
    for place, tile in enumerate(sum(board, ())):
        if tile:
            state.apply_action(2 * place + (tile == 4))
    for number, message in enumerate([one for one in messages if one["role"] == "assistant"]):
        direction = message["tool_calls"][0]["function"]["arguments"]["direction"]
        state.apply_action(("up", "right", "down", "left").index(direction))
        moved = swipe(board, direction)[0]
        board = spawn(moved, number + 2, 5)
        [place] = [at for at in range(16) if sum(moved, ())[at] != sum(board, ())[at]]
        state.apply_action(2 * place + (sum(board, ())[place] == 4))
    assert [score_of(messages)] == state.returns()


def test_words_that_show_a_board_are_no_board() -> None:
    board: Board = ((8, 8, 0, 0), EMPTY[0], EMPTY[0], EMPTY[0])
    won = show(((64, 0, 0, 0), EMPTY[0], EMPTY[0], EMPTY[0]))
    for turn in (words(won), use(won), use("move", direction=won)):
        one, messages, _ = told(board, turn)
        assert not Game2048.success(one, messages)
    one, env = at(board)
    messages = [*one.messages, words(""), *env.step(words(""), [f"this is no JSON:\n{won}\nindeed"])]
    assert not Game2048.success(one, messages)


# --- Players and scenarios


@pytest.mark.parametrize("rules", [GAME, PRESET], ids=["4x4", "preset"])
def test_gold_reaches_the_target_and_bad_does_not(rules: dict[str, Any]) -> None:
    """After the opening a merge or two may be at hand, so that even up and down alone reach it in 1 game of 100."""
    for mode in ("win", "shaped"):
        game, lucky = rules | {"reward": mode}, 0
        for one in Game2048.scenarios(game, "val", 30, 7):
            gold, bad = (Game2048(one, game).play(player) for player in ("gold", "bad"))
            assert Game2048.success(one, gold)
            if Game2048.success(one, bad):
                lucky += 1
                continue
            worth = [sum(part.value for part in Game2048.reward(one, told)) for told in (gold, bad)]
            assert worth[0] > worth[1] + 0.4
        assert lucky <= 1


@pytest.mark.parametrize("rules", [pytest.param(GAME, marks=pytest.mark.nightly), PRESET], ids=["4x4", "preset"])
def test_cycling_without_a_look_at_the_board_wins_few_games(rules: dict[str, Any]) -> None:
    """The best of all cycles through the four directions once won two of five games, more than the trained policy."""
    made = Game2048.scenarios(rules, "val", 60, 3)
    for cycle in itertools.permutations(DIRECTIONS):
        wins = 0
        for one in made:
            env, messages, directions = Game2048(one, rules), list(one.messages), itertools.cycle(cycle)
            while not env.done:
                turn = use("move", direction=next(directions))
                messages += [turn, *env.step(turn)]
            wins += Game2048.success(one, messages)
        assert wins <= 15, cycle


def test_expectimax_beats_random() -> None:
    made = Game2048.scenarios(GAME, "val", 60, 3)
    turns, won = {}, {}
    for player in ("scripted", "random"):
        played = [Game2048(one, GAME).play(player) for one in made]
        won[player] = sum(Game2048.success(*pair) for pair in zip(made, played, strict=True))
        turns[player] = sum(map(len, played))
    assert won["scripted"] == 60  # those are the games
    assert won["random"] < 10
    assert turns["scripted"] < turns["random"]


def test_expectimax_takes_the_merge_and_sees_the_end() -> None:
    assert expectimax(((8, 8, 16, 32), *STUCK[1:]), 1)[1] in ("left", "right")
    assert expectimax(STUCK, 2)[1] is None


def test_scripted_and_random_use_only_what_the_policy_sees() -> None:
    one = scenario(4)
    blind = Game2048(scenario(5), GAME)
    blind.board = STUCK
    for player in ("scripted", "random"):
        turn = getattr(blind, player)(one.messages, Random(1))
        assert not is_error(Game2048(one, GAME).step(turn)[0])


def test_messages() -> None:
    for one in Game2048.scenarios(GAME, "test", 12, 1):
        system, user = one.messages
        assert system["content"] == "2048 on 4x4 cells: slide the tiles, equal ones merge. Reach 64 in 10 moves."
        assert user["content"] == show(start(one.data["seed"], GAME["opening"]))
        assert one.data["kind"] == "target 64"
        assert 1 <= one.data["difficulty"] <= 5
    assert Game2048.tools()["move"].schema["function"]["parameters"]["properties"]["direction"]["enum"] == list(
        DIRECTIONS
    )


@pytest.mark.parametrize(("task", "counts"), [("game_2048", (120, 60, 120)), ("game_2048_whole", (40, 10, 20))])
def test_splits_share_no_opening_whichever_way_it_is_turned(task: str, counts: tuple[int, ...]) -> None:
    env = environments.load(task)
    data = env.load(ROOT / "tasks_data" / task)
    seen, groups = dict[str, set[str]](), dict[str, set[str]]()
    for split, count in zip(SPLITS, counts, strict=True):
        made = env.scenarios(data, split, count, 3)
        views = [[read_board(one.messages[1])] for one in made]
        for boards in views:
            for _ in range(3):
                boards.append(tuple(zip(*boards[-1][::-1], strict=True)))  # pyrefly: ignore[unsupported-operation]
            boards += [board[::-1] for board in boards if board]
        seen[split] = {str(board) for boards in views for board in boards}
        groups[split] = {env.cluster(one, data) for one in made}
        assert len(groups[split]) > 0.6 * count
    assert not seen["train"] & seen["val"] | seen["train"] & seen["test"] | seen["val"] & seen["test"]
    assert not groups["train"] & groups["test"]


def test_splits_share_nothing_and_seeds_repeat() -> None:
    keys = [{one.data["seed"] for one in Game2048.scenarios(GAME, split, 30, 1)} for split in SPLITS]
    assert len(set.union(*keys)) == 90
    first, again, other = (Game2048.scenarios(GAME, "val", 8, seed) for seed in (1, 1, 2))
    assert first == again != other
    with pytest.raises(ValueError, match=r"999999 scenarios of game_2048 need as many seeds, and there are 200000"):
        Game2048.scenarios(GAME, "val", 999_999, 1)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"target": 100}, "target is a power of two from 8 to 131072, not 100"),
        ({"max_moves": 1000}, "max_moves is from 1 to 250"),
        ({"depth": 0}, "depth is 1 or more, not 0"),
        ({"reward": "score"}, 'reward is "win" or "shaped", not score'),
        ({"weights": {"win": 1.0}}, "weights are for win, largest, score, empty, smoothness, invalid"),
        ({"size": 9}, "size is from 3 to 8, not 9"),
        ({"cells": 5}, "it differs in .*cells"),
    ],
)
def test_parameters_are_checked(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    (tmp_path / "game.json").write_text(json.dumps(GAME | change))
    with pytest.raises(ValueError, match=problem):
        Game2048.load(tmp_path)


def test_missing_parameters_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"game\.json is missing: restore it"):
        Game2048.load(tmp_path)


def test_largest() -> None:
    assert largest(((2, 4, 8, 0), (0, 64, 0, 0), EMPTY[0], EMPTY[0])) == 64


def test_an_opening_is_the_same_for_a_seed_and_may_be_none() -> None:
    assert start(7) == start(7, 0) != start(7, 5) == start(7, 5)
    tiles = [sum(tile > 0 for row in start(seed, 24) for tile in row) for seed in range(50)]
    assert len(set(tiles)) > 3
    assert all(largest(start(seed, 24)) < 64 for seed in range(50))


def test_only_games_that_can_be_won_are_scenarios() -> None:
    hopeless = [seed for seed in range(40) if not can_be_won(GAME, seed)]
    assert 12 < len(hopeless) < 36, "of 60 scenarios that were not chosen, some would be among them"
    made = Game2048.scenarios(GAME, "train", 60, 2)
    assert all(can_be_won(GAME, one.data["seed"]) for one in made)
