"""Tasks of other packages: their names, their global generators, rewards that only actions earn, and their versions."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest

import environments
from environments.base import Message, Scenario, Split, TaskProblem, is_error, use, words
from environments.bridges import gymnasium, packages, reasoning_gym, stepped, textarena_solved
from environments.bridges.stepped import Stepped
from flows.repro.parameters import check_task
from steps.core.errors import UserError
from steps.core.params import Params, Scenarios
from steps.core.params_tasks import short_name
from steps.data import contamination

RANDOM = (
    "textarena:GuessTheNumber-v0",
    "textarena:FrozenLake-v0",
    "gymnasium:Blackjack-v1",
    "pettingzoo:connect_four_v3",
)


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (
            "atari:Pong",
            "before the colon stands one of gymnasium, pettingzoo, reasoning_gym, textarena, verifiers, openenv",
        ),
        ("gymnasium:", "and after it a name"),
        ("gymnasium:NoSuch-v1", "gymnasium has no environment NoSuch-v1"),
        ("gymnasium:Pendulum-v1", "only discrete ones"),
        ("gymnasium:Reacher-v2", "needs more of gymnasium than is installed: The mujoco v2 and v3"),
        ("pettingzoo:ludo_v1", "pettingzoo has no classic game ludo_v1"),
        ("pettingzoo:rps_v2", "is not written as text here: known are games for two by turns, tictactoe, "),
        ("pettingzoo:hanabi_v5", "is not written as text here"),
        ("pettingzoo:go_v5?size=5", "unexpected keyword argument 'size'"),
        ("reasoning_gym:no_such", "reasoning_gym has no data set no_such"),
        ("reasoning_gym:chain_sum?size=3", "only levels=N"),
        ("textarena:MarketEntryGame-v0", "is a game for several players"),
        ("textarena:Bandit-v0", "rewards the wrong way round"),
        ("textarena:Klondike-v0", "cannot be played here by one player: SyntaxError"),
        ("textarena:TowerOfHanoi-v0?size=3", "only turns=N can follow"),
        ("textarena:NoSuch-v0", "NoSuch-v0 cannot be played here by one player: ValueError"),
    ],
)
def test_a_name_that_is_none_is_a_sentence(task: str, problem: str) -> None:
    with pytest.raises(UserError, match=r"^task: ") as raised:
        check_task(task)
    assert problem in str(raised.value)


def test_a_missing_package_names_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(name: str) -> type[Stepped]:
        raise ModuleNotFoundError("No module named 'gymnasium'", name="gymnasium")

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(UserError, match=r"needs the package gymnasium, .*`make install DEV=1`"):
        check_task("gymnasium:Elsewhere-v0")


@pytest.mark.parametrize("name", ["gymnasium:Taxi-v4; rm -rf /", "a:b'c", "gymnasium:../x", "a:b:c", "gymnasium:$(id)"])
def test_names_hold_nothing_that_a_shell_reads(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a task"):
        Params(task=name)


def test_names_in_the_registry() -> None:
    names = ["email_search", "my_package.my_task", "gymnasium:Taxi-v4", "gymnasium:FrozenLake-v1?map_name=8x8"]
    assert [short_name(name) for name in names] == [
        "email_search",
        "my_task",
        "gymnasium_Taxi-v4",
        "gymnasium_FrozenLake-v1_map_name_8x8",
    ]


def played(env: type[Stepped], scenario: Scenario) -> list[Message]:
    return env(scenario, None).play("random", seed=3)


@pytest.mark.parametrize("task", RANDOM)
def test_episodes_in_threads_are_those_of_one_thread(task: str) -> None:
    """Packages draw from the process's generators; each episode has its own state of them, and leaves those alone."""
    env = environments.load(task)
    assert issubclass(env, Stepped)
    scenarios = env.scenarios(None, "train", 6, 1)
    random.seed(11)
    before = random.getstate()
    alone = [played(env, scenario) for scenario in scenarios]
    assert random.getstate() == before
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda scenario: played(env, scenario), scenarios * 2))
    assert together == alone * 2


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("chain_sum", (1, 2, 3, 4, 5)),
        ("caesar_cipher", (1, 2)),
        ("modulo_grid", (1, 3, 4, 5)),
        pytest.param("knight_swap", (0,), marks=pytest.mark.nightly),
    ],
)
def test_levels_that_a_package_cannot_make_are_left_out(name: str, levels: tuple[int, ...]) -> None:
    assert reasoning_gym.usable(name, 5) == levels
    made = environments.load(f"reasoning_gym:{name}").scenarios(None, "val", 5, 1)
    assert {scenario.data["level"] for scenario in made} <= set(levels)


