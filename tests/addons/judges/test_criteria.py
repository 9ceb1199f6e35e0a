"""The judge by weighted criteria: each part against a table worked out by hand, and every task's own outcome."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from random import Random
from typing import Any

import pytest

import environments
from addons.judges import criteria as judge
from addons.judges.criteria import accuracy, alike, clamp, completeness, criteria, efficiency, satisfaction
from addons.judges.section import Criteria
from environments import tasks
from environments.base import Env, Message, Outcome, Scenario, Split, use, words
from steps.core.records import StopReason, Trajectory, Turn, read_records, write_records
from tests.conftest import ROOT
from tests.support.capitals import CapitalsTask

SPLITS: tuple[Split, ...] = ("train", "val", "test")
EACH = 2  # scenarios of a split
PERU = Scenario.make(
    "_template",
    "train",
    [{"role": "user", "content": "What is the capital of Peru?"}],
    {"country": "Peru", "answer": "Lima"},
)


def played(scenario: Scenario, messages: Sequence[Message], stop: StopReason = "done", tokens: int = 20) -> Trajectory:
    """A transcript as a trajectory, of so many sampled tokens a turn."""
    turns: list[tuple[Message, list[Message]]] = []
    for message in messages[len(scenario.messages) :]:
        if message["role"] == "assistant":
            turns.append((message, []))
        else:
            turns[-1][1].append(message)
    ids = (1,) * tokens
    made = [
        Turn(
            prompt_ids=(1,),
            completion_ids=ids,
            logprobs=(-0.5,) * tokens,
            message=message,
            observations=tuple(observations),
            finish_reason="stop",
        )
        for message, observations in turns
    ]
    return Trajectory(
        id="one", scenario_id=scenario.id, attempt=0, adapter_hash="none", turns=tuple(made), stop_reason=stop
    )


def capital(*turns: Message) -> list[Message]:
    """A transcript of the capitals' task."""
    env, messages = CapitalsTask(PERU, {"Peru": "Lima", "Chile": "Santiago"}), list(PERU.messages)
    for turn in turns:
        messages += [turn, *env.step(turn)]
    return messages


# --- Accuracy


@pytest.mark.parametrize(
    ("given", "expected", "value"),
    [
        ("Lima", "Lima", 1.0),
        ("  LIMA\n", "lima", 1.0),
        ("New   Delhi", "new delhi", 1.0),
        ("", "", 1.0),
        ("", "lima", 0.0),
        ("lima", "rrrr", 0.0),
        ("Limo", "Lima", 0.75),  # "lim": 2 * 3 / (4 + 4)
        ("abcd", "bcde", 0.75),  # "bcd"
        ("It is Lima", "Lima", 8 / 14),  # right, but said in a sentence
        ("Élan", "élan", 1.0),
        ("서울특별시", "서울", 4 / 7),
        ("القاهرة", "القاهرة", 1.0),
        ("İ", "i", 2 / 3),  # in small letters an i and a dot of its own
        ("\ud800", "lima", 0.0),
        (3, 3, 1.0),
        (3, 3.0, 1.0),
        (3, 4, 0.0),
        (math.nan, math.nan, 0.0),
        (True, True, 1.0),
        (True, False, 0.0),
        (True, 1, 0.0),
        (0, False, 0.0),
        ("42", 42, 1.0),
        (" 42.0 ", 42, 1.0),
        ("42 apples", 42, 0.0),
        ("nan", 42, 0.0),
        ("9" * 5000, 42, 0.0),  # more digits than Python reads as a whole number
        (42, "42", 0.0),
        (None, "Lima", 0.0),
        (["a", "b"], ["a", "b"], 1.0),
        (["b", "a"], ["a", "b"], 0.0),
        (["a"], ["a", "b"], 0.5),
        (["a", "b", "c", "d"], ["a"], 0.25),
        (("a", 1), ["a", 1], 1.0),
        ([], [], 1.0),
        ([], ["a"], 0.0),
        ({}, {}, 1.0),
        ({"a": 1}, {}, 0.0),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, 1.0),
        ({"a": 1, "b": 3}, {"a": 1, "b": 2}, 0.5),
        ({"a": 1}, {"a": 1, "b": 2}, 0.5),
        ({"a": 1, "b": 2, "c": 3}, {"a": 1}, 1 / 3),
        ({"b": 1}, {"a": 1}, 0.0),
        ({"city": "Limo", "n": 2}, {"city": "Lima", "n": 2}, 0.875),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, 0.5),
        ({"a": 1}, "a", 0.0),
        ("a", ["a"], 0.0),
        ({"action": "refund", "order": "1", "amount": 20}, {"action": "refund", "order": "1", "amount": 30}, 2 / 3),
    ],
)
def test_likeness(given: Any, expected: Any, value: float) -> None:
    assert alike(given, expected) == pytest.approx(value, abs=1e-12)


