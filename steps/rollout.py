"""Rollout: a batch of episodes with the current adapter: G attempts at each of the iteration's training scenarios.

Trajectories keep the exact token ids, which of them were sampled, and the logprobs of the policy that sampled them. The
scenarios follow from the seed and the iteration's number: each is played once before any is played again. With
`rollout.curriculum` they follow from earlier successes, too. drawn.json lists them, and their weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.progress import say
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from environments.base import Scenario
    from steps.core.params import RolloutParams


def rollout(
    task_data: Input,
    scenarios: Input,
    adapter: Input,
    trajectories: Output,
    iteration: str,
    params: RolloutParams,
    successes: Input | None = None,
    drawn: Output | None = None,
) -> None:
    """Play `rollout.scenarios` × `rollout.attempts` episodes and write one trajectory each."""
    import json

    import environments
    from environments.base import Scenario
    from steps.core.records import read_records, write_records
    from steps.sampling import curriculum

    pool = read_records(Scenario, scenarios / "train.parquet")
    settings = params.rollout.curriculum
    if settings is None:
        chosen = choose(pool, int(iteration), params.rollout.scenarios, params.seed)
        record = [{"id": scenario.id} for scenario in chosen]
    elif successes is None:
        raise UserError(
            "rollout.curriculum needs --successes: the file that the stage score (at first initialise) writes"
        )
    else:
        standings = curriculum.weigh(pool, json.loads(successes.read_text()), settings)
        places = curriculum.draw(standings, params.rollout.scenarios, int(iteration), params.seed)
        chosen = [pool[place] for place in places]
        record = [standings[place]._asdict() for place in places]
    attempts = [(scenario, attempt) for scenario in chosen for attempt in range(params.rollout.attempts)]
    env = environments.load(params.task)
    data, seed = env.load(task_data), params.seed * 1000 + int(iteration)
    if env.is_agent:
        from steps.gateway.play import play as play_agents

        played = play_agents(
            params.policy, params.rollout, params.agents, params.task, env, adapter, attempts, iteration, seed
        )
    else:
        from steps.sampling.play import play

        played = play(params.policy, params.rollout, adapter, env, task_data, data, attempts, iteration, seed)
    write_records(played, trajectories)
    if drawn is not None:
        content = {"curriculum": settings and settings.model_dump(), "scenarios": record}
        drawn.write_text(json.dumps(content, indent=2) + "\n")
    failed = sum(trajectory.stop_reason == "error" for trajectory in played)
    say(f"{len(played)} episodes" + (f", {failed} of them failed" if failed else ""))


def choose(scenarios: list[Scenario], iteration: int, count: int, seed: int) -> list[Scenario]:
    """The scenarios of an iteration (counted from 1): the next `count` of an endless sequence of seeded shuffles.

    None comes twice in an iteration: where one shuffle ends in it and the next begins, those from the first are put last in
    the second.
    """
    import random

    chosen: list[Scenario] = []
    waiting: list[Scenario] = []
    epoch = 0
    for _ in range(iteration):
        chosen, waiting = waiting[:count], waiting[count:]
        if len(chosen) < count:
            shuffled = random.Random(f"rollout {seed} {epoch}").sample(scenarios, len(scenarios))
            drawn = {scenario.id for scenario in chosen}
            fresh = [scenario for scenario in shuffled if scenario.id not in drawn]
            again = [scenario for scenario in shuffled if scenario.id in drawn]
            missing = count - len(chosen)
            chosen, waiting = chosen + fresh[:missing], fresh[missing:] + again
            epoch += 1
    return chosen


if __name__ == "__main__":
    main(rollout)
