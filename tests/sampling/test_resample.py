"""Groups whose attempts all earned the same are sampled again at other scenarios, within a limit, and nothing is lost."""

from __future__ import annotations

from environments.base import Scenario
from steps.core.records import Reward, Trajectory
from steps.sampling.resample import grouped, resample

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
