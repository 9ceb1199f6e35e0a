"""The token contract: each breach by its reason, and no corruption of a training row that goes unseen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steps.core.errors import UserError
from steps.core.records import Row, StopReason, Trajectory, Turn
from steps.training.contract import breach, check_adapter, end_of_turn, rows_breach

VOCABULARY, END = 60, 9


def turn(prompt: list[int], sampled: list[int], **changes: Any) -> Turn:
    values = {
        "prompt_ids": tuple(prompt),
        "completion_ids": tuple(sampled),
        "logprobs": tuple(-0.5 - place for place in range(len(sampled))),
        "message": {"role": "assistant", "content": "text"},
        "observations": (),
        "finish_reason": "stop" if sampled[-1:] == [END] else "length",
    }
    return Turn.model_validate(values | changes)


def trajectory(*turns: Turn, stop_reason: StopReason = "done", name: str = "s1/0", adapter: str = "a1") -> Trajectory:
    scenario, _, attempt = name.partition("/")
    return Trajectory(
        id=name,
        scenario_id=scenario,
        attempt=int(attempt),
        adapter_hash=adapter,
        turns=turns,
        stop_reason=stop_reason,
        error="boom" if stop_reason == "error" else None,
    )


def reason(one: Trajectory) -> str | None:
    try:
        rows = one.flatten()
    except ValueError:
        rows = []
    return breach(one, rows, END, VOCABULARY)


def two_turns() -> list[Turn]:
    return [turn([1, 2], [3, END]), turn([1, 2, 3, END, 4], [5, 6, END])]


def random_trajectory(seed: int) -> Trajectory:
    """Turns that extend one another, but for a break now and then; cut off at the end now and then."""
    rng = random.Random(seed)

    def tokens(most: int) -> list[int]:
        return [rng.choice([token for token in range(VOCABULARY) if token != END]) for _ in range(rng.randint(1, most))]

    turns: list[Turn] = []
    ids: list[int] = []
    stop_reason: StopReason = "done"
    for left in reversed(range(rng.randint(1, 5))):
        prompt = tokens(6) if rng.random() < 0.2 else ids + tokens(6)
        sampled = [*tokens(5), END][rng.randrange(2) :]
        if left == 0 and rng.random() < 0.3:
            sampled, stop_reason = tokens(5), "length"
        logprobs = tuple(-rng.expovariate(1) for _ in sampled)
        turns.append(turn(prompt, sampled, logprobs=logprobs))
        ids = [*prompt, *sampled]
    return trajectory(*turns, stop_reason=stop_reason)


def random_agent(seed: int) -> Trajectory:
    """As an agent asks by itself: conversations that take turns and fork anywhere, turns that are cut off, end by a stop
    text, or were chosen by a grammar, and now and then a turn that goes on where another was cut off."""
    rng = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        count = rng.randint(least, most)
        return [rng.choice([token for token in range(VOCABULARY) if token != END]) for _ in range(count)]

    turns: list[Turn] = []
    ends: list[list[int]] = []
    for _ in range(rng.randint(1, 8)):
        branch = rng.choice([*ends, *ends[-1:], []])
        prompt = branch + tokens(0 if branch and branch[-1] != END else 1, 5)
        reason = rng.choice(["stop", "stop", "length"])
        sampled = tokens(1, 4) + ([END] if reason == "stop" and rng.random() < 0.8 else [])
        ends.append([*prompt, *sampled])
        changes: dict[str, Any] = {"finish_reason": reason, "is_constrained": rng.random() < 0.2}
        if not turns or branch != ends[-2]:
            changes |= {"context": ({"role": "user", "content": "?"},), "fork": "edited" if turns else ""}
        turns.append(turn(prompt, sampled, logprobs=tuple(-rng.expovariate(1) for _ in sampled), **changes))
    return trajectory(*turns)


# --- What is fine


@pytest.mark.parametrize("stop_reason", ["done", "max_turns", "context"])
def test_whole_episodes_are_fine(stop_reason: StopReason) -> None:
    assert reason(trajectory(*two_turns(), stop_reason=stop_reason)) is None


def test_an_episode_cut_off_in_a_turn_is_fine() -> None:
    assert reason(trajectory(turn([1, 2], [3, END]), turn([1, 2, 3, END, 4], [5, 6]), stop_reason="length")) is None


def test_a_prompt_that_does_not_extend_begins_a_row() -> None:
    one = trajectory(turn([1, 2], [3, END]), turn([1, 7, 3, END, 4], [5, END]))
    assert len(one.flatten()) == 2
    assert reason(one) is None


def test_untouched_trajectories_pass() -> None:
    made = [random_trajectory(seed) for seed in range(300)]
    assert [one.id for one in made if breach(one, one.flatten(), END, VOCABULARY)] == []
    # of all kinds: else this, and the test of corruption below, would say little
    assert {len(one.turns) for one in made} == {1, 2, 3, 4, 5}
    assert {one.stop_reason for one in made} == {"done", "length"}
    assert {len(one.flatten()) for one in made} >= {1, 2, 3}
    assert any(len(one.turns) > len(one.flatten()) > 1 for one in made)


def test_whatever_an_agent_asks_passes_and_each_sampled_token_bears_loss_once() -> None:
    made = [random_agent(seed) for seed in range(300)]
    for one in made:
        rows = one.flatten()
        assert breach(one, rows, END, VOCABULARY) is None
        borne = sorted(pair for row in rows for pair in zip(row.logprobs, row.ids, row.mask, strict=True) if pair[2])
        sampled = [
            zip(turn.logprobs, turn.completion_ids, strict=True) for turn in one.turns if not turn.is_constrained
        ]
        assert borne == sorted((*pair, 1) for pairs in sampled for pair in pairs)
    interleaved = [one for one in made if len(one.flatten()) > 1 and len(one.turns) > len(one.flatten())]
    assert len(interleaved) > 50
    assert any(turn.is_constrained for one in made for turn in one.turns)
    assert any(turn.finish_reason == "length" for one in made for turn in one.turns[:-1])
    assert any(turn.finish_reason == "stop" and turn.completion_ids[-1] != END for one in made for turn in one.turns)


# --- A reason for each breach


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"prompt_ids": ()}, "a turn without a prompt"),
        ({"completion_ids": (), "logprobs": ()}, "a turn without sampled tokens"),
        ({"logprobs": (-1.0,)}, "not as many logprobs as sampled tokens"),
        ({"logprobs": (-1.0,) * 4}, "not as many logprobs as sampled tokens"),
        ({"logprobs": (-1.0, 1e-3, -1.0)}, "a logprob that is not finite or above zero"),
        ({"completion_ids": (5, VOCABULARY, END)}, "a token that the model does not know"),
        ({"completion_ids": (5, -1, END)}, "a token that the model does not know"),
        ({"prompt_ids": (1, 2, 3, END, VOCABULARY)}, "a token that the model does not know"),
        ({"completion_ids": (5, 6, 7)}, "a turn whose finish_reason does not fit its last token"),
        ({"finish_reason": "length"}, "a turn whose finish_reason does not fit its last token"),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_turn_that_breaks_the_contract(change: dict[str, Any], expected: str, place: int) -> None:
    turns = two_turns()
    if place == 0:  # the other one as the first
        turns = [turn([1, 2, 3, END, 4], [5, 6, END]), turn([1, 2, 3, END, 4, 5, 6, END, 7], [8, END])]
    turns[place] = turns[place].model_copy(update=change)
    assert reason(trajectory(*turns)) == expected


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf])
def test_logprobs_are_finite(logprob: float) -> None:
    """A record refuses these when it is read; what is made in memory must not get through either."""
    broken = two_turns()[1].model_copy(update={"logprobs": (-1.0, logprob, -1.0)})
    assert reason(trajectory(two_turns()[0], broken)) == "a logprob that is not finite or above zero"


def test_a_logprob_may_be_zero_but_for_rounding() -> None:
    assert reason(trajectory(turn([1], [2, END], logprobs=(0.0, 5e-7)))) is None


def test_failed_and_empty_episodes() -> None:
    assert reason(trajectory(*two_turns(), stop_reason="error")) == "the episode failed"
    assert reason(trajectory(stop_reason="error")) == "the episode failed"
    assert reason(trajectory(stop_reason="context")) == "no turn was sampled"


@pytest.mark.parametrize(
    ("lasts", "stop_reason"),
    [([END, 5], "done"), ([END, 5], "context"), ([END, END], "length"), ([5, END], "done"), ([5, 6], "length")],
    ids=str,
)
def test_a_turn_cut_off_is_the_last_and_ends_the_episode(lasts: list[int], stop_reason: StopReason) -> None:
    one = trajectory(turn([1], [2, lasts[0]]), turn([1, 2, lasts[0], 3], [4, lasts[1]]), stop_reason=stop_reason)
    assert reason(one) == "a stop_reason that does not fit the last turn"


def test_what_an_agent_of_ones_own_may_and_may_not() -> None:
    """It goes on after a turn that was cut off or ended by a stop text; nobody else's episode does."""
    asked = {"context": ({"role": "user", "content": "?"},)}
    turns = [turn([1], [2, 5], **asked), turn([1, 2, 5, END, 3], [4, 6], finish_reason="stop")]
    its_own: tuple[StopReason, ...] = ("done", "context")
    for stop_reason in its_own:
        assert reason(trajectory(*turns, stop_reason=stop_reason)) is None
    native = [turns[0].model_copy(update={"context": ()}), turns[1]]
    assert reason(trajectory(*native)) == "a turn whose finish_reason does not fit its last token"
    others: tuple[StopReason, ...] = ("length", "max_turns")
    for stop_reason in others:
        expected = "a stop_reason that an agent of one's own does not have"
        assert reason(trajectory(*turns, stop_reason=stop_reason)) == expected
    assert reason(trajectory(*turns, stop_reason="error")) == "the episode failed"
    ended = turn([1], [2, END], finish_reason="length", **asked)
    assert reason(trajectory(ended)) == "a turn whose finish_reason does not fit its last token"


