"""Tic-tac-toe: the rules agree with OpenSpiel's on all boards, opponents are what they are called, a table of rewards."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyspiel
import pytest

from environments.base import Message, Scenario, Split, use, words
from environments.tic_tac_toe import TicTacToe, result
from environments.tic_tac_toe.rules import (
    EMPTY,
    OTHER,
    alike,
    best_result,
    empty_cells,
    is_over,
    openings,
    perfect_cells,
    put,
    reply,
    rule_cells,
    show,
    value,
    winner,
)
from tests.conftest import ROOT

DATA = ROOT / "tasks_data" / "tic_tac_toe"
SPLITS: tuple[Split, ...] = ("train", "val", "test")
GAME: dict[str, Any] = {"opponents": {"random": 1.0}, "sides": ["X", "O"]}


def scenario(board: str, side: str, opponent: str = "random", seed: int = 1) -> Scenario:
    messages = [{"role": "user", "content": f"You are {side}.\n{show(board)}"}]
    hidden = {"kind": side, "opponent": opponent, "seed": seed, "board": board}
    return Scenario.make("tic_tac_toe", "train", messages, hidden)


def told(one: Scenario, *turns: Message) -> list[Message]:
    """A transcript of these turns."""
    env, messages = TicTacToe(one, None), list(one.messages)
    for turn in turns:
        messages += [turn, *env.step(turn)]
    return messages


def parts(one: Scenario, messages: list[Message]) -> dict[str, float]:
    return {part.name: part.value for part in TicTacToe.reward(one, messages)}


# --- Rules


def test_all_boards_agree_with_open_spiel() -> None:
    """Who has won, which cells may be played and when the game is over, on every board that play can reach."""
    seen: set[str] = set()
    left = [(EMPTY, "X", pyspiel.load_game("tic_tac_toe").new_initial_state())]
    while left:
        board, side, state = left.pop()
        if board in seen:
            continue
        seen.add(board)
        assert str(state).replace("\n", "").upper() == board
        assert is_over(board) == state.is_terminal()
        assert {None: 0, "X": 1, "O": -1}[winner(board)] == state.returns()[0]
        if not is_over(board):
            assert empty_cells(board) == state.legal_actions()
            left += [(put(board, cell, side), OTHER[side], state.child(cell)) for cell in empty_cells(board)]
    assert len(seen) == 5478


@pytest.mark.parametrize(
    ("board", "side", "cells"),
    [
        ("XX.OO....", "X", [2]),  # wins rather than blocks
        ("XX.O.....", "O", [2]),  # blocks
        ("X........", "O", [4]),
        ("....X....", "O", [0, 2, 6, 8]),
        ("X...O...X", "O", [2, 6]),  # walks into a fork: it is beatable
        ("XOX.X.O.O", "X", [7]),
    ],
)
def test_the_scripted_rules(board: str, side: str, cells: list[int]) -> None:
    assert rule_cells(board, side) == cells


@pytest.mark.parametrize(
    ("board", "side", "sign"),
    [(EMPTY, "X", 0), ("X........", "O", 0), ("XX.OO....", "X", 1), ("X...O...X", "O", 0), ("XO.......", "X", 1)],
)
def test_what_perfect_play_is_worth(board: str, side: str, sign: int) -> None:
    worth = value(board, side)
    assert (worth > 0) - (worth < 0) == sign


def test_a_sooner_win_is_worth_more() -> None:
    assert perfect_cells("XX.OO....", "X") == [2]
    assert value("XX.OO....", "X") > value("XO.......", "X") > 0


def test_a_fork_loses_and_a_side_does_not() -> None:
    """X in two opposite corners, O in the centre: a corner lets X fork, so O must play a side."""
    assert perfect_cells("X...O...X", "O") == [1, 3, 5, 7]


# --- Opponents


@pytest.mark.parametrize("side", ["X", "O"])
def test_minimax_never_loses_whatever_is_played(side: str) -> None:
    """All of the other side's moves, and all that minimax might choose."""
    seen: set[str] = set()

    def walk(board: str, mover: str) -> None:
        if board in seen:
            return
        seen.add(board)
        assert winner(board) != OTHER[side]
        if not is_over(board):
            for cell in perfect_cells(board, side) if mover == side else empty_cells(board):
                walk(put(board, cell, mover), OTHER[mover])

    walk(EMPTY, "X")
    assert any(winner(board) == side for board in seen)


