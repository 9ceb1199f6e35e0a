"""Curriculum: what is counted, how scenarios are judged and weighed, who is drawn how often; and none where it is off."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from addons.drawing import curriculum
from addons.drawing.curriculum import Standing, draw, slice_of, weigh
from addons.drawing.section import Curriculum
from environments.base import Scenario
from environments.multiplication import Multiplication
from steps.core.errors import UserError
from steps.core.params import Policy, Rollout, RolloutParams, Score, ScoreParams
from steps.core.records import Reward, Trajectory, Turn, read_records, write_records
from steps.rollout import choose, rollout
from steps.sampling import successes
from steps.sampling.job import Job
from steps.sampling.successes import extend
from steps.score import score
from tests.conftest import ROOT

DEFAULTS = Curriculum()


def reward(scenario: str, success: bool, scored: bool = True) -> Reward:
    value = float(success) if scored else None
    return Reward(trajectory_id="t", scenario_id=scenario, name="rule", score=value, success=success)


def toy(name: str, **data: Any) -> Scenario:
    return Scenario(id=name, task="toys", split="train", messages=({"role": "user", "content": name},), data=data)


def standing(name: str, weight: float) -> Standing:
    return Standing(name, None, 0, 0, None, weight)


# --- What is counted


def test_an_iteration_is_counted_by_scenario_and_put_at_the_end() -> None:
    rewards = [reward("b", True), reward("a", False), reward("b", False), reward("b", True)]
    assert extend([], rewards) == [{"a": [1, 0], "b": [3, 2]}]
    assert extend([{"c": [8, 8]}], rewards) == [{"c": [8, 8]}, {"a": [1, 0], "b": [3, 2]}]


def test_attempts_that_could_not_be_scored_do_not_count() -> None:
    rewards = [reward("a", True), reward("a", False, scored=False), reward("b", False, scored=False)]
    assert extend([], rewards) == [{"a": [1, 1]}]


def test_the_history_does_not_grow_without_end() -> None:
    history: Any = []
    for number in range(successes.KEPT + 5):
        history = extend(history, [reward(f"s{number}", True)])
    assert [next(iter(one)) for one in history] == [f"s{number}" for number in range(5, successes.KEPT + 5)]
    assert curriculum.WINDOW <= successes.KEPT


# --- How scenarios are judged


@pytest.mark.parametrize(
    ("attempts", "successes", "weight"),
    [  # low 0.1, high 0.9: shares at the bounds are neither too hard nor too easy
        (8, 0, 0.2),
        (10, 1, 1.0),
        (20, 1, 0.2),
        (8, 4, 1.0),
        (10, 9, 1.0),
        (20, 19, 0.2),
        (8, 8, 0.2),
    ],
)
def test_too_easy_and_too_hard_weigh_the_floor(attempts: int, successes: int, weight: float) -> None:
    [found] = weigh([toy("a")], [{"a": [attempts, successes]}], DEFAULTS)
    assert found == ("a", None, attempts, successes, "scenario", weight)


def test_attempts_add_up_within_the_window_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    history = [{"a": [4, 4]}, {"a": [4, 1]}, {}, {"a": [4, 0], "b": [2, 2]}]
    table = {1: (4, 0, 0.2), 2: (4, 0, 0.2), 3: (8, 1, 1.0), 4: (12, 5, 1.0), 9: (12, 5, 1.0)}
    for window, expected in table.items():
        monkeypatch.setattr(curriculum, "WINDOW", window)
        found, other = weigh([toy("a"), toy("b")], history, DEFAULTS)
        assert (found.attempts, found.successes, found.weight) == expected, window
        assert (other.attempts, other.successes, other.weight) == (2, 2, 0.2)


def test_a_scenario_without_attempts_is_judged_by_its_slice() -> None:
    scenarios = [
        toy("easy", kind="sum", difficulty=1),  # 8 of 8
        toy("easy too", kind="sum", difficulty=1),  # 7 of 8, so 15 of 16 in its slice
        toy("new", kind="sum", difficulty=1),
        toy("hard", kind="sum", difficulty=2),  # 0 of 8
        toy("new and hard", kind="sum", difficulty=2),
        toy("unknown", kind="product", difficulty=2),
        toy("no slice"),
        toy("tried", kind="product"),  # 4 of 8
        toy("new product", kind="product"),
    ]
    history = [{"easy": [8, 8], "hard": [8, 0]}, {"easy too": [8, 7], "tried": [8, 4], "of another split": [8, 8]}]
    found = weigh(scenarios, history, DEFAULTS)
    assert [(one.id, one.attempts, one.successes, one.judged_by, one.weight) for one in found] == [
        ("easy", 8, 8, "scenario", 0.2),
        ("easy too", 8, 7, "scenario", 1.0),
        ("new", 16, 15, "slice", 0.2),
        ("hard", 8, 0, "scenario", 0.2),
        ("new and hard", 8, 0, "slice", 0.2),
        ("unknown", 0, 0, None, 1.0),
        ("no slice", 0, 0, None, 1.0),
        ("tried", 8, 4, "scenario", 1.0),
        ("new product", 8, 4, "slice", 1.0),
    ]


def test_slices_are_kinds_and_difficulties() -> None:
    assert slice_of(toy("a", kind="sum", difficulty=2)) == "kind sum, difficulty 2"
    assert slice_of(toy("a", difficulty=2, other=1)) == "difficulty 2"
    assert slice_of(toy("a", kind="2")) == "kind 2"
    assert slice_of(toy("a", other=1)) is None


@pytest.mark.parametrize(
    "knobs",
    [{"floor": 0.2}, {"low": 0.9}, {"low": 0.5, "high": 0.5}, {"window": 4}, {"high": 1.1}],
    ids=str,
)
def test_knobs_that_make_no_sense_are_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Curriculum.model_validate(knobs)


# --- Who is drawn


def test_the_same_seed_and_iteration_draw_the_same() -> None:
    standings = [standing(str(number), 1.0 if number % 3 else 0.2) for number in range(30)]
    first = draw(standings, 8, 4, 1)
    assert first == draw(standings, 8, 4, 1)
    assert len({tuple(first), tuple(draw(standings, 8, 5, 1)), tuple(draw(standings, 8, 4, 2))}) == 3
    assert len(set(first)) == 8
    assert first == draw(standings, 30, 4, 1)[:8]
    assert sorted(draw(standings, 30, 4, 1)) == list(range(30))


def test_the_first_of_two_is_drawn_by_weight() -> None:
    """With weights 1 and 0.2 the second is drawn first in 0.2 / 1.2, a sixth of the draws; of 6,000, 1,000 ± 29."""
    pair = [standing("a", 1.0), standing("b", 0.2)]
    first = Counter(draw(pair, 1, iteration, 1)[0] for iteration in range(6000))
    assert abs(first[1] - 1000) < 4 * 29


def test_two_of_three_are_drawn_without_coming_back() -> None:
    """Weights 1, 1, 0.2, two drawn. The third is left out with 2 × 1/2.2 × 1/1.2 = 0.758: drawn in 0.242 of the draws."""
    three = [standing("a", 1.0), standing("b", 1.0), standing("c", 0.2)]
    drawn = Counter(place for iteration in range(6000) for place in draw(three, 2, iteration, 1))
    assert abs(drawn[2] - 6000 * (1 - 2 / 2.2 / 1.2)) < 4 * 34
    assert abs(drawn[0] - drawn[1]) < 4 * 60


def test_too_easy_and_too_hard_come_less_often_and_never_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty scenarios: ten too easy, ten too hard, ten between, ten not attempted; 800 iterations of 8."""
    scenarios = [toy(f"{name} {number}") for name in ("easy", "hard", "fair", "new") for number in range(10)]
    outcomes = {"easy": [8, 8], "hard": [8, 0], "fair": [8, 5]}
    history = [{one.id: outcomes[one.id.split()[0]] for one in scenarios[:30]}]
    standings = weigh(scenarios, history, DEFAULTS)
    drawn = Counter(scenarios[place].id for iteration in range(800) for place in draw(standings, 8, iteration, 7))
    by_group = Counter[str]()
    for name, count in drawn.items():
        by_group[name.split()[0]] += count
    assert len(drawn) == 40, "none is never drawn"
    assert min(drawn.values()) > 20
    for extreme in ("easy", "hard"):
        for other in ("fair", "new"):
            # a fifth as often at each draw; more of them are left as a batch fills up
            assert 0.15 < by_group[extreme] / by_group[other] < 0.35
    # a floor of 1 is no curriculum: 1,600 each
    monkeypatch.setattr(curriculum, "FLOOR", 1)
    level = weigh(scenarios, history, DEFAULTS)
    drawn = Counter(
        scenarios[place].id.split()[0] for iteration in range(800) for place in draw(level, 8, iteration, 7)
    )
    assert all(abs(count - 1600) < 5 * 31 for count in drawn.values())


