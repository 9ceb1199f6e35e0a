"""Credit for single turns: the advantages of a table worked by hand, and the states that turns are compared by."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import environments
from addons.advantages.gigpo import credit, states_of
from environments.base import Env, Scenario, tool_calls, use, words
from steps.core.params import Params, Update
from steps.core.records import Trajectory, Turn
from steps.training import batches
from steps.training.batches import of_tokens
from tests.conftest import ROOT
from tests.training import against_trl

# Three scored attempts and an unscored one at one scenario: the state before each turn, and the score of the episode.
STATES = [["s0", "x", "y"], ["s0", "x"], ["s0", "z", "x"], ["s0", "x"]]
SCORES = [1.0, 0.0, 1.0, None]
# With a discount of 0.5 the returns are ¼ ½ 1 | 0 0 | ¼ ½ 1. Those from s0 are ¼ 0 ¼ with a mean of 1/6, those from x ½ 0 1
# with a mean of ½; y and z are of one turn each. Episodes have 1/3, -2/3 and 1/3.
BY_HAND = [[5 / 12, 1 / 3, 1 / 3], [-5 / 6, -7 / 6], [5 / 12, 1 / 3, 5 / 6], [0.0, 0.0]]


def credited(scale: str = "none", scores: list[float | None] = SCORES) -> Any:
    settings = Update.model_validate({"advantages": "gigpo", "scale_rewards": scale})
    groups = ["scenario"] * len(STATES)
    gains, flat = batches.advantages(scores, groups, scale)
    return credit(gains, scores, groups, STATES, settings, 0.5), gains, flat


def test_advantages_are_those_of_the_table() -> None:
    made, _, _ = credited()
    assert made.by_turn == [pytest.approx(turns) for turns in BY_HAND]
    assert made.largest[:3] == pytest.approx([5 / 12, -7 / 6, 5 / 6])
    assert made.largest[3] is None
    assert made.flat == 0
    assert made.metrics == {"gigpo/turns_in_groups": 0.75, "gigpo/later_turns_in_groups": 0.6}


def test_groups_are_divided_by_their_standard_deviations() -> None:
    """By 0.57735 for the episodes (1 0 1), 0.14434 for s0 and 0.5 for x, each plus 1e-4."""
    made, _, _ = credited("group")
    episode = [0.3333333 / 0.5774503, -0.6666667 / 0.5774503]
    start = [0.0833333 / 0.1444376, -0.1666667 / 0.1444376]
    assert made.by_turn[0] == pytest.approx([episode[0] + start[0], episode[0], episode[0]], abs=1e-5)
    assert made.by_turn[1] == pytest.approx([episode[1] + start[1], episode[1] - 0.5 / 0.5001], abs=1e-5)
    assert made.by_turn[2] == pytest.approx([episode[0] + start[0], episode[0], episode[0] + 0.5 / 0.5001], abs=1e-5)


def test_the_whole_batch_may_be_the_measure() -> None:
    """The standard deviation of the eight returns ¼ ½ 1 0 0 ¼ ½ 1 is 0.39528."""
    made, gains, _ = credited("batch")
    assert made.by_turn[1][1] - gains[1] == pytest.approx(-0.5 / 0.39538, abs=1e-4)


def test_equal_scores_teach_where_attempts_differ_in_length() -> None:
    """All succeed, so episodes have no signal; from x one attempt needs a turn more than another."""
    made, gains, flat = credited(scores=[1.0, 1.0, 1.0, None])
    assert (gains, flat, made.flat) == ([None] * 4, 1, 0)
    assert made.by_turn[1] == pytest.approx([0.5 - 1 / 3, 1 - 5 / 6])
    assert made.by_turn[0][1] == pytest.approx(0.5 - 5 / 6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_type": "gspo"}, r"gigpo does not go with update\.loss_type: gspo"),
        ({"loss_type": "luspo"}, r"gigpo does not go with update\.loss_type: luspo"),
        ({"importance_sampling_level": "sequence"}, "gigpo does not go with"),
        (against_trl.PARTS, r"normalize_then_sum does not go with update\.advantages: gigpo"),
    ],
)
def test_settings_that_nothing_would_read_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Params.model_validate({"update": {"advantages": "gigpo", **settings}})


# --- States


def turn(message: Any, observations: Any = (), prompt: int = 1, **more: Any) -> Turn:
    fields = dict[str, Any](prompt_ids=(prompt,), completion_ids=(7, 8), logprobs=(-1.0, -1.0), finish_reason="stop")
    return Turn(message=message, observations=tuple(observations), **fields, **more)


def played(env: type[Env], data: Any, scenario: Scenario, moves: list[Any]) -> Trajectory:
    """An episode of these turns."""
    begun = env(scenario, data)
    turns = [turn(message, begun.step(message), prompt) for prompt, message in enumerate(moves)]
    return Trajectory(
        id="t", scenario_id=scenario.id, attempt=0, adapter_hash="a", turns=tuple(turns), stop_reason="done"
    )


def states(task: str, *games: list[Any], split: str = "train") -> list[list[Any]]:
    env = environments.load(task)
    data = env.load(ROOT / "tasks_data" / task)
    [scenario] = env.scenarios(data, split, 1, 1)  # pyrefly: ignore[bad-argument-type]
    return [states_of(env, {scenario.id: scenario}, played(env, data, scenario, moves)) for moves in games]


def test_the_same_board_is_the_same_state_whatever_led_there() -> None:
    env = environments.load("tic_tac_toe")
    data = env.load(ROOT / "tasks_data/tic_tac_toe")
    [scenario] = env.scenarios(data, "train", 1, 1)
    begun = env(scenario, data)
    begun.scripted(scenario.messages, Random(1))
    first, second = env(scenario, data).play("scripted", 1), env(scenario, data).play("scripted", 1)
    moves = [message for message in first if message["role"] == "assistant"]
    idle = [words("Let me think."), *moves]
    own, slow = states("tic_tac_toe", moves, idle)
    assert first == second
    assert len(own) == len(moves) > 1
    assert slow == [own[0], *own], "a turn without a move leaves the board as it was"
    assert len(set(own)) == len(own)


def test_a_game_of_2048_is_where_it_is_and_how_far_it_is() -> None:
    slides = [use("move", direction=way) for way in ("left", "up", "right", "down")]
    one, other = states("game_2048", slides, slides[::-1])
    assert one[0] == other[0]
    assert len(set(one + other)) > 4


def test_what_was_shown_is_the_state_of_a_search() -> None:
    """Two searches in either order, with an error between: the same mails have been seen."""
    env = environments.load("email_search")
    data = env.load(ROOT / "tasks_data/email_search")
    [scenario] = env.scenarios(data, "train", 1, 1)
    gold = [message for message in env(scenario, data).play("gold") if message["role"] == "assistant"]
    wide, end, error = use("search_emails", keywords=["the"]), gold[-1], use("read_email", id="m1")
    one, other, third = states("email_search", [gold[0], wide, end], [wide, gold[0], end], [gold[0], error, end])
    assert one[0] == other[0] == third[0]
    assert one[1] == third[1] == third[2] != other[1]
    assert one[2] == other[2] != third[2]
    assert tool_calls(env(scenario, data).play("gold"))


def test_without_a_state_of_the_task_the_past_must_be_the_same() -> None:
    one, other = states("multiplication", [words("1")], [words("2")])
    assert one == other
    gateway = Trajectory(
        id="t", scenario_id="s", attempt=0, adapter_hash="a", stop_reason="done",
        turns=(turn(words("a"), prompt=3, context=(words("b"),)), turn(words("c"), prompt=4)),
    )  # fmt: skip
    scenario = Scenario.make("x", "train", [], {})
    named = states_of(environments.load("tic_tac_toe"), {"s": scenario}, gateway)
    assert named == [(scenario.id, (3,)), (scenario.id, (4,))]


def test_tokens_have_the_advantage_of_their_turn() -> None:
    """In the order of training rows: a turn that forks begins a row, and one that a grammar chose bears no loss."""
    first = turn(words("a"), prompt=1)
    third = first.model_copy(update={"prompt_ids": (1, 7, 8, 2), "completion_ids": (9,), "logprobs": (-1.0,)})
    fourth = first.model_copy(update={"prompt_ids": (5, 7, 8), "is_constrained": True})
    turns = (first, turn(words("b"), prompt=5), third, fourth)
    fork = Trajectory(id="t", scenario_id="s", attempt=0, adapter_hash="a", turns=turns, stop_reason="done")
    assert fork.turns_of_rows() == [[0, 2], [1, 3]]
    assert of_tokens(fork, [0.1, 0.2, 0.3, 0.4]) == [0.1, 0.1, 0.3, 0.2, 0.2]
    assert sum(sum(row.mask) for row in fork.flatten()) == 5
    assert of_tokens(fork, [0.5] * 4) is None
