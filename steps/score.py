"""Score: a reward for each trajectory, by the judges that have a weight in `score.judges`: the rule, and others
that add-ons bring.

Rewards are a file of their own, so that a stored batch can be judged again without sampling again (flows/rescore.py). A
failed episode is unscored (None), never 0, and never dropped; so is one that a judge with a weight could not score, and one
whose reward is no finite number. The
rule's score and success are kept beside those of any other judge. Further outputs are what a model answered
(judgements.jsonl), measurements of the judge (judge.json), and the successes by scenario so far, for a curriculum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from environments.kit.values import REASON, UnusableNumber, number
from steps.core.progress import say
from steps.core.stats import added, mean
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import Score, ScoreParams
    from steps.core.records import Reward, Trajectory


def score(
    rubric: Input,
    scenarios: Input,
    trajectories: Input,
    rewards: Output,
    params: ScoreParams,
    previous_judge: Input | None = None,
    judge: Output | None = None,
    judgements: Output | None = None,
    previous_successes: Input | None = None,
    successes: Output | None = None,
) -> None:
    """Write a reward for each trajectory, in the same order; the judge's answers; and the history with this iteration."""
    import json

    import environments
    from environments.base import Scenario
    from steps.core.records import Trajectory, read_records, write_records
    from steps.judging.judge import Batch, asked, kind_of
    from steps.judging.rule import by_rule, unusable_line
    from steps.sampling import successes as attempts

    env = environments.load(params.task)
    by_id = {scenario.id: scenario for scenario in read_records(Scenario, scenarios / "train.parquet")}
    played = read_records(Trajectory, trajectories)
    settings = params.score
    by = {"rule": [by_rule(env, by_id[trajectory.scenario_id], trajectory) for trajectory in played]}
    has_rule = have_rule(env, by["rule"], played, settings)
    if not has_rule:
        by["rule"] = [reward.model_copy(update={"success": None}) for reward in by["rule"]]
    spent = json.loads(previous_judge.read_text())["cost_so_far"] if previous_judge is not None else 0.0
    batch = Batch(env, by_id, played, by["rule"], settings, rubric, spent)
    judges = {name: kind_of(name)(batch) for name in asked(settings)}
    by |= {name: judge.rewards() for name, judge in judges.items()}
    answers = [answer for judge in judges.values() for answer in judge.answers]
    scored = [combine(parts, settings.judges.model_dump()) for parts in zip(*by.values(), strict=True)]
    write_records(scored, rewards)
    measured = components(scored) | by_task(by_id, by["rule"] if has_rule else scored)
    for each in judges.values():
        measured |= each.measured(scored)
    if judge is not None:
        measured |= {"cost_so_far": spent + added(answer.cost for answer in answers)}
        judge.write_text(json.dumps(measured, indent=2) + "\n")
    if judgements is not None:
        judgements.write_text("".join(answer.model_dump_json() + "\n" for answer in answers))
    if successes is not None:
        history = json.loads(previous_successes.read_text()) if previous_successes is not None else []
        # By the rule: whether an attempt succeeded is known where a model did not score it, too. Without a rule nothing is.
        successes.write_text(json.dumps(attempts.extend(history, by["rule"] if has_rule else [])) + "\n")
    say(f"{len(scored)} rewards, {sum(reward.score is None for reward in scored)} unscored")
    if problem := unusable_line([(reward.score, reward.explanation) for reward in scored]):
        say(f"WARNING: {problem}")
    for line in (line for each in judges.values() for line in each.lines(measured)):
        say(line)


def components(rewards: Sequence[Reward]) -> dict[str, float]:
    """The mean of each component over the scored trajectories; a component that a trajectory lacks counts as 0."""
    scored = [reward.components for reward in rewards if reward.score is not None]
    names = sorted({name for parts in scored for name in parts})
    return {f"reward_{name}": fmean(parts.get(name, 0.0) for parts in scored) for name in names}


def by_task(by_id: Mapping[str, Scenario], rewards: Sequence[Reward]) -> dict[str, float]:
    """Of each of several tasks: its episodes, their mean reward by the rule and their success; nothing for a single task."""
    tasks: dict[str, list[Reward]] = {}
    for reward in rewards:
        tasks.setdefault(by_id[reward.scenario_id].task, []).append(reward)
    measured: dict[str, float] = {}
    for task, own in sorted(tasks.items()) if len(tasks) > 1 else ():
        measured[f"task/{task}/episodes"] = len(own)
        measured[f"task/{task}/reward"] = mean([reward.score for reward in own if reward.score is not None])
        measured[f"task/{task}/success"] = mean([bool(reward.success) for reward in own])
    return measured


def have_rule(env: type[Env], rewards: Sequence[Reward], played: Sequence[Trajectory], settings: Score) -> bool:
    """Whether the attempts have rewards by the rule. UserError where it has a weight and they have none, or only some."""
    from steps.core.errors import UserError
    from steps.judging import rule

    if not settings.judges.rule:
        return any(reward.score is not None for reward in rewards) or (env.has_rule and not env.is_agent)
    if not rule.has_rule(env, rewards, played, settings):
        raise UserError(
            f"score.judges.rule is {settings.judges.rule:g}, and these attempts have no reward, so that a judge must score "
            f"them: {rule.NEEDED}"
        )
    return True


def combine(parts: Sequence[Reward], weights: Mapping[str, float]) -> Reward:
    """A trajectory's reward from those of its judges: the weighted sum, or None where a judge with a weight has None."""
    rule = parts[0]
    counted = [part for part in parts if weights[part.name]]
    if counted == [rule] and weights["rule"] == 1:
        return rule
    changed: dict[str, Any] = {
        "name": "+".join(part.name for part in counted),
        "score": None,
        "components": {},
        "explanation": " | ".join(f"{part.name} × {weights[part.name]:g}: {part.explanation}" for part in counted),
    }
    if all(part.score is not None for part in counted):
        where = "weighted by score.judges"
        try:
            total = added(weights[part.name] * (part.score or 0.0) for part in counted)
            changed["score"] = number(total, "reward", where)
            changed["components"] = {
                name if len(counted) == 1 else f"{part.name}/{name}": number(weights[part.name] * value, name, where)
                for part in counted
                for name, value in part.components.items()
            }
        except UnusableNumber as problem:
            changed |= {"score": None, "explanation": f"{REASON}{problem}"}
    return rule.model_copy(update=changed)


if __name__ == "__main__":
    main(score)