# --- The stages


class Played:
    """The rollout stage, without a model: what it would have played, and drawn.json."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.attempts = folder, []  # type: Path, list[tuple[str, int]]
        (folder / "scenarios").mkdir()
        self.known = Multiplication.scenarios(Multiplication.load(ROOT / "tasks_data/multiplication"), "train", 40, 1)
        write_records(self.known, folder / "scenarios" / "train.parquet")
        (folder / "successes.json").write_text("[]\n")
        patch.setattr("steps.sampling.engine.play", self.play)

    def play(self, job: Job) -> list[Trajectory]:
        self.attempts = [(scenario.id, attempt) for scenario, attempt in job.attempts]
        words = {"role": "assistant", "content": "0"}
        turn = Turn(
            prompt_ids=(1,), completion_ids=(2,), logprobs=(0.0,), message=words, observations=(), finish_reason="stop"
        )
        return [
            Trajectory(
                id=f"{scenario.id}-{attempt}",
                scenario_id=scenario.id,
                attempt=attempt,
                adapter_hash="0" * 16,
                turns=(turn,),
                stop_reason="done",
            )
            for scenario, attempt in job.attempts
        ]

    def rollout(self, iteration: str, settings: Curriculum | None, history: Any = None, **outputs: Any) -> list[str]:
        """Ids of the scenarios of an iteration."""
        if history is not None:
            (self.folder / "successes.json").write_text(json.dumps(history))
        params = RolloutParams(
            task="multiplication",
            seed=3,
            policy=Policy(),
            rollout=Rollout.model_validate({"scenarios": 8, "attempts": 2, "curriculum": settings}),
        )
        files = {"successes": self.folder / "successes.json", "drawn": self.folder / "drawn.json"} | outputs
        rollout(
            ROOT / "tasks_data/multiplication",
            self.folder / "scenarios",
            self.folder / "adapter",
            self.folder / "trajectories.parquet",
            iteration,
            params,
            **files,
        )
        chosen = [name for name, attempt in self.attempts if attempt == 0]
        assert self.attempts == [(name, attempt) for name in chosen for attempt in (0, 1)]
        return chosen


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(tmp_path, monkeypatch)


def test_where_it_is_off_each_is_played_once_before_any_is_played_again(played: Played) -> None:
    """Whatever there is of earlier successes, and with or without the new files."""
    history = [{one.id: [8, 8] for one in played.known[:20]}]
    chosen = [played.rollout(f"{iteration:03d}", None, history) for iteration in range(1, 6)]
    assert sorted(name for part in chosen for name in part) == sorted(one.id for one in played.known)
    assert chosen == [[one.id for one in choose(played.known, [8] * iteration, 3)] for iteration in range(1, 6)]
    assert json.loads((played.folder / "drawn.json").read_text()) == {
        "curriculum": None,
        "scenarios": [{"id": name} for name in chosen[-1]],
    }
    assert played.rollout("005", None, successes=None, drawn=None) == chosen[-1]


def test_what_choose_gives_has_not_changed() -> None:
    """Three iterations, the third across the end of a shuffle, of ten scenarios at seed 1."""
    ten = [toy(str(number)) for number in range(10)]
    assert ["".join(one.id for one in choose(ten, [4] * iteration, 1)) for iteration in (1, 2, 3)] == [
        "5168",
        "7930",
        "2495",
    ]


@pytest.mark.parametrize(("count", "size"), [(4, 10), (25, 60), (7, 7), (3, 4), (1, 3)])
def test_no_scenario_is_twice_in_an_iteration(count: int, size: int) -> None:
    """Two of the same name would be two trajectories of the same name. Over the iterations all come equally often."""
    known = [toy(str(number)) for number in range(size)]
    drawn = [[one.id for one in choose(known, [count] * iteration, 1)] for iteration in range(1, size + 1)]
    assert all(len(set(names)) == count for names in drawn)
    assert {sum(names.count(one.id) for names in drawn) for one in known} == {count}


def test_drawn_scenarios_are_recorded_with_what_was_known_of_them(played: Played) -> None:
    history = [{one.id: [8, 8] for one in played.known[:20]}, {one.id: [2, 1] for one in played.known[20:30]}]
    chosen = played.rollout("003", DEFAULTS, history)
    told = json.loads((played.folder / "drawn.json").read_text())
    assert told["curriculum"] == {"window": 4, "low": 0.1, "high": 0.9, "floor": 0.2}
    assert [one["id"] for one in told["scenarios"]] == chosen
    place = {one.id: number for number, one in enumerate(played.known)}
    for one in told["scenarios"]:
        expected: tuple[Any, ...] = (8, 8, "scenario", 0.2) if place[one["id"]] < 20 else (2, 1, "scenario", 1.0)
        expected = (0, 0, None, 1.0) if place[one["id"]] >= 30 else expected
        assert (one["attempts"], one["successes"], one["judged_by"], one["weight"]) == expected
    assert played.rollout("003", DEFAULTS, history) == chosen != played.rollout("004", DEFAULTS, history)
    assert chosen != played.rollout("003", DEFAULTS, []), "what was known made a difference"


def test_a_curriculum_without_its_file_is_refused(played: Played) -> None:
    with pytest.raises(UserError, match=r"rollout\.curriculum needs --successes"):
        played.rollout("001", DEFAULTS, successes=None)


def test_score_hands_on_an_iteration_more(played: Played) -> None:
    """All attempts are wrong (the answer is 0); the history before is kept."""
    chosen = played.rollout("001", None)
    folder = played.folder
    score(
        ROOT / "tasks_data" / "multiplication" / "rubric.md",
        folder / "scenarios",
        folder / "trajectories.parquet",
        folder / "rewards.parquet",
        ScoreParams(task="multiplication", score=Score()),
        previous_successes=folder / "successes.json",
        successes=folder / "next.json",
    )
    assert json.loads((folder / "next.json").read_text()) == [{name: [2, 0] for name in sorted(chosen)}]
    assert len(read_records(Reward, folder / "rewards.parquet")) == 16
    after = played.rollout("002", DEFAULTS, json.loads((folder / "next.json").read_text()))
    told = {one["id"]: one["weight"] for one in json.loads((folder / "drawn.json").read_text())["scenarios"]}
    assert told == {name: 0.2 if name in chosen else 1.0 for name in after}