def test_minimax_never_loses_from_any_of_its_openings() -> None:
    """All moves of the policy; some openings in which minimax had moved at random were lost for it."""
    game = GAME | {"opponents": {"minimax": 1.0}}
    made = TicTacToe.scenarios(game, "train", 300, 1)
    begun = {(scenario.data["board"], scenario.data["kind"]) for scenario in made}
    assert len(begun) > 20
    assert {board.count("X") for board, _ in begun} == {1, 2}

    def can_win(board: str, mover: str, side: str) -> bool:
        choices = empty_cells(board) if mover == side else perfect_cells(board, mover)
        after = [put(board, cell, mover) for cell in choices]
        return any(winner(each) == side or (not is_over(each) and can_win(each, OTHER[mover], side)) for each in after)

    assert not [board for board, side in begun if can_win(board, side, side)]
    assert can_win("XO.......", "X", "X")  # an opening that was in use


def test_minimax_loses_where_a_random_opening_is_lost_for_it_already() -> None:
    """Seated in the games of another opponent (`rollout.opponent.player: minimax`) it meets such openings; no scenario of
    its own has one."""
    one = scenario("XO.......", "X", opponent="random")
    assert value("XO.......", "X") > 0
    env = TicTacToe(one, None)
    env.against("minimax")
    messages = list(one.messages)
    while not env.done:
        move = use("move", cell=perfect_cells(env.board, "X")[0] + 1)
        messages += [move, *env.step(move)]
    assert result(messages) == "win"


def test_a_table_says_which_games_were_not_lost() -> None:
    one = scenario("XX.OO....", "X", opponent="minimax")
    assert TicTacToe.decisions(one, told(one, use("move", cell=3))) == [("not lost to minimax", True)]
    assert TicTacToe.decisions(one, told(one, use("move", cell=1))) == [("not lost to minimax", False)]
    assert TicTacToe.decisions(one, told(one, use("move", cell=9))) == [("not lost to minimax", False)]


@pytest.mark.parametrize("opponent", ["random", "minimax", "self"])
def test_an_opponent_repeats_itself_and_moves_by_its_seed(opponent: str) -> None:
    board = "X........"
    answers = [reply(board, "O", opponent, seed) for seed in range(200)]
    assert answers == [reply(board, "O", opponent, seed) for seed in range(200)]
    assert all(answer.count("O") == 1 and answer[0] == "X" for answer in answers)
    assert len(set(answers)) == {"random": 8, "minimax": 1, "self": 1}[opponent]  # the centre alone does not lose


def test_the_random_opponent_prefers_no_cell() -> None:
    counts = Counter(reply("X........", "O", "random", seed).index("O") for seed in range(8000))
    assert set(counts) == set(range(1, 9))
    assert all(880 < count < 1120 for count in counts.values())  # 1000 each; the standard deviation is 30


def test_the_same_calls_give_the_same_observations() -> None:
    for one in TicTacToe.scenarios(GAME, "train", 20, 1):
        assert TicTacToe(one, GAME).play("random", 3) == TicTacToe(one, GAME).play("random", 3)


# --- One game, move by move


def test_observations() -> None:
    going_on = TicTacToe(scenario("X...O....", "X", "minimax"), None)
    assert going_on.call("move", {"cell": 2}) == "X X O\n. O .\n. . ."  # blocked
    assert not going_on.done
    blocked = TicTacToe(scenario("XXO.O....", "X", "minimax"), None)
    assert blocked.call("move", {"cell": 7}) == "X X O\nO O .\nX . ."  # X threatens the left column
    lost = TicTacToe(scenario("XXO.O....", "X", "minimax"), None)
    assert lost.call("move", {"cell": 9}) == "X X O\n. O .\nO . X\nYou lose."
    won = TicTacToe(scenario("XX.OO....", "X"), None)
    assert won.call("move", {"cell": 3}) == "X X X\nO O .\n. . .\nYou win."
    drawn = TicTacToe(scenario("XOXOOX.XO", "X"), None)
    assert drawn.call("move", {"cell": 7}) == "X O X\nO O X\nX X O\nDraw."
    assert won.done
    assert lost.done
    assert drawn.done
    assert drawn.call("move", {"cell": 7}) == "Error: the game is over."


@pytest.mark.parametrize(
    ("cell", "problem"),
    [(1, "cell 1 is taken"), (0, "cell 0 is not on the board"), (10, "cell 10 is not"), (-1, "cell -1 is not on")],
)
def test_an_illegal_move_ends_the_game(cell: int, problem: str) -> None:
    env = TicTacToe(scenario("XO.......", "X"), None)
    assert env.call("move", {"cell": cell}).startswith(f"Error: {problem}")
    assert env.done


@pytest.mark.parametrize("arguments", [{"cell": "5"}, {"cell": 5.5}, {}, {"cell": 5, "row": 1}, [5]])
def test_a_call_that_cannot_be_read_does_not(arguments: Any) -> None:
    env = TicTacToe(scenario("XO.......", "X"), None)
    assert env.call("move", arguments).startswith("Error: ")
    assert not env.done
    assert env.board == "XO......."