def test_long_texts_are_compared_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """difflib never sees more than the bound, whose cube is small; what lies beyond it counts as different."""
    seen: list[int] = []

    class Watched(SequenceMatcher[str]):
        def __init__(self, isjunk: None, a: str, b: str, autojunk: bool) -> None:
            seen.extend((len(a), len(b)))
            super().__init__(isjunk, a, b, autojunk)

    monkeypatch.setattr(judge, "SequenceMatcher", Watched)
    huge = "lima " * 200_000  # 1 MB
    for given, expected, value in (
        (huge, "lima", 8 / (4 + 999_999)),  # the last space is none
        ("lima", huge, 8 / (4 + 999_999)),
        (huge, huge.upper(), 1.0),
        ("a" * 1000, "a" * 600, 600 / 1600),
        ("a" * 300 + "b" * 300, "a" * 300 + "c" * 300, 0.5),
        ("a" * 1_000_000, "ab" * 500_000, 300 / 2_000_000),
        ({"text": [huge] * 3}, {"text": ["lima"]}, 8 / (4 + 999_999) / 3),
        (" " * 1_000_000 + "lima", "Lima", 1.0),
    ):
        assert alike(given, expected) == pytest.approx(value, rel=1e-9)
    assert max(seen) == judge.LONGEST
    assert judge.LONGEST**3 < 3e7


def test_likeness_goes_no_deeper_than_what_is_expected() -> None:
    deep: Any = "end"
    for _ in range(100_000):
        deep = [deep]
    assert alike(deep, ["end"]) == 0.0
    assert alike({"a": deep, "b": 1}, {"a": "end", "b": 1}) == 0.5


@pytest.mark.parametrize(
    ("outcome", "success", "value", "why"),
    [
        (Outcome("Lima", "Lima"), True, 1.0, "how like"),
        (Outcome("Limo", "Lima"), False, 0.75, "how like"),
        (Outcome("Limo", "Lima"), True, 0.75, "how like"),  # where something is expected, it alone counts
        (Outcome("Limo", "Lima", accuracy=1.0), False, 0.75, "how like"),
        (Outcome(None, "Lima"), False, 0.0, "there is no result"),
        (Outcome("", ""), False, 1.0, "how like"),
        (Outcome(), True, 1.0, "a success"),
        (Outcome(accuracy=0.5), True, 1.0, "a success"),
        (Outcome(accuracy=0.5), False, 0.5, "the task's own measure"),
        (Outcome(accuracy=1.5), False, 1.0, "the task's own measure"),
        (Outcome(accuracy=-1.0), False, 0.0, "the task's own measure"),
        (Outcome(accuracy=math.nan), False, 0.0, "the task's own measure"),
        (Outcome(), False, 0.0, "no success"),
    ],
)
def test_accuracy(outcome: Outcome, success: bool, value: float, why: str) -> None:
    found, said = accuracy(outcome, success)
    assert found == value
    assert why in said


# --- The other parts


@pytest.mark.parametrize(
    ("turns", "optimum", "value"),
    [
        (0, 3, 1.0),
        (2, 3, 1.0),
        (3, 3, 1.0),
        (4, 3, 5 / 6),  # a third more than needed: 1 - 0.5 / 3
        (6, 3, 0.5),
        (9, 3, 0.0),
        (30, 3, 0.0),
        (2, 1, 0.5),
        (3, 1, 0.0),
        (3, 0, 0.0),  # no division by nothing
        (1, None, 1.0),
        (250, None, 1.0),
    ],
)
def test_efficiency(turns: int, optimum: int | None, value: float) -> None:
    found, why = efficiency(turns, optimum)
    assert found == pytest.approx(value)
    assert ("not known" in why) == (optimum is None)


