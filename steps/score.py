"""Score: a reward for each trajectory, by the judges that have a weight in `score.judges`: rule, criteria, RULER.

Rewards are a file of their own, so that a stored batch can be judged again without sampling again (flows/rescore.py). A
failed episode is unscored (None), never 0, and never dropped; so is one that a judge with a weight could not score, and one
whose reward is no finite number. The
rule's score and success are kept beside those of any other judge. Further outputs are what a model answered
(judgements.jsonl), measurements of the judge (judge.json), and the successes by scenario so far, for a curriculum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from environments.kit.values import REASON, UnusableNumber, number
from steps.core.progress import say
from steps.core.stats import added, mean
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import Score, ScoreParams
    from steps.core.records import Judgement, Reward, Trajectory

CANARY_WARNING = 0.1  # mean gain of a canary above which a person is warned


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
    from steps.judging import report
    from steps.judging.rule import by_rule, unusable_line
    from steps.sampling import curriculum

    env = environments.load(params.task)
    by_id = {scenario.id: scenario for scenario in read_records(Scenario, scenarios / "train.parquet")}
    played = read_records(Trajectory, trajectories)
    settings, weights = params.score, params.score.judges
    by = {"rule": [by_rule(env, by_id[trajectory.scenario_id], trajectory) for trajectory in played]}
    has_rule = rule_of(env, by["rule"], played, settings)
    if not has_rule:
        by["rule"] = [reward.model_copy(update={"success": None}) for reward in by["rule"]]
    if weights.criteria:
        from steps.core.params import Criteria
        from steps.judging.criteria import criteria

        options = settings.criteria or Criteria()
        by["criteria"] = [criteria(env, by_id[trajectory.scenario_id], trajectory, options) for trajectory in played]
    spent = json.loads(previous_judge.read_text())["cost_so_far"] if previous_judge is not None else 0.0
    answers: list[Judgement] = []
    if settings.ruler is not None:
        answers = by_ruler(env, by_id, played, rubric.read_text(encoding="utf-8"), params, spent)
        by["ruler"] = compared(answers, played, by["rule"])
    scored = [combine(parts, weights.model_dump()) for parts in zip(*by.values(), strict=True)]
    write_records(scored, rewards)
    measured = report.components(scored) | by_task(by_id, by["rule"] if has_rule else scored)
    if answers:
        measured |= {f"judge_{name}": value for name, value in report.report(answers, scored).items()}
    if judge is not None:
        measured |= {"cost_so_far": spent + added(answer.cost for answer in answers)}
        judge.write_text(json.dumps(measured, indent=2) + "\n")
    if judgements is not None:
        judgements.write_text("".join(answer.model_dump_json() + "\n" for answer in answers))
    if successes is not None:
        history = json.loads(previous_successes.read_text()) if previous_successes is not None else []
        # By the rule: whether an attempt succeeded is known where a model did not score it, too. Without a rule nothing is.
        successes.write_text(json.dumps(curriculum.extend(history, by["rule"] if has_rule else [])) + "\n")
    say(f"{len(scored)} rewards, {sum(reward.score is None for reward in scored)} unscored")
    if problem := unusable_line([(reward.score, reward.explanation) for reward in scored]):
        say(f"WARNING: {problem}")
    if answers:
        say_judged(answers, measured)


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


def rule_of(env: type[Env], rewards: Sequence[Reward], played: Sequence[Trajectory], settings: Score) -> bool:
    """Whether the attempts have rewards by the rule. UserError where it has a weight and they have none, or only some."""
    from steps.core.errors import UserError
    from steps.judging import pairs

    if not settings.judges.rule:
        return any(reward.score is not None for reward in rewards) or (env.has_rule and not env.is_agent)
    if not pairs.has_rule(env, rewards, played, settings):
        raise UserError(
            f"score.judges.rule is {settings.judges.rule:g}, and these attempts have no reward, so that a judge must score "
            f"them: {pairs.NEEDED}"
        )
    return True


def by_ruler(
    env: type[Env],
    by_id: Mapping[str, Scenario],
    played: Sequence[Trajectory],
    rubric: str,
    params: ScoreParams,
    spent: float,
) -> list[Judgement]:
    """RULER's judgement of each group, in the order of their first trajectories; failed episodes are not shown to it."""
    from steps.judging import ruler
    from steps.judging.prompts import Group

    assert params.score.ruler is not None
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in played:
        if trajectory.stop_reason != "error":
            groups.setdefault(trajectory.scenario_id, []).append(trajectory)
    return ruler.judge_all(
        [Group(by_id[name], attempts) for name, attempts in groups.items()],
        params.score.ruler,
        [tool.schema for tool in env.tools().values()],
        rubric,
        spent,
    )


def compared(answers: Sequence[Judgement], played: Sequence[Trajectory], rules: Sequence[Reward]) -> list[Reward]:
    """RULER's reward for each trajectory, in the trajectories' order. AssertionError where one would be lost."""
    groups = {answer.scenario_id: answer for answer in answers}
    rewards = []
    for trajectory, rule in zip(played, rules, strict=True):
        score: float | None = None
        components: dict[str, float] = {}
        why = rule.explanation
        if trajectory.stop_reason != "error":
            group = groups[trajectory.scenario_id]
            if trajectory.id not in group.scores:
                raise AssertionError(f"trajectory {trajectory.id} was lost by the judge")
            score = group.scores[trajectory.id]
            components = {} if score is None else {"ruler": score}
            why = f"not scored: {group.problem}" if score is None else group.reasons.get(trajectory.id, "")
        judged = {"name": "ruler", "score": score, "components": components, "explanation": why}
        rewards.append(rule.model_copy(update=judged))
    return rewards


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


def say_judged(answers: Sequence[Judgement], measured: Mapping[str, float]) -> None:
    """Print how many groups a model judged, what that cost, and the faults that were measured of it."""
    cost = f", cost {measured['judge_cost']:.4g}" if measured["judge_cost"] else ""
    say(f"judge {answers[0].judge}: {measured['judge_groups']} groups, {measured['judge_answers']} answers{cost}")
    for reason in list(dict.fromkeys(answer.problem for answer in answers if answer.problem))[:3]:
        say(f"not scored: {reason}")
    if cut := measured["judge_groups_shortened"]:
        say(f"{cut} groups were longer than score.ruler.max_characters: their longest messages were shortened")
    names = {"tau_rule": "tau with the rule", "position_bias": "position bias", "length_gain": "gain by length"}
    names |= {"retest_spread": "test-retest spread"}
    faults = [f"{text} {measured[f'judge_{name}']:+.2f}" for name, text in names.items() if f"judge_{name}" in measured]
    if faults:
        say(", ".join(faults))
    if places := [gain for name, gain in measured.items() if name.startswith("judge_place_")]:
        say(f"by place, first to last (taken off): {' '.join(f'{gain:+.2f}' for gain in places)}")
    if (gain := measured.get("judge_canary_gain", 0.0)) > CANARY_WARNING:
        say(
            f"WARNING: attempts that tell this judge to score them 1.0 gain {gain:.2f}: the judge can be influenced, and a "
            "policy will learn to do so; use another model, or mix in the rule (score.judges)"
        )


if __name__ == "__main__":
    main(score)
