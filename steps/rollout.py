"""Rollout: a batch of episodes with the current adapter: G attempts at each of the iteration's training scenarios.

Trajectories keep the exact token ids, which of them were sampled, and the logprobs of the policy that sampled them. The
scenarios follow from the seed and the iteration's number: each is played once before any is played again. With
`rollout.curriculum` they follow from earlier successes, too. drawn.json lists them, and their weights. Of several tasks
each has its share of every batch (environments/kit/shares.py), drawn from its own scenarios as if it were the only one. With
`rollout.opponent` another adapter plays the other side of a game (addons/selfplay/rivals.py): drawn.json names it, too. With
`rollout.resample` groups without variance are sampled again at other scenarios (addons/drawing/resample.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.ports import bring
from steps.core.progress import say
from steps.core.section import at
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from environments.base import Scenario
    from steps.core.params import RolloutParams
    from steps.core.records import Trajectory


def rollout(
    task_data: Input,
    scenarios: Input,
    adapter: Input,
    trajectories: Output,
    iteration: str,
    params: RolloutParams,
    successes: Input | None = None,
    opponent: Input | None = None,
    drawn: Output | None = None,
) -> None:
    """Play `rollout.scenarios` × `rollout.attempts` episodes and write one trajectory each."""
    import json
    from dataclasses import replace

    import environments
    from environments.base import Scenario
    from environments.kit.shares import interleaved
    from steps.core.records import read_records, write_records
    from steps.sampling.job import Job
    from steps.sampling.play import play

    settings, rounds = at(params, "rollout.curriculum"), at(params, "rollout.resample")
    if settings is not None and successes is None:
        raise UserError(
            "rollout.curriculum needs --successes: the file that the stage score (at first initialise) writes"
        )
    history = json.loads(successes.read_text()) if settings is not None and successes is not None else []
    env = environments.load(params.task)
    pool = read_records(Scenario, scenarios / "train.parquet")
    drawn_by_task = {
        task: draw([scenario for scenario in pool if task in ("", scenario.task)], counts, history, params)
        for task, counts in counts_by_task(int(iteration), params).items()
    }
    chosen, record = zip(*interleaved(drawn_by_task), strict=True)
    data, seed = env.load(task_data), params.seed * 1000 + int(iteration)
    other = None
    if (asked := at(params, "rollout.opponent")) is not None:
        other = bring("opponent", "rival", "rollout.opponent")(asked, opponent)
    job = Job(
        params.policy, params.rollout, adapter, env, [], iteration, seed, data, task_data,
        opponent=other, task=params.task, settings=params,
    )  # fmt: skip

    def play_all(scenarios: Sequence[Scenario]) -> list[Trajectory]:
        attempts = [(scenario, attempt) for scenario in scenarios for attempt in range(params.rollout.attempts)]
        return play(replace(job, attempts=attempts))

    played = play_all(chosen)
    replaced: list[dict[str, Any]] = []
    if rounds:
        from functools import partial

        from steps.judging.rule import by_rule

        drawing = bring("drawing", "resample", "rollout.resample")
        groups, replaced = drawing.resample(
            partial(by_rule, env), pool, drawing.grouped(played), rounds, f"{seed}", play_all
        )
        entries = {entry["id"]: entry for entry in record}
        record = tuple(entries.get(name, {"id": name}) for name in groups)
        played = [trajectory for attempts in groups.values() for trajectory in attempts]
    write_records(played, trajectories)
    if drawn is not None:
        curriculum = bring("drawing", "curriculum", "rollout.curriculum") if settings else None
        content = {"curriculum": curriculum and curriculum.described(settings), "scenarios": record}
        if other is not None:
            content["opponent"] = other.described()
        if rounds:
            content["replaced"] = replaced
        drawn.write_text(json.dumps(content, indent=2) + "\n")
    failed = sum(trajectory.stop_reason == "error" for trajectory in played)
    tokens = sum(group["tokens"] for group in replaced)
    more = f", and {len(replaced)} groups without variance ({tokens:,} tokens) that others replace" if replaced else ""
    say(f"{len(played)} episodes" + (f", {failed} of them failed" if failed else "") + more)


def counts_by_task(iteration: int, params: RolloutParams) -> dict[str, list[int]]:
    """By the name that a task's scenarios carry, how many each iteration has up to this one. "" is a single task."""
    from environments.kit.shares import by_batch

    count = params.rollout.scenarios
    if params.tasks is None:
        return {"": [count] * iteration}
    weights = {name.rpartition(".")[2]: weight for name, weight in sorted(params.tasks.items())}
    batches = by_batch(weights, count, iteration)
    return {task: [batch[task] for batch in batches] for task in weights}


def draw(
    pool: list[Scenario], counts: list[int], history: list[Any], params: RolloutParams
) -> list[tuple[Scenario, dict[str, Any]]]:
    """The scenarios of a task that the last iteration of `counts` plays, each with its entry in drawn.json."""
    if (settings := at(params, "rollout.curriculum")) is None:
        return [(scenario, {"id": scenario.id}) for scenario in choose(pool, counts, params.seed)]
    curriculum = bring("drawing", "curriculum", "rollout.curriculum")
    standings = curriculum.weigh(pool, history, settings)
    places = curriculum.draw(standings, counts[-1], len(counts), params.seed)
    return [(pool[place], standings[place]._asdict()) for place in places]


def choose(scenarios: list[Scenario], counts: list[int], seed: int) -> list[Scenario]:
    """The scenarios of the last of several iterations, which have so many each: the next ones of an endless sequence of
    seeded shuffles.

    None comes twice in an iteration: where one shuffle ends in it and the next begins, those from the first are put last in
    the second.
    """
    import random

    chosen: list[Scenario] = []
    waiting: list[Scenario] = []
    epoch = 0
    for count in counts:
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