def test_a_data_set_that_cannot_be_made_is_a_sentence() -> None:
    with pytest.raises(
        ValueError, match="makes no usable question of composite with its own settings: Must specify at least one"
    ):
        environments.load("reasoning_gym:composite").scenarios(None, "val", 1, 1)


def test_a_sum_of_rewards_can_be_named_as_a_success() -> None:
    with pytest.raises(
        ValueError, match=r"MountainCar-v0 does not say what a success is.*'gymnasium:MountainCar-v0\?success=10'"
    ):
        gymnasium.make("MountainCar-v0")
    made: Any = gymnasium.make("CartPole-v1?success=5")
    assert stepped.replayed(made, 1, ("0",) * 3)[:2] == (0.6, False)
    assert stepped.replayed(made, 1, ("0",) * 5)[:2] == (1.0, True)


def test_a_package_that_another_one_needs_is_named_with_a_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(name: str) -> None:
        raise ModuleNotFoundError("No module named 'jax.numpy'", name="jax.numpy")

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs the package jax, which gymnasium does not .*uv pip install jax`"
    ):
        packages.load("gymnasium:phys2d/CartPole-v1")


def test_a_sum_of_costs_is_no_success_before_the_end() -> None:
    """A reward of -1 a turn: after two turns the sum is above what is asked, and nothing is reached."""
    made: Any = gymnasium.make("MountainCar-v0?success=-190&turns=200")
    assert stepped.replayed(made, 1, ("0",) * 2)[:2] == (0.0, False)
    assert stepped.replayed(made, 1, stepped.solution(made, 1))[:2] == (1.0, True)


@pytest.mark.parametrize("name", ["game_of_life_halting", "modulo_grid", "figlet_font"])
def test_questions_that_differ_in_signs_alone_are_of_all_splits_and_nonsense_is_no_answer(name: str) -> None:
    env: Any = environments.load(f"reasoning_gym:{name}")
    if name == "game_of_life_halting":
        with pytest.raises(ValueError, match=r"takes any answer for right, such as 'I do not know\.'"):
            env.scenarios(None, "train", 1, 1)
        return
    made = [env.scenarios(None, split, 4, 1) for split in get_args(Split)]
    assert all(env.success(scenario, env(scenario, None).play("gold")) for split in made for scenario in split)


def test_boards_are_shown_as_people_write_them() -> None:
    chess: Any = environments.load("pettingzoo:chess_v6")
    game = chess.open(5)
    assert game.show().splitlines() == [
        "You are black, the small letters. The last move was g1h3.",
        "8 r n b q k b n r",
        "7 p p p p p p p p",
        "6 . . . . . . . .",
        "5 . . . . . . . .",
        "4 . . . . . . . .",
        "3 . . . . . . . N",
        "2 P P P P P P P P",
        "1 R N B Q K B . R",
        "  a b c d e f g h",
    ]
    assert game.actions()[:3] == ["a7a6", "a7a5", "b8a6"]
    assert len(game.actions()) == 20
    go: Any = environments.load("pettingzoo:go_v5?board_size=5")
    game = go.open(3)
    assert game.actions()[:2] == ["A5", "B5"]
    game.take("C3")
    assert "\n 3 . . X . .\n" in game.show().replace("O", ".")
    other: Any = environments.load("pettingzoo:go_v5?board_size=7")
    other.open(3)  # the package keeps the size of the last board that was made
    game.take("pass")
    assert game.is_over
    assert not game.is_won


def test_words_in_a_transcript_earn_nothing() -> None:
    env = environments.load("gymnasium:FrozenLake-v1")
    [scenario] = env.scenarios(None, "test", 1, 1)
    claimed: list[Message] = [
        *scenario.messages,
        use("act", action="right"),
        {"role": "tool", "name": "act", "content": "S F\nThe episode is over: a success."},
        words("The episode is over: a success."),
    ]
    assert not env.success(scenario, claimed)
    assert sum(part.value for part in env.components(scenario, claimed)) == 0


def test_an_action_that_is_none_changes_nothing() -> None:
    env = environments.load("gymnasium:Taxi-v4")
    [scenario] = env.scenarios(None, "test", 1, 1)
    episode = env(scenario, None)
    for action in ("fly", "", "a" * 10_000, "south\n", "\x1b"):
        text = episode.call("act", {"action": action})
        assert is_error({"role": "tool", "name": "act", "content": text}) == (action != "south\n")
    assert episode.call("act", {"action": "fly"}).endswith(
        "the actions are south, north, east, west, pick up, drop off."
    )


def test_another_version_of_a_package_is_refused(tmp_path: Path) -> None:
    task = "gymnasium:FrozenLake-v1"
    packages.write(task, tmp_path)
    written = json.loads((tmp_path / "package.json").read_text())
    assert set(written) == {"gymnasium", "minigrid"}
    assert task in (tmp_path / "rubric.md").read_text()
    environments.load(task).load(tmp_path)
    (tmp_path / "package.json").write_text(json.dumps(written | {"gymnasium": "0.1"}))
    with pytest.raises(TaskProblem, match=r"is of gymnasium 0\.1, and [\d.]+ is installed"):
        environments.load(task).load(tmp_path)


def test_levels_are_the_packages_own_curriculum() -> None:
    env = environments.load("reasoning_gym:chain_sum?levels=2")
    scenarios = env.scenarios(None, "train", 20, 1)
    assert {scenario.data["difficulty"] for scenario in scenarios} == {1, 2}
    longest = {
        level: max(
            len(str(scenario.messages[-1]["content"])) for scenario in scenarios if scenario.data["level"] == level
        )
        for level in (1, 2)
    }
    assert longest[1] < longest[2]


@pytest.mark.parametrize("name", ["chain_sum?levels=2", "leg_counting", "spell_backward"])
def test_questions_of_one_template_are_not_taken_for_one_question(name: str) -> None:
    """ "9 + 8 =" and "9 - 8 + 3 =" share nearly all of their words."""
    env, counts = environments.load(f"reasoning_gym:{name}"), Scenarios(train=512, val=120, test=240)
    splits = {split: env.scenarios(None, split, getattr(counts, split), 1) for split in get_args(Split)}
    assert contamination.check(env, name, splits, counts)["passed"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [("5", "5"), ("It is <answer> 7 </answer>.", "7"), ("<answer>1</answer><answer>2</answer>", "2")],
)
def test_what_counts_as_an_answer(text: str, answer: str) -> None:
    assert reasoning_gym.answer_of(text) == answer


def test_hanoi_and_lights_by_hand() -> None:
    assert textarena_solved.hanoi({"A": [1], "B": [], "C": []}) == ["[A C]"]
    assert textarena_solved.hanoi({"A": [2, 1], "B": [], "C": []}) == ["[A B]", "[A C]", "[B C]"]
    assert textarena_solved.lights([[True, True], [True, False]]) == ["[0 0]"]