@pytest.mark.parametrize(
    ("required", "stop", "value", "why"),
    [
        ({"search": True, "read": True, "answer": True}, "done", 1.0, "3 of 3 required actions were done"),
        ({"search": True, "read": True, "answer": True}, "length", 1.0, "3 of 3 required actions were done"),
        ({"search": True, "read": False, "answer": True}, "done", 2 / 3, "without: read"),
        ({"search": False, "read": False}, "done", 0.0, "without: search, read"),
        ({}, "done", 1.0, "ended by: done"),
        ({}, "max_turns", 0.0, "ended by: max_turns"),
        ({}, "length", 0.0, "ended by: length"),
        ({}, "context", 0.0, "ended by: context"),
    ],
)
def test_completeness(required: dict[str, bool], stop: str, value: float, why: str) -> None:
    found, said = completeness(required, stop)
    assert found == pytest.approx(value)
    assert why in said


@pytest.mark.parametrize(
    ("errors", "seconds", "value"),
    [
        (0, 0.0, 1.0),
        (0, 30.0, 1.0),
        (0, 60.0, 0.5),
        (0, 90.0, 0.0),
        (0, 9000.0, 0.0),
        (1, 0.0, 0.8),
        (4, 0.0, 0.2),
        (5, 0.0, 0.0),
        (50, 0.0, 0.0),
        (2, 36.0, 0.5),
    ],
)
def test_satisfaction(errors: int, seconds: float, value: float) -> None:
    assert satisfaction(errors, seconds)[0] == pytest.approx(value)


def test_clamping() -> None:
    assert [clamp(value) for value in (-math.inf, -0.1, 0.0, 0.3, 1.0, 1.1, math.inf, math.nan)] == [
        *(0.0, 0.0, 0.0, 0.3),
        *(1.0, 1.0, 1.0, 0.0),
    ]


# --- The whole


LOOK, LOST, LIMO, LIMA = (
    use("look_up", country="Peru"),
    use("look_up", country="Atlantis"),
    use("answer", capital="Limo"),
    use("answer", capital="Lima"),
)


@pytest.mark.parametrize(
    ("turns", "stop", "tokens", "parts"),
    [
        ([LOOK, LIMA], "done", 20, (1.0, 1.0, 1.0, 1.0)),
        ([LIMA], "done", 20, (1.0, 1.0, 1.0, 1.0)),  # a guess that is right: the template requires no look
        # Four turns where two will do; two errors; 2,000 tokens at 50 a second are 10 s more than patience has.
        ([LOST, LOST, LOOK, LIMO], "done", 500, (0.75, 0.5, 1.0, 0.6 - 10 / 60)),
        ([LOOK, LOOK, LOOK, LOOK], "max_turns", 20, (0.0, 0.5, 0.0, 1.0)),
        ([words("Lima")], "length", 5000, (0.0, 1.0, 0.0, 0.0)),  # 100 s, and an error
        ([], "context", 0, (0.0, 1.0, 0.0, 1.0)),  # no turn was taken
    ],
)
def test_the_whole_is_the_weighted_sum(
    turns: list[Message], stop: StopReason, tokens: int, parts: tuple[float, ...]
) -> None:
    settings = Criteria(accuracy=0.4, efficiency=0.3, completeness=0.2, satisfaction=0.1)
    reward = criteria(CapitalsTask, PERU, played(PERU, capital(*turns), stop, tokens), settings)
    weighted = [weight * part for weight, part in zip((0.4, 0.3, 0.2, 0.1), parts, strict=True)]
    assert reward.score == pytest.approx(sum(weighted))
    assert list(reward.components) == ["accuracy", "efficiency", "completeness", "satisfaction"]
    assert list(reward.components.values()) == pytest.approx(weighted)
    assert (reward.name, reward.trajectory_id, reward.scenario_id) == ("criteria", "one", PERU.id)
    assert reward.success == (turns[-1:] == [LIMA])
    for (name, weight), part in zip(settings.model_dump().items(), parts, strict=False):
        assert f"{name} {part:.3g} × {weight:g}: " in reward.explanation


@pytest.mark.parametrize(
    ("weights", "score"),
    [
        ((1.0, 0.0, 0.0, 0.0), 0.75),
        ((0.0, 1.0, 0.0, 0.0), 0.5),
        ((0.0, 0.0, 1.0, 0.0), 1.0),
        ((0.5, 0.5, 0.0, 0.0), 0.625),
    ],
)
def test_the_weights_are_those_that_are_set(weights: tuple[float, ...], score: float) -> None:
    names = ("accuracy", "efficiency", "completeness", "satisfaction")
    settings = Criteria.model_validate(dict(zip(names, weights, strict=True)))
    assert criteria(CapitalsTask, PERU, played(PERU, capital(LOOK, LOOK, LOOK, LIMO)), settings).score == pytest.approx(
        score
    )


