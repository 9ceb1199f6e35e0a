"""Evaluate: one attempt at each scenario of a split that an adapter was not trained on, greedy by default.

Writes a summary, and every trajectory with its reward, so that two policies can be compared scenario by scenario. With
evaluate.sampled_attempts a policy with an adapter makes further attempts at temperature 1, of which sampled.parquet holds
the rewards. With a policy.kind of addons/models/players.py there is no adapter: the option is not needed, and not read.

Where attempts have no reward, because the task has no rule or an agent of your own returned none, a judge compares each with
the base policy's attempt at the same scenario (addons/judges/pairs.py). The summary then says how often it was judged
better, and pairs.jsonl has every comparison. With evaluate.judge, a judge that training never asks does so, also beside
success where there is a rule. `--against` is the base policy's evaluation, or initialise's base.json where the base policy
itself is evaluated. It is read where a judge compares. `--rival` names the other policy where it is not the base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.ports import bring
from steps.core.progress import say
from steps.core.stats import added, mean
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from environments.base import Env, Scenario
    from steps.core.alike import Groups
    from steps.core.evaluations import Evaluation
    from steps.core.params import EvaluateParams
    from steps.core.records import Pair, Reward, Trajectory
    from steps.sampling.job import Job


def evaluate(
    task_data: Input,
    scenarios: Input,
    evaluation: Output,
    params: EvaluateParams,
    split: str = "val",
    adapter: Input | None = None,
    against: Input | None = None,
    rival: str = "base policy",
) -> None:
    """Write summary.json, trajectories.parquet and rewards.parquet; with sampled attempts sampled.parquet, and
    without a rule pairs.jsonl."""
    import environments
    from environments.base import Scenario
    from steps.core import alike
    from steps.core.evaluations import Evaluation
    from steps.core.records import PAIRS, read_records, write_records
    from steps.core.section import at
    from steps.judging.rule import by_rule, has_rule, unusable_line
    from steps.sampling.job import Job
    from steps.sampling.play import play

    env = environments.load(params.task)
    if not env.has_rule:  # refused before anything is sampled
        pairs = comparison()
        pairs.settings_of(params, f"{params.task} has no rule")
        pairs.rival_of(against)
    held_out = read_records(Scenario, scenarios / f"{split}.parquet")
    data = env.load(task_data)
    attempts = [(scenario, 0) for scenario in held_out]
    job = Job(
        params.policy, params.evaluate, adapter, env, attempts, split, 0, data, task_data,
        task=params.task, settings=params,
    )  # fmt: skip
    groups = alike.groups_of(env, held_out, data)
    if not params.policy.has_adapter:
        played, tokens = by_messages(job)
    elif adapter is None:
        raise UserError(
            f"--adapter is needed with policy.kind: {params.policy.kind}; it is made by the stage update (at first "
            "initialise)"
        )
    else:
        played = play(job)
        tokens = [sum(len(turn.completion_ids) for turn in trajectory.turns) for trajectory in played]
    rewards = [by_rule(env, scenario, trajectory) for scenario, trajectory in zip(held_out, played, strict=True)]
    if problem := unusable_line([(reward.score, reward.explanation) for reward in rewards]):
        say(f"WARNING: {problem}")
    sampled: list[Reward] = []
    compared: list[Pair] = []
    if has_rule(env, rewards, played, params.score):
        if params.policy.has_adapter and adapter:
            sampled = sample(job, held_out, params.evaluate.sampled_attempts)
        results: dict[str, Any] = {"decisions": by_decision(env, held_out, played)}
        results |= by_success(held_out, rewards, groups) | sampled_summary(sampled, len(held_out), groups)
        is_base = split == "val" and against is not None and against.is_file() and params.policy.has_adapter
        if at(params, "evaluate.references") and is_base and adapter is not None and not env.is_agent:
            results["references"] = bring("reference", "baselines", "evaluate.references")(job, held_out)
        results["by_task"] = by_task(held_out, rewards, played, tokens, sampled, groups)
        if (judge := at(params, "evaluate.judge")) is not None and against is None:
            say("evaluate.judge is not asked: --against names no evaluation of the base policy to compare with")
        elif judge is not None:
            rubric = (task_data / "rubric.md").read_text(encoding="utf-8")
            pairs = comparison()
            other = pairs.Rival(against, rival, split, by_rule=True)
            results["held_out"], compared = pairs.judged(env, data, held_out, played, judge, rubric, other)
    else:
        pairs = comparison()
        settings = pairs.settings_of(params, "the attempts have no reward")
        rubric = (task_data / "rubric.md").read_text(encoding="utf-8")
        other = pairs.Rival(against, rival, split)
        judged, compared = pairs.judged(env, data, held_out, played, settings, rubric, other)
        rewards = [pairs.unscored(reward, pair, rival) for reward, pair in zip(rewards, compared, strict=True)]
        scores = [pair.score for pair in compared]
        results = {"success": None, "ci95": None, "reward": None, "slices": by_kind(held_out, scores), "judged": judged}
    summary = Evaluation(
        split=split,
        adapter_hash=played[0].adapter_hash,
        n=len(played),
        turns=mean([len(trajectory.turns) for trajectory in played]),
        tokens=mean(tokens),
        **results,
    )
    evaluation.mkdir()
    (evaluation / "summary.json").write_text(summary.text())
    write_records(played, evaluation / "trajectories.parquet")
    write_records(rewards, evaluation / "rewards.parquet")
    if sampled:
        write_records(sampled, evaluation / "sampled.parquet")
    if compared:
        (evaluation / PAIRS).write_text("".join(pair.model_dump_json() + "\n" for pair in compared))
    say_result(summary)


def comparison() -> Any:
    """The module that compares attempts by a judge (the port `comparison`)."""
    return bring("comparison", "pairs", "score.ruler and evaluate.judge")


def say_result(summary: Evaluation) -> None:
    """Print what was measured and, of a judge, its faults."""
    beside = "" if summary.sampled_success is None else f", sampled {summary.sampled_success:.3f}"
    say(f"{summary.split}: {summary.sentence()}{beside}")
    if summary.judged is not None:
        say(summary.judged.faults())
    if (other := summary.held_out) is not None:
        say(f"{summary.split}: {other.sentence(summary.n)}; {other.faults()}")
    for task, result in summary.by_task.items():
        say(f"{summary.split}: {result.sentence(task)}")


def by_success(held_out: Sequence[Scenario], rewards: Sequence[Reward], groups: Groups) -> dict[str, Any]:
    """The fields of an Evaluation by the rule."""
    from steps.registry import paired

    wins = [bool(reward.success) for reward in rewards]
    return {
        "success": sum(wins) / len(wins),
        "ci95": paired.attempts_interval(zip((scenario.id for scenario in held_out), wins, strict=True), groups),
        "clusters": groups.count(scenario.id for scenario in held_out),
        "reward": mean([reward.score for reward in rewards if reward.score is not None]),
        "slices": by_kind(held_out, wins),
    }


def by_kind(held_out: Sequence[Scenario], values: Sequence[float]) -> dict[str, float]:
    """The mean value of the scenarios of each kind; of each task, where there are several."""
    several = len({scenario.task for scenario in held_out}) > 1
    slices: dict[str, list[float]] = {}
    for scenario, value in zip(held_out, values, strict=True):
        name = scenario.task if several else str(scenario.data.get("kind", "all"))
        slices.setdefault(name, []).append(value)
    return {name: mean(inside) for name, inside in sorted(slices.items())}


def by_decision(
    env: type[Env], held_out: Sequence[Scenario], played: Sequence[Trajectory]
) -> dict[str, tuple[int, int]]:
    """(right decisions, all) by kind, of the episodes that did not fail."""
    from environments.kit.values import UnusableNumber, truth

    counts: dict[str, tuple[int, int]] = {}
    problems: list[str] = []
    for scenario, trajectory in zip(held_out, played, strict=True):
        if trajectory.stop_reason == "error":
            continue
        for kind, is_right in env.decisions(scenario, trajectory.messages(scenario)):
            right, made = counts.get(kind, (0, 0))
            try:
                counts[kind] = right + truth(is_right, f"decision {kind}"), made + 1
            except UnusableNumber as problem:
                problems.append(str(problem))
    if problems:
        say(f"WARNING: {len(problems)} decisions are not counted; the first: {problems[0]}")
    return counts


def by_task(
    held_out: Sequence[Scenario],
    rewards: Sequence[Reward],
    played: Sequence[Trajectory],
    tokens: Sequence[int],
    sampled: Sequence[Reward],
    groups: Groups,
) -> dict[str, dict[str, Any]]:
    """The results of each of several tasks, as fields of a TaskResult; nothing for a single task. `sampled` are the rewards
    of the sampled attempts."""
    from steps.registry import paired

    tasks = {scenario.id: scenario.task for scenario in held_out}
    results = {}
    for task in sorted(set(tasks.values())) if len(set(tasks.values())) > 1 else ():
        places = [place for place, scenario in enumerate(held_out) if scenario.task == task]
        wins = [bool(rewards[place].success) for place in places]
        ids = [held_out[place].id for place in places]
        again = [bool(reward.success) for reward in sampled if tasks[reward.scenario_id] == task]
        results[task] = {
            "n": len(places),
            "success": mean(wins),
            "ci95": paired.attempts_interval(zip(ids, wins, strict=True), groups),
            "clusters": groups.count(ids),
            "reward": mean([score for place in places if (score := rewards[place].score) is not None]),
            "turns": mean([len(played[place].turns) for place in places]),
            "tokens": mean([tokens[place] for place in places]),
            "sampled_success": mean(again) if again else None,
        }
    return results


def sample(job: Job, held_out: list[Scenario], count: int) -> list[Reward]:
    """The rewards of `count` attempts at each scenario at temperature 1, by scenario and attempt."""
    from dataclasses import replace

    from steps.judging.rule import by_rule
    from steps.sampling.play import play

    attempts = [(scenario, number) for scenario in held_out for number in range(count)]
    if not attempts:
        return []
    limits = job.limits.model_copy(update={"temperature": 1.0})
    played = play(replace(job, limits=limits, attempts=attempts, prefix="sampled", seed=1))
    return [by_rule(job.env, scenario, trajectory) for (scenario, _), trajectory in zip(attempts, played, strict=True)]


def sampled_summary(rewards: list[Reward], scenarios: int, groups: Groups) -> dict[str, Any]:
    """The fields of an Evaluation on sampled attempts. Those at one scenario are alike, as those at its group are."""
    from steps.registry import paired

    if not rewards:
        return {}
    wins = [bool(reward.success) for reward in rewards]
    return {
        "sampled_attempts": len(rewards) // scenarios,
        "sampled_success": mean(wins),
        "sampled_ci95": paired.attempts_interval(
            zip((reward.scenario_id for reward in rewards), wins, strict=True), groups
        ),
    }


def by_messages(job: Job) -> tuple[list[Trajectory], list[int]]:
    """Trajectories of a policy that is asked in messages, and the number of tokens of each as its server counted them."""
    players = bring("player", job.policy.kind, "policy.kind")
    limits, what = job.limits, (job.env, job.data, job.attempts)
    played = players.play(job.policy, *what, prefix=job.prefix, max_turns=limits.max_turns, slow=limits)
    if job.policy.kind == "openai":
        failed = sum(episode.trajectory.stop_reason == "error" for episode in played)
        cost = added(episode.cost for episode in played)
        say(f"{players.name(job.policy)}: cost {cost:.4g}, {failed} episodes failed")
    return [episode.trajectory for episode in played], [episode.output_tokens for episode in played]


if __name__ == "__main__":
    main(evaluate)
