"""Numbers of a task's own code that are none, or that no update could compute with: the attempt is unscored, with the
reason, and every stage goes on."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import environments
from addons.advantages.gigpo import states_of
from addons.agents.worker import as_result
from addons.judges.criteria import criteria
from addons.judges.prompts import read
from addons.judges.section import Criteria
from addons.production.traces.openai_jsonl import feedback_of
from addons.supervised import teach
from environments.base import Component, Env, Message, Outcome, Scenario, words
from environments.kit.agents import AgentEnv, Result
from flows.terminal import health
from steps import score as stage
from steps.core.params import Judges, Score, ScoreParams
from steps.core.records import Reward, Trajectory, Turn, read_records, write_records
from steps.judging.rule import by_rule, has_rule, succeeds, unusable_line
from steps.score import combine

NAN, INF = float("nan"), float("inf")


class Shelf(Env):
    """A task whose reward, success, outcome and states are what a test says."""

    max_turns = 1
    given: ClassVar[Any] = 1.0
    won: ClassVar[Any] = True
    told: ClassVar[Outcome] = Outcome()
    state: ClassVar[Any] = None

    @classmethod
    def load(cls, folder: Path) -> None:
        return None

    @classmethod
    def scenarios(cls, data: Any, split: Any, count: int, seed: int) -> list[Scenario]:
        asked: list[Message] = [{"role": "user", "content": "Sort shelf 4."}]
        return [Scenario.make("shelf", split, asked, {"shelf": f"{split} {number}"}) for number in range(count)]

    @classmethod
    def reward(cls, scenario: Scenario, messages: Any) -> Any:
        return cls.given(messages) if callable(cls.given) else cls.given

    @classmethod
    def success(cls, scenario: Scenario, messages: Any) -> Any:
        return cls.won

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Any) -> Outcome:
        return cls.told

    def hear(self, text: str) -> list[Message]:
        self.done = True
        return []

    @classmethod
    def anchor_state(cls, scenario: Scenario, messages: Any) -> Any:
        return cls.state


SCENARIO = Shelf.scenarios(None, "train", 1, 1)[0]


def played(attempt: int = 0, said: str = "done", result: Result | None = None) -> Trajectory:
    turn = Turn(
        prompt_ids=(1, 2),
        completion_ids=(3,),
        logprobs=(-0.5,),
        message=words(said),
        observations=(),
        finish_reason="stop",
    )
    return Trajectory(
        id=f"a/{attempt}", scenario_id=SCENARIO.id, attempt=attempt, adapter_hash="h", turns=(turn,), stop_reason="done",
        result=result,
    )  # fmt: skip


def part(value: Any) -> Component:
    return Component("tidy", value, "x")


def task(**changed: Any) -> type[Env]:
    return type("Shelf", (Shelf,), changed)


def scored(**changed: Any) -> Reward:
    return by_rule(task(**changed), SCENARIO, played())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (NAN, "reward is nan"),
        (-INF, "reward is -inf"),
        (np.float32("nan"), "reward is nan"),
        (Decimal("sNaN"), "reward is nan"),
        (10**400, "reward is inf"),
        (1e300, "reward is 1e+300, which is too large to compare with others"),
        ("high", "reward is 'high', which is no number"),
        (0.5j, "reward is 0.5j, which is no number"),
        (np.array([0.5, 1.0]), "reward is array([0.5, 1. ]), which is no number"),
        (None, "Shelf.reward must return a number or a list of Component(name, value, why), not null"),
        ([Component("full", 1.0, "y"), Component("tidy", NAN, "x")], "reward is nan: component tidy"),
        ([part(None)], "reward is None, which is no number: component tidy"),
        ([part("1")], "reward is '1', which is no number: component tidy"),
        ([Component(name, 9e14, "x") for name in "ab"], "reward is 1.8e+15, which is too large to compare with others"),
    ],
)
def test_a_reward_that_is_no_number_leaves_its_attempt_unscored_and_is_named(given: Any, reason: str) -> None:
    reward = scored(given=given)
    assert (reward.score, reward.rule, reward.components, reward.success) == (None, None, {}, True)
    assert reward.explanation.removeprefix("unusable: ").startswith(reason)
    assert reward.explanation.startswith("unusable: ")


@pytest.mark.parametrize(
    "given",
    [True, np.bool_(True), np.float32(1), np.int64(1), np.array(1), Decimal(1), [Component("a", np.float64(1), "x")]],
)
def test_numbers_of_other_kinds_count_as_what_they_hold(given: Any) -> None:
    reward = scored(given=given)
    assert (reward.score, reward.rule, list(reward.components.values())) == (1.0, 1.0, [1.0])


def test_components_of_one_name_are_one_sum() -> None:
    reward = scored(given=[Component("fault", -0.5, "x"), Component("full", 1.0, "y"), Component("fault", -0.25, "z")])
    assert (reward.score, reward.components) == (0.25, {"fault": -0.75, "full": 1.0})
    assert reward.explanation == "fault: x; full: y; fault: z"


@pytest.mark.parametrize("won", [None, "yes", NAN, 2, [True], np.float64("nan")])
def test_a_success_that_is_neither_true_nor_false_is_named(won: Any) -> None:
    reward = scored(won=won)
    assert (reward.score, reward.success) == (None, False)
    assert reward.explanation == f"unusable: success is {won!r}, and neither True nor False"
    assert not succeeds(task(won=won), SCENARIO, [])
    derived = type("ByDefault", (Shelf,), {"won": won, "reward": classmethod(Env.reward.__func__)})
    assert by_rule(derived, SCENARIO, played()).explanation == reward.explanation, "a reward of 1 for a success"


def test_successes_of_other_kinds_count_as_what_they_hold() -> None:
    assert [scored(won=won).success for won in (np.bool_(True), 1, 1.0, 0, np.int8(0))] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_what_an_agent_returned_is_checked_the_same_way() -> None:
    agent = type("Own", (AgentEnv,), {})
    assert by_rule(agent, SCENARIO, played(result=Result(reward=0.75, components={"a": 0.75}))).score == 0.75
    large = "reward is 1e+300, which is too large to compare with others"
    for result, reason in (
        (Result(reward=1e300), large),
        (Result(reward=1.0, components={"a": 1e300}), f"{large}: component a"),
    ):
        reward = by_rule(agent, SCENARIO, played(result=result))
        assert (reward.score, reward.explanation) == (None, f"unusable: {reason}")
        assert has_rule(agent, [reward], [played(result=result)], Score()), "it returns rewards, if bad ones"


@pytest.mark.parametrize("value", [NAN, INF, np.float32("nan"), np.array(NAN), 10**400])
def test_what_a_rollout_function_returned_fails_its_episode_with_the_value(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^reward is (nan|inf)$"):
        as_result(value)
    assert [as_result(value).reward for value in (np.bool_(True), np.array(0.5), 1)] == [1.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (Outcome(accuracy=NAN), "outcome: accuracy is nan"),
        (Outcome(optimal_turns=NAN), "outcome: optimal_turns is nan"),  # pyrefly: ignore[bad-argument-type]
        (Outcome(required={"swept": NAN}), "outcome: required swept is nan, and neither True nor False"),  # pyrefly: ignore[bad-assignment]
        (Outcome(required={"swept": "no"}), "outcome: required swept is 'no', and neither True nor False"),  # pyrefly: ignore[bad-assignment]
    ],
)
def test_criteria_name_what_of_an_outcome_is_no_number(told: Outcome, reason: str) -> None:
    reward = criteria(task(told=told), SCENARIO, played(), Criteria())
    assert (reward.score, reward.success, reward.explanation) == (None, True, f"unusable: {reason}")
    assert criteria(task(told=Outcome(accuracy=np.float32(0.5))), SCENARIO, played(), Criteria()).score is not None  # pyrefly: ignore[bad-argument-type]


def test_a_weighted_sum_beyond_all_floats_is_named() -> None:
    parts = [scored(given=1e10), criteria(Shelf, SCENARIO, played(), Criteria())]
    reward = combine(parts, {"rule": 1e308, "criteria": 1.0, "ruler": 0.0})
    assert (reward.score, reward.components) == (None, {})
    assert reward.explanation == "unusable: reward is inf: weighted by score.judges"
    assert reward.rule == 1e10


@pytest.mark.parametrize("value", ["NaN", "1e999", "-Infinity", '"1"', "true", "null", "9" * 400])
def test_a_judges_answer_that_is_no_number_from_0_to_1_gives_no_score(value: str) -> None:
    usable, problem = read(f'{{"A": {value}, "B": 0.5}}', ["A", "B"], reasons=False)
    assert usable.keys() <= {"B"}
    assert problem


@pytest.mark.parametrize("score", [NAN, INF, 10**400, -(10**400)])
def test_feedback_that_is_on_no_scale_is_refused_with_a_sentence(score: float) -> None:
    with pytest.raises(ValueError, match=r"the score stars is -?(nan|inf|10+), neither a finite number"):
        feedback_of({"score": score, "name": "stars"}, "")


@pytest.mark.parametrize("state", [NAN, [1], {"at": 1}, ("a", [1]), np.array([1, 2])])
def test_a_state_that_is_like_no_other_is_noted_and_the_prompt_stands_for_it(state: Any) -> None:
    noted: list[str] = []
    by_id = {SCENARIO.id: SCENARIO}
    assert states_of(task(state=state), by_id, played(), noted) == [(SCENARIO.id, (1, 2))]
    assert noted == [f"{state!r:.60}"]
    assert states_of(task(state="a board"), by_id, played(), noted) == [(SCENARIO.id, "a board")]
    assert len(noted) == 1


def test_a_line_counts_the_reasons_and_is_loud_where_nothing_is_scored() -> None:
    bad = scored(given=[Component("tidy", NAN, "x")])
    rows = [(reward.score, reward.explanation) for reward in (bad, bad, scored(given="x"), scored())]
    assert unusable_line(rows).startswith(
        "1 of 4 attempts could be scored: 2 × reward is nan: component tidy, 1 × reward is 'x', which is no number."
    )
    assert unusable_line(rows[:2]).startswith("none of 2 attempts could be scored: 2 × reward is nan: component tidy.")
    assert unusable_line(rows[3:]) == ""


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_the_stage_scores_the_others_and_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], weight: float
) -> None:
    env = task(given=lambda messages: NAN if messages[-1]["content"] == "slip" else 1.0)
    monkeypatch.setattr(environments, "load", lambda name: env)
    (tmp_path / "scenarios").mkdir()
    write_records([SCENARIO], tmp_path / "scenarios/train.parquet")
    (tmp_path / "rubric.md").write_text("")
    run = tmp_path / "run/001"
    run.mkdir(parents=True)
    monkeypatch.setattr(health, "RUN", tmp_path / "run")
    cases: list[tuple[tuple[str, str], list[float | None]]] = [
        (("fine", "slip"), [weight, None]),
        (("slip",) * 2, [None] * 2),
    ]
    for said, scores in cases:
        write_records([played(number, text) for number, text in enumerate(said)], run / "trajectories.parquet")
        successes = run / "successes.json"
        stage.score(
            tmp_path / "rubric.md", tmp_path / "scenarios", run / "trajectories.parquet", run / "rewards.parquet",
            ScoreParams(task="shelf", score=Score(judges=Judges(rule=weight))), successes=successes,
        )  # fmt: skip
        rewards = read_records(Reward, run / "rewards.parquet")
        assert [reward.score for reward in rewards] == scores
        assert sum(count for count, _ in json.loads(successes.read_text())[0].values()) == scores.count(weight)
        count = "1 of 2" if weight in scores else "none of 2"
        assert f"WARNING: {count} attempts could be scored: " in capsys.readouterr().out
        fates = {reward.trajectory_id: "unscored" if reward.score is None else "gradient" for reward in rewards}
        (run / "fates.json").write_text(json.dumps(fates))
        spoken = health.warnings(1)
        assert spoken[0].startswith(f"Warning: rewards: {count} attempts could be scored: ")
        assert "× reward is nan." in spoken[0]
    assert "teaches nothing: no reward of its batch is a number" in spoken[-1]  # pyrefly: ignore[unbound-name]


def test_a_teachers_episode_with_such_a_reward_is_no_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    env = type("Taught", (Shelf,), {"given": NAN, "scripted": lambda self, messages, rng: words("done")})
    lines, report = teach.taught(env, None, [SCENARIO], 1, None, 0.5)
    assert (lines, report["refused"]) == ([], {"unusable: reward is nan": 1})