def test_response_time_is_told_from_tokens() -> None:
    for tokens, value in ((750, 1.0), (1500, 0.5), (3000, 0.0)):  # of each turn: 30, 60 and 120 s in all
        trajectory = played(PERU, capital(LOOK, LIMA), tokens=tokens)
        assert criteria(CapitalsTask, PERU, trajectory, Criteria()).components["satisfaction"] == pytest.approx(
            0.1 * value
        )


def test_a_failed_episode_is_unscored() -> None:
    trajectory = played(PERU, capital(LOOK, LIMA), "error").model_copy(update={"error": "the server went away"})
    reward = criteria(CapitalsTask, PERU, trajectory, Criteria())
    assert (reward.score, reward.success, reward.components) == (None, False, {})
    assert reward.explanation == "the episode failed: the server went away"


def test_what_the_policy_writes_is_not_quoted(tmp_path: Path) -> None:
    """A reward must be storable, whatever was said; and the same trajectory gives the same bytes."""
    odd = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "answer", "arguments": {"a": "\ud800"}}}],
    }
    rewards = [
        criteria(CapitalsTask, PERU, played(PERU, capital(odd, words("\ud800\0"), LIMA)), Criteria()) for _ in range(2)
    ]
    for number, reward in enumerate(rewards):
        write_records([reward], tmp_path / str(number))
        assert read_records(type(reward), tmp_path / str(number)) == [reward]
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


# --- What a transcript came to