def test_without_a_token_that_ends_turns_none_says_that_it_ended() -> None:
    cut = trajectory(turn([1, 2], [3, 4]), stop_reason="length")
    assert breach(cut, cut.flatten(), None, VOCABULARY) is None
    whole = trajectory(turn([1, 2], [3, END]))
    assert breach(whole, whole.flatten(), None, VOCABULARY) == "a turn whose finish_reason does not fit its last token"


# --- Training rows


IDS, MASK = [1, 2, 3, END, 4, 5, 6, END], [0, 0, 1, 1, 0, 1, 1, 1]
LOGPROBS = [0.0, 0.0, -0.5, -1.5, 0.0, -0.5, -1.5, -2.5]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([Row(IDS, MASK, LOGPROBS)], None),
        ([Row(IDS, MASK[:-1], LOGPROBS)], "a training row whose ids, mask and logprobs differ in length"),
        ([Row(IDS, MASK, [*LOGPROBS, 0.0])], "a training row whose ids, mask and logprobs differ in length"),
        ([Row([1, 2, 7, *IDS[3:]], MASK, LOGPROBS)], "a training row that does not extend turn by turn"),
        ([Row(IDS[:4], MASK[:4], LOGPROBS[:4])], "a turn that is in no training row"),
        ([], "a turn that is in no training row"),
        ([Row(IDS, [0, 1, 1, 1, 0, 1, 1, 1], LOGPROBS)], "a mask that does not alternate as the turns do"),
        ([Row(IDS, [0, 0, 1, 1, 1, 1, 1, 1], LOGPROBS)], "a mask that does not alternate as the turns do"),
        ([Row(IDS, [0, 0, 0, 1, 0, 1, 1, 1], LOGPROBS)], "a mask that does not alternate as the turns do"),
        ([Row(IDS, MASK, [*LOGPROBS[:2], -1.5, -0.5, *LOGPROBS[4:]])], "a training row with logprobs of other tokens"),
        (
            [Row([*IDS, 7], [*MASK, 0], [*LOGPROBS, 0.0])],
            "a training row that goes on after its last turn",
        ),
        (
            [Row(IDS, MASK, LOGPROBS), Row(IDS[:4], MASK[:4], LOGPROBS[:4])],
            "a training row that goes on after its last turn",
        ),
    ],
)
def test_rows_fit_their_turns(rows: list[Row], expected: str | None) -> None:
    assert rows_breach(trajectory(*two_turns()), rows) == expected
    assert breach(trajectory(*two_turns()), rows, END, VOCABULARY) == expected


