"""Groups whose attempts all earned the same are sampled again at other scenarios, within a limit, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from addons.drawing.resample import grouped, resample
from environments.base import Scenario
from environments.multiplication import scenario as product
from steps.core.errors import UserError
from steps.core.params import Policy, Rollout, RolloutParams
from steps.core.records import Reward, Trajectory, read_records, write_records
from steps.sampling import play as sampling
from steps.sampling.job import Job
from tests.conftest import ROOT
from tests.support.judged import attempt, words

POOL = [Scenario.make("toy", "train", [{"role": "user", "content": f"{number}"}], {}) for number in range(12)]


def played(scenarios: list[Scenario], good: set[str]) -> list[Trajectory]:
    """Two attempts at each scenario; `good` are the ids at which the second attempt is better."""
    return [
        Trajectory(
            id=f"{scenario.id}-{attempt}",
            scenario_id=scenario.id,
            attempt=attempt,
            adapter_hash="a",
            turns=(),
            stop_reason="done" if attempt and scenario.id in good else "max_turns",
        )
        for scenario in scenarios
        for attempt in range(2)
    ]


def rule(scenario: Scenario, trajectory: Trajectory) -> Reward:
    score = float(trajectory.stop_reason == "done")
    names = {"trajectory_id": trajectory.id, "scenario_id": scenario.id, "name": "rule"}
    return Reward(**names, score=score, success=bool(score), explanation="")


def run(good: set[str], rounds: int) -> tuple[list[str], list[str], int]:
    """(scenarios of the batch, those that were replaced, rounds that were played)."""
    rounds_played: list[list[Scenario]] = []

    def play(scenarios: list[Scenario]) -> list[Trajectory]:
        rounds_played.append(scenarios)
        return played(scenarios, good)

    batch, replaced = resample(rule, POOL, grouped(played(POOL[:4], good)), rounds, "1", play)
    assert all(len(attempts) == 2 for attempts in batch.values())
    assert all(entry["attempts"] == 2 for entry in replaced)
    sampled = [scenario.id for scenarios in rounds_played for scenario in scenarios]
    assert sorted([*batch, *(entry["id"] for entry in replaced)]) == sorted([*(each.id for each in POOL[:4]), *sampled])
    return list(batch), [entry["id"] for entry in replaced], len(rounds_played)


def test_a_batch_that_varies_is_not_sampled_again() -> None:
    ids = [scenario.id for scenario in POOL[:4]]
    assert run(set(ids), 3) == (ids, [], 0)


def test_flat_groups_give_their_places_to_groups_that_vary() -> None:
    ids = [scenario.id for scenario in POOL]
    batch, replaced, rounds = run({ids[1], *ids[4:]}, 3)
    assert (batch[1], rounds, set(replaced)) == (ids[1], 1, {ids[0], ids[2], ids[3]})
    assert set(batch) - {ids[1]} <= set(ids[4:])


def test_what_stays_flat_stays_and_the_limit_holds() -> None:
    ids = [scenario.id for scenario in POOL]
    batch, replaced, rounds = run(set(), 1)
    assert (batch, rounds, len(replaced)) == (ids[:4], 1, 4)
    assert run(set(), 8)[2] == 2, "there are no more scenarios after eight others"
    assert run({ids[9]}, 8)[0].count(ids[9]) == 1


def test_attempts_without_any_reward_are_refused_and_failed_ones_are_not() -> None:
    def unscored(scenario: Scenario, trajectory: Trajectory) -> Reward:
        return rule(scenario, trajectory).model_copy(update={"score": None})

    groups = grouped(played(POOL[:2], set()))
    with pytest.raises(UserError, match=r"rollout\.resample reads the rule's reward, and these attempts have none"):
        resample(unscored, POOL, groups, 1, "1", lambda scenarios: played(scenarios, set()))
    failed = {
        name: [one.model_copy(update={"stop_reason": "error", "error": "it broke"}) for one in attempts]
        for name, attempts in groups.items()
    }
    batch, replaced = resample(unscored, POOL, failed, 1, "1", lambda scenarios: played(scenarios, set()))
    assert (batch, len(replaced)) == (failed, 2)


def test_the_stage_records_what_was_replaced_and_writes_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of six scenarios the policy solves three always; at the others its second attempt is right."""
    from steps.rollout import rollout

    pool = [product("train", 11, 12 + number) for number in range(6)]
    always = {scenario.id for scenario in pool[::2]}

    def play(job: Job) -> list[Trajectory]:
        answers = [one.data["answer"] if number or one.id in always else -1 for one, number in job.attempts]
        return [
            attempt(one, number, words(f"Answer: {answer}"))
            for (one, number), answer in zip(job.attempts, answers, strict=True)
        ]

    monkeypatch.setattr(sampling, "play", play)
    (tmp_path / "scenarios").mkdir()
    write_records(pool, tmp_path / "scenarios" / "train.parquet")
    written = []
    for count in (1, 1, 0):
        params = RolloutParams(
            task="multiplication",
            seed=1,
            policy=Policy(),
            rollout=Rollout.model_validate({"scenarios": 4, "attempts": 2, "resample": count}),
        )
        files = tmp_path / "trajectories.parquet", tmp_path / "drawn.json"
        data = ROOT / "tasks_data/multiplication"
        rollout(data, tmp_path / "scenarios", tmp_path, files[0], "1", params, drawn=files[1])
        batch = {played.scenario_id for played in read_records(Trajectory, files[0])}
        written.append((batch, json.loads(files[1].read_text()), [path.read_bytes() for path in files]))
    (batch, drawn, first), (_, _, again), (plain, without, _) = written
    assert first == again
    assert "replaced" not in without
    assert len(batch) == len(plain) == 4
    assert {entry["id"] for entry in drawn["scenarios"]} == batch
    assert len(plain & always) > len(batch & always), "a flat group gave its place"
    assert batch | {entry["id"] for entry in drawn["replaced"]} == {scenario.id for scenario in pool}
    assert all((entry["attempts"], entry["tokens"]) == (2, 2) for entry in drawn["replaced"])
    assert f"{len(drawn['replaced'])} groups without variance (" in capsys.readouterr().out