def call(arguments: Any, content: str = "") -> Message:
    made = {"type": "function", "function": {"name": "answer", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [made]}


@pytest.mark.parametrize(
    ("turns", "given"),
    [
        ([], None),
        ([words("It is Lima. ")], "It is Lima."),
        ([words("")], None),
        ([words("Quito"), words("Lima")], "Lima"),
        ([words("Lima"), {"role": "user", "content": "Quito?"}], "Lima"),
        ([call({"capital": "Lima"})], "Lima"),
        ([call({"capital": "Lima", "year": 1535, "sure": True, "country": "Peru"}, "I think")], "Lima Peru"),
        ([call({"year": 1535})], None),
        ([call("Lima")], None),  # arguments that could not be read
        ([{"role": "assistant", "content": None}], None),
    ],
)
def test_a_task_that_says_nothing_is_judged_by_its_last_turn(turns: list[Message], given: str | None) -> None:
    assert Env.outcome(PERU, [*PERU.messages, *turns]) == Outcome(given, "Lima")


def test_where_no_answer_is_hidden_nothing_is_expected() -> None:
    scenario = Scenario.make("_template", "train", PERU.messages, {"country": "Peru"})
    assert Env.outcome(scenario, [*scenario.messages, words("Lima")]).expected is None


def each_task() -> list[str]:
    return ["_template", "tests.support.capitals", *tasks(agents=False)]


@pytest.fixture(scope="module", params=each_task())
def plays(request: pytest.FixtureRequest) -> list[tuple[type[Env], Scenario, str, list[Message], bool]]:
    """(task, scenario, player, transcript, whether it ended by itself) of several scenarios of each split."""
    env, data = loaded(request.param)
    slow = request.param in ("code_repair", "game_2048_whole")  # a call starts a process; gold thinks for seconds
    chosen = [one for split in SPLITS for one in env.scenarios(data, split, 1 if slow else EACH, 7)][
        : 2 if slow else None
    ]
    made = []
    for one in chosen:
        for player in ("gold", "bad") if slow else ("gold", "bad", "scripted", "random"):
            episode = env(one, data)
            if env.has_player(player):
                made.append((env, one, player, episode.play(player), episode.done))
    return made


def loaded(name: str) -> tuple[type[Env], Any]:
    env = environments.load(name)
    return env, env.load(ROOT / "tasks_data" / ("_template" if "." in name else name))


def judged(env: type[Env], scenario: Scenario, messages: Sequence[Message], done: bool) -> Any:
    return criteria(env, scenario, played(scenario, messages, "done" if done else "max_turns"), Criteria())


def test_gold_is_worth_nearly_all_and_more_than_bad(plays: Any) -> None:
    scores: dict[str, dict[str, float]] = {}
    for env, one, player, messages, done in plays:
        scores.setdefault(one.id, {})[player] = judged(env, one, messages, done).score
    for found in scores.values():
        if not {"gold", "bad"} <= found.keys():
            continue
        assert found["gold"] >= 0.9
        assert found["gold"] > found["bad"] + 0.05


def test_any_part_of_an_episode_is_scored(plays: Any) -> None:
    for env, one, player, messages, done in plays:
        required: set[tuple[str, ...]] = set()
        for end in cuts(one, messages):
            reward = judged(env, one, messages[:end], done and end == len(messages))
            assert 0 <= reward.score <= 1 + 1e-9
            assert abs(reward.score - sum(reward.components.values())) < 1e-9
            assert all(-1e-9 <= value <= 1 for value in reward.components.values())
            outcome = env.outcome(one, messages[:end])
            required.add(tuple(outcome.required))
            assert outcome.expected is not None or outcome.accuracy is not None
            json.dumps(outcome.expected)
        assert len(required) == 1, f"{player}: what is required depends on what was done"


def cuts(scenario: Scenario, messages: Sequence[Message]) -> Iterator[int]:
    """Where a transcript may have been cut off: a few places, all where it is short."""
    places = range(len(scenario.messages), len(messages))
    yield from sorted(Random(scenario.id).sample(places, min(8, len(places))))
    yield len(messages)


@pytest.mark.parametrize(
    ("task", "player", "required"),
    [
        ("tests.support.capitals", "bad", [{"answer": True}]),
        ("email_search", "gold", [{"search": True, "read": True, "answer": True}]),
        ("email_search", "bad", [{"search": False, "read": False, "answer": True}]),
        ("email_search_plus", "gold", [{"search": True, "read": True, "answer": True}]),
        ("email_search_plus", "bad", [{"search": False, "read": False, "answer": True}]),
        ("multiplication", "bad", [{}]),
        ("tic_tac_toe", "gold", [{"play to the end": True}]),
        ("tic_tac_toe", "bad", [{"play to the end": False}]),
        ("game_2048", "gold", [{"play to the end": True}]),
        (
            "knowledge_search",
            "bad",  # a search, and an answer from nowhere
            [
                {"search": True, "open 1": False, "answer": True},
                {"search": True, "open 1": False, "open 2": False, "answer": True},
            ],
        ),
        (
            "support_dialogue",
            "gold",
            [
                {"keep to the policy": True, "close": True},
                {"verify": True, "look": True, "keep to the policy": True, "close": True},
            ],
        ),
    ],
)
def test_required_actions(task: str, player: str, required: list[dict[str, bool]]) -> None:
    env, data = loaded(task)
    found = [dict(env.outcome(one, env(one, data).play(player)).required) for one in env.scenarios(data, "test", 12, 3)]
    assert all(one in found for one in required)
    assert all(one in required for one in found)


def test_what_failed_was_not_done() -> None:
    """A search that was refused, another mail, another document, a case that was closed without a word."""
    env, data = loaded("email_search")
    one = env.scenarios(data, "test", 1, 1)[0]
    source = one.data["source_ids"][0]
    for turn, required in (
        (use("search_emails", keywords=[]), (False, False)),
        (use("search_emails", keywords=["unheard"]), (True, False)),
        (use("read_email", id="m0"), (False, False)),
        (use("read_email", id=source), (False, True)),
        (use("return_final_answer", answer="x"), (False, False)),
    ):
        messages = [*one.messages, turn, *env(one, data).step(turn)]
        assert tuple(env.outcome(one, messages).required.values()) == (*required, False)
    env, data = loaded("knowledge_search")
    one = next(one for one in env.scenarios(data, "test", 8, 1) if one.data["kind"] == "two-hop")
    first, second = (hop[0] for hop in one.data["sources"])
    other = next(name for name in (f"d{number}" for number in range(100, 999)) if name not in (first, second))
    for opened, done in (
        (first, [True, False]),
        (second, [False, True]),
        (other, [False, False]),
        ("d", [False, False]),
    ):
        turn = use("open", id=opened)
        opens = env.outcome(one, [*one.messages, turn, *env(one, data).step(turn)]).required
        assert [opens["open 1"], opens["open 2"]] == done
    env, data = loaded("support_dialogue")
    one = next(one for one in env.scenarios(data, "test", 60, 1) if one.data["expected"]["action"] == "tell")
    turn = use("close", summary="done")
    outcome = env.outcome(one, [*one.messages, turn, *env(one, data).step(turn)])
    assert (outcome.given, outcome.required["close"]) == (None, True)


def test_results_of_games() -> None:
    """A draw is half a win, unless nobody wins against this opponent; of 2048 it is the largest tile."""
    tic_tac_toe, game = loaded("tic_tac_toe")
    for one in tic_tac_toe.scenarios(game, "test", 30, 1):
        for ending, value in (("You win.", 1.0), ("Draw.", 0.5), ("You lose.", 0.0), ("", 0.0)):
            shown = {"role": "tool", "name": "move", "content": f"X O X\nO X O\nO X O\n{ending}"}
            messages = [*one.messages, use("move", cell=1), shown]
            assert tic_tac_toe.outcome(one, messages).accuracy == value
            counted = 1.0 if ending == "Draw." and one.data["opponent"] == "minimax" else value
            assert judged(tic_tac_toe, one, messages, True).components["accuracy"] == pytest.approx(0.4 * counted)
    game_2048, rules = loaded("game_2048")
    [made] = game_2048.scenarios(rules, "test", 1, 1)
    one = Scenario.make(made.task, made.split, made.messages, made.data | {"target": 64})
    for tile, text, value in (
        (8, "\nGame over.", 3 / 6),
        (32, "", 5 / 6),
        (64, "\nYou reached 64.", 1.0),
        (128, "", 1.0),
    ):
        shown = {"role": "tool", "name": "move", "content": f"{tile} 2 0 0\n0 0 0 0\n0 0 0 0\n0 0 0 2{text}"}
        outcome = game_2048.outcome(one, [*one.messages, use("move", direction="left"), shown])
        assert outcome.accuracy == pytest.approx(value)
        assert outcome.required == {"play to the end": bool(text)}


def test_results_of_code_are_the_tests_passed() -> None:
    env, data = loaded("code_repair")
    [one] = env.scenarios(data, "test", 1, 1)
    for text, accuracy_, handed_in in (("Passed 3 of 4.", 0.75, True), ("Error: code is too long.", 0.0, False)):
        messages = [*one.messages, use("submit", code="x"), {"role": "tool", "name": "submit", "content": text}]
        assert env.outcome(one, messages) == Outcome(None, None, 2, {"submit": handed_in}, accuracy_)


def test_results_of_a_product_are_its_digits() -> None:
    env, data = loaded("multiplication")
    [one] = env.scenarios(data, "test", 1, 1)
    for said, given in (("It is 1,234.", "1234"), ("no idea", None), ("", None), ("7 or 8", "8")):
        assert env.outcome(one, [*one.messages, words(said)]) == Outcome(given, str(one.data["answer"]), 1)


def test_not_known_is_one_result_however_it_is_said() -> None:
    env, data = loaded("knowledge_search")
    one = next(one for one in env.scenarios(data, "test", 8, 1) if one.data["kind"] == "unanswerable")
    for said, given in (("I don't know", "not known"), ("Unknown.", "not known"), ("Tor Halden", "Tor Halden")):
        turn, end = (
            use("answer", text=said, citations=[]),
            {"role": "tool", "name": "answer", "content": "The answer was given."},
        )
        outcome = env.outcome(one, [*one.messages, turn, end])
        assert (outcome.given, outcome.expected) == (given, "not known")


def test_results_of_a_dialogue_are_what_was_done_last() -> None:
    env, data = loaded("support_dialogue")
    seen = set()
    for one in env.scenarios(data, "test", 60, 1):
        gold = env.outcome(one, env(one, data).play("gold"))
        assert gold.given == gold.expected == one.data["expected"]
        assert env.outcome(one, one.messages).given is None
        seen.add(one.data["expected"]["action"])
    assert seen == {"refund", "exchange", "tell", "address", "cancel", "escalate", "refuse"}


def test_who_acts_without_a_check_breaks_the_policy() -> None:
    env, data = loaded("support_dialogue")
    one = next(one for one in env.scenarios(data, "test", 60, 1) if one.data["expected"]["action"] == "cancel")
    episode, messages = env(one, data), list(one.messages)
    for turn in (use("cancel_order", order=one.data["expected"]["order"]), use("close", summary="done")):
        messages += [turn, *episode.step(turn)]
    outcome = env.outcome(one, messages)
    assert outcome.given == outcome.expected
    assert outcome.required == {"verify": False, "look": False, "keep to the policy": False, "close": True}
    assert judged(env, one, messages, True).score == pytest.approx(0.4 + 0.3 + 0.2 / 4 + 0.1)