def test_a_turn_that_adds_no_prompt_is_no_turn() -> None:
    one = trajectory(turn([1, 2], [3, END]), turn([1, 2, 3, END], [4, END]))
    assert reason(one) == "a training row that does not extend turn by turn"


def corrupted(rows: list[Row], kind: str, rng: random.Random) -> list[Row]:
    """The rows with one thing about one token changed."""
    rows = [Row(list(row.ids), list(row.mask), list(row.logprobs)) for row in rows]
    row = rng.choice([row for row in rows if kind != "logprob" or any(row.mask)])
    place = rng.randrange(len(row.ids))
    if kind == "id":
        row.ids[place] = rng.choice([token for token in range(VOCABULARY) if token != row.ids[place]])
    elif kind == "mask":
        row.mask[place] = 1 - row.mask[place]
    elif kind == "logprob":  # of a sampled token: others' are not read
        place = rng.choice([place for place, is_sampled in enumerate(row.mask) if is_sampled])
        row.logprobs[place] -= rng.expovariate(1) + 1e-9
    elif kind == "row":
        rows.remove(row)
    else:
        lists: list[list[Any]] = [row.ids, row.mask, row.logprobs]
        for values in rng.choice([lists, lists[:1], lists[1:2], lists[2:]]):
            values[place : place + 1] = [] if kind == "dropped" else [values[place]] * 2
    return rows