# --- Rewards


WIN = scenario("XX.OO....", "X")
LAST = scenario("XOXOOX.XO", "X")
LOST = scenario("XXO.O....", "X", "minimax")


@pytest.mark.parametrize(
    ("one", "turns", "expected"),
    [
        (WIN, [use("move", cell=3)], {"win": 1.0}),
        (LAST, [use("move", cell=7)], {"draw": 0.5}),
        (LOST, [use("move", cell=9)], {"loss": 0.0}),
        (WIN, [use("move", cell=1)], {"illegal": -0.5}),
        (WIN, [use("move", cell=11)], {"illegal": -0.5}),
        (WIN, [], {"unfinished": 0.0}),
        (WIN, [words("3"), words("3")], {"unfinished": 0.0, "no_move": -0.1}),
        (WIN, [use("jump", cell=3), use("move", cell=3)], {"win": 1.0, "no_move": -0.05}),
        (WIN, [words("hm"), use("move", cell=1)], {"illegal": -0.5, "no_move": -0.05}),
    ],
)
def test_rewards(one: Scenario, turns: list[Message], expected: dict[str, float]) -> None:
    messages = told(one, *turns)
    assert parts(one, messages) == expected
    assert TicTacToe.success(one, messages) == ("win" in expected)


def test_a_malformed_call_beside_the_winning_one_does_not_hide_the_win() -> None:
    env, turn = TicTacToe(WIN, None), use("move", cell=3)
    messages = [*WIN.messages, turn, *env.step(turn, ["a tool call is not valid JSON"])]
    assert parts(WIN, messages) == {"win": 1.0, "no_move": -0.05}


def test_words_that_claim_a_win_are_no_win() -> None:
    messages = told(WIN, words("X X X\nO O .\n. . .\nYou win."), use("You win.", cell=3))
    assert result(messages) == "unfinished"
    env, turn = TicTacToe(WIN, None), words("")
    assert (
        result([*WIN.messages, turn, *env.step(turn, ["this is no JSON: X X X\nO O .\n. . .\nYou win"])])
        == "unfinished"
    )


def test_a_draw_is_a_success_against_minimax_alone() -> None:
    for opponent in ("random", "minimax", "self"):
        one = scenario("XOXOOX.XO", "X", opponent)
        assert TicTacToe.success(one, told(one, use("move", cell=7))) == (opponent == "minimax")


# --- Scenarios and players


@pytest.mark.parametrize("opponent", ["random", "minimax", "self"])
def test_gold_succeeds_and_bad_does_not(opponent: str) -> None:
    game = GAME | {"opponents": {opponent: 1.0}}
    made = TicTacToe.scenarios(game, "train", 200, 5)
    assert {one.data["kind"] for one in made} == {"X", "O"}
    for one in made:
        gold, bad = (TicTacToe(one, game).play(player) for player in ("gold", "bad"))
        assert TicTacToe.success(one, gold)
        assert sum(parts(one, gold).values()) >= 0.5
        assert parts(one, bad) == {"illegal": -0.5}


def test_what_is_left_out_cannot_be_won_by_any_line() -> None:
    """A search over all lines against the seeded opponent, told apart from `best_result` by trying every one."""

    def can_win(board: str, side: str, seed: int) -> bool:
        for cell in empty_cells(board):
            after = put(board, cell, side)
            after = after if is_over(after) else reply(after, OTHER[side], "self", seed)
            if winner(after) == side or (not is_over(after) and can_win(after, side, seed)):
                return True
        return False

    game = GAME | {"opponents": {"self": 1.0}}
    checked = [bool(TicTacToe.from_seed(game, "train", seed)) for seed in range(60)]
    assert {True, False} == set(checked)
    for seed, is_made in enumerate(checked):
        rng = Random(seed)
        side = rng.choice("XO")
        rng.random()  # the draw of the opponent
        board = rng.choice(alike(rng.choice(openings("train", side))))
        assert can_win(board, side, seed) == is_made == (best_result(board, side, "self", seed)[0] == 1)


def test_scripted_beats_random() -> None:
    made = TicTacToe.scenarios(GAME, "val", 400, 2)
    won = {
        player: sum(TicTacToe.success(one, TicTacToe(one, GAME).play(player)) for one in made)
        for player in ("scripted", "random")
    }
    assert won["scripted"] > 0.8 * len(made)
    assert won["random"] < 0.6 * len(made)