@pytest.mark.parametrize("kind", ["id", "mask", "logprob", "dropped", "doubled", "row"])
@pytest.mark.parametrize("make", [random_trajectory, random_agent])
def test_any_corruption_of_a_row_is_found(make: Callable[[int], Trajectory], kind: str) -> None:
    for seed in range(500):
        one = make(seed)
        rows = one.flatten()
        if kind == "logprob" and not any(sum(row.mask) for row in rows):
            continue
        assert rows_breach(one, rows) is None
        assert rows_breach(one, corrupted(rows, kind, random.Random(seed))) is not None, (kind, seed)


# --- The batch


def test_the_token_that_ends_turns_is_the_last_of_most_that_ended() -> None:
    odd = turn([1], [2, 3], finish_reason="stop")
    cut = turn([1], [2, 4])
    assert end_of_turn([]) is None
    assert end_of_turn([trajectory(cut, stop_reason="length"), trajectory()]) is None
    assert end_of_turn([trajectory(odd)]) == 3
    assert end_of_turn([trajectory(odd), trajectory(*two_turns()), trajectory(cut), trajectory(cut)]) == END
    assert end_of_turn([trajectory(odd), trajectory(turn([1], [END]))]) == 3  # as often: the smaller one
    assert end_of_turn([trajectory(turn([1], [], finish_reason="stop")), trajectory(odd)]) == 3


def test_all_trajectories_come_from_the_checkpoints_adapter() -> None:
    batch = [trajectory(*two_turns(), name=f"s1/{number}") for number in range(3)]
    check_adapter(batch, "a1", Path("run/000/checkpoint"))
    batch.append(trajectory(name="s1/3", adapter="a0", stop_reason="error"))
    with pytest.raises(
        UserError,
        match=r"^1 of 4 trajectories were sampled by adapter a0, but run/000/checkpoint holds a1: a stale adapter",
    ):
        check_adapter(batch, "a1", Path("run/000/checkpoint"))
    with pytest.raises(UserError, match=r"^3 of 4 trajectories were sampled by adapter a1, but"):
        check_adapter(batch, "a0", Path("run/000/checkpoint"))
    with pytest.raises(UserError, match=r"^3 of 4 trajectories were sampled by adapter a1, but"):
        check_adapter(batch, "b", Path("run/000/checkpoint"))