def test_scripted_and_random_use_only_what_the_policy_sees() -> None:
    [one] = TicTacToe.scenarios(GAME, "val", 1, 2)
    blind = TicTacToe(one, GAME)
    blind.scenario = scenario("XOXOXOOXO", "O")
    blind.board, blind.side = "OOOOOOOOO", "?"
    for player in ("scripted", "random"):
        turn = getattr(blind, player)(one.messages, Random(1))
        env = TicTacToe(one, GAME)
        assert not env.step(turn)[0]["content"].startswith("Error: ")


def test_openings_and_messages() -> None:
    made = TicTacToe.scenarios(TicTacToe.load(DATA), "test", 300, 1)
    for one in made:
        board, side = one.data["board"], one.data["kind"]
        assert (board.count("X"), board.count("O")) in {"X": [(0, 0), (1, 1), (2, 2)], "O": [(1, 0), (2, 1)]}[side]
        assert one.messages[-1] == {"role": "user", "content": f"You are {side}.\n{show(board)}"}
        assert str(one.data["seed"]) not in json.dumps(one.messages)
    assert len({one.messages[-1]["content"] for one in made}) > 30
    sides = Counter(one.data["kind"] for one in made)
    assert min(sides.values()) > 100


def test_splits_share_no_opening_whoever_plays_and_whichever_way_it_is_turned() -> None:
    """A search of its own for what is alike: eight ways to walk over the cells."""
    ways = [
        [row * 3 + column if straight else column * 3 + row for row in rows for column in columns]
        for rows in (range(3), range(2, -1, -1))
        for columns in (range(3), range(2, -1, -1))
        for straight in (True, False)
    ]
    game, seen = TicTacToe.load(DATA), dict[str, set[str]]()
    for split, count in zip(SPLITS, (1024, 240, 400), strict=True):
        made = TicTacToe.scenarios(game, split, count, 3)
        boards = {one.data["board"] for one in made}
        seen[split] = {"".join(board[cell] for cell in way) for board in boards for way in ways}
        groups = Counter(TicTacToe.cluster(one, game) for one in made)
        assert len(groups) >= 30
        assert max(groups.values()) < 0.15 * count
        drawn = [value(board, side) == 0 for side in "XO" for board in openings(split, side)]
        assert 0.25 < sum(drawn) / len(drawn) < 0.35
    assert not seen["train"] & seen["val"] | seen["train"] & seen["test"] | seen["val"] & seen["test"]
    assert sum(len({*alike(board)}) for split in SPLITS for side in "XO" for board in openings(split, side)) == 1090


def test_splits_share_nothing_and_seeds_repeat() -> None:
    keys = [{one.data["seed"] for one in TicTacToe.scenarios(GAME, split, 500, 1)} for split in SPLITS]
    assert [len(one) for one in keys] == [500] * 3
    assert len(set.union(*keys)) == 1500
    first, again, other = (TicTacToe.scenarios(GAME, "val", 20, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_too_many_scenarios() -> None:
    with pytest.raises(ValueError, match=r"999999 scenarios of tic_tac_toe need as many seeds, and there are 300000"):
        TicTacToe.scenarios(GAME, "test", 999_999, 1)
    assert len(TicTacToe.scenarios(GAME, "test", 1_000, 1)) == 1_000


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"opponents": {"alphago": 1.0}}, "opponents are shares of random, minimax, self, not"),
        ({"opponents": {}}, "opponents are shares"),
        ({"opponents": {"random": 2.0, "self": -1.0}}, "opponents are shares"),
        ({"sides": ["Z"]}, "sides are X, O or both"),
        ({"size": 4}, "there is no parameter size"),
        ({"draw": 1.5}, "a draw earns 0 to 1, not 1.5"),
        ({"draw": "half"}, "a draw earns 0 to 1, not half"),
    ],
)
def test_parameters_are_checked(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    (tmp_path / "game.json").write_text(json.dumps(GAME | change))
    with pytest.raises(ValueError, match=problem):
        TicTacToe.load(tmp_path)


def test_a_draw_earns_what_the_parameters_say(tmp_path: Path) -> None:
    game = GAME | {"opponents": {"minimax": 0.5, "random": 0.5}}
    (tmp_path / "game.json").write_text(json.dumps(game | {"draw": 0.9}))
    plain, other = (TicTacToe.scenarios(data, "val", 20, 1) for data in (game, TicTacToe.load(tmp_path)))
    endings = set()
    for half, more in zip(plain, other, strict=True):
        messages = TicTacToe(half, game).play("gold")
        ending = result(messages)
        endings.add(ending)
        rewards = [sum(part.value for part in TicTacToe.reward(one, messages)) for one in (half, more)]
        assert rewards == ([0.5, 0.9] if ending == "draw" else [1.0, 1.0])
        assert more.data == half.data | {"draw": 0.9}
    assert endings == {"win", "draw"}


def test_missing_parameters_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"game\.json is missing: restore it"):
        TicTacToe.load(tmp_path)
