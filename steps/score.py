"""Score: a reward for each trajectory, by the judges that `score.judges` weighs: rule, weighted criteria, RULER.

Rewards are a file of their own, so that a stored batch can be judged again without sampling again (flows/rescore.py). A
failed episode is unscored (None), never 0 and never dropped; so is one that a judge with a weight could not score. The
rule's score and success are kept beside whoever judges. Beside the rewards stand what a model said (judgements.jsonl), what
is known of the judge (judge.json), and what a curriculum goes by: successes by scenario so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from steps.core.progress import say
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import ScoreParams
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
    """Write one reward a trajectory, in the same order; what the judge said; and the history, an iteration longer."""
    import json

    import environments
    from environments.base import Scenario
    from steps.core.records import Trajectory, read_records, write_records
    from steps.judging import report
    from steps.judging.rule import by_rule
    from steps.sampling import curriculum

    env = environments.load(params.task)
    known = {scenario.id: scenario for scenario in read_records(Scenario, scenarios / "train.parquet")}
    played = read_records(Trajectory, trajectories)
    settings, weights = params.score, params.score.judges
    by = {"rule": [by_rule(env, known[one.scenario_id], one) for one in played]}
    if weights.criteria:
        from steps.core.params import Criteria
        from steps.judging.criteria import criteria

        by["criteria"] = [criteria(env, known[one.scenario_id], one, settings.criteria or Criteria()) for one in played]
    spent = json.loads(previous_judge.read_text())["cost_so_far"] if previous_judge is not None else 0.0
    said: list[Judgement] = []
    if settings.ruler is not None:
        said = by_ruler(env, known, played, rubric.read_text(encoding="utf-8"), params, spent)
        by["ruler"] = compared(said, played, by["rule"])
    scored = [combine(parts, weights.model_dump()) for parts in zip(*by.values(), strict=True)]
    write_records(scored, rewards)
    found = report.components(scored)
    if said:
        found |= {f"judge_{name}": value for name, value in report.report(said, scored).items()}
    if judge is not None:
        found |= {"cost_so_far": spent + sum(one.cost for one in said)}
        judge.write_text(json.dumps(found, indent=2) + "\n")
    if judgements is not None:
        judgements.write_text("".join(one.model_dump_json() + "\n" for one in said))
    if successes is not None:
        history = json.loads(previous_successes.read_text()) if previous_successes is not None else []
        successes.write_text(json.dumps(curriculum.extend(history, scored)) + "\n")
    say(f"{len(scored)} rewards, {sum(reward.score is None for reward in scored)} unscored")
    if said:
        tell(said, found)


def by_ruler(
    env: type[Env],
    known: Mapping[str, Scenario],
    played: Sequence[Trajectory],
    rubric: str,
    params: ScoreParams,
    spent: float,
) -> list[Judgement]:
    """A judgement of each group, in the order of their first trajectories. Failed episodes are not shown to the judge."""
    from steps.judging import ruler
    from steps.judging.prompts import Group

    assert params.score.ruler is not None
    groups: dict[str, list[Trajectory]] = {}
    for one in played:
        if one.stop_reason != "error":
            groups.setdefault(one.scenario_id, []).append(one)
    return ruler.judge_all(
        [Group(known[name], attempts) for name, attempts in groups.items()],
        params.score.ruler,
        [tool.schema for tool in env.tools().values()],
        rubric,
        spent,
    )


def compared(said: Sequence[Judgement], played: Sequence[Trajectory], rules: Sequence[Reward]) -> list[Reward]:
    """What the judge gave each trajectory, in the trajectories' order. AssertionError where one would be lost."""
    from steps.core.records import Reward

    groups = {one.scenario_id: one for one in said}
    made = []
    for one, rule in zip(played, rules, strict=True):
        common = {"trajectory_id": one.id, "scenario_id": one.scenario_id, "name": "ruler", "success": rule.success}
        if one.stop_reason == "error":
            made.append(Reward(**common, score=None, explanation=rule.explanation))
            continue
        group = groups[one.scenario_id]
        if one.id not in group.scores:
            raise AssertionError(f"trajectory {one.id} was lost by the judge")
        given = group.scores[one.id]
        why = f"not scored: {group.problem}" if given is None else group.reasons.get(one.id, "")
        made.append(
            Reward(**common, score=given, components={} if given is None else {"ruler": given}, explanation=why)
        )
    return made


def combine(parts: Sequence[Reward], weights: Mapping[str, float]) -> Reward:
    """One trajectory's reward from its judges': the weighted sum, None where a judge with a weight has None."""
    rule = parts[0]
    counted = [one for one in parts if weights[one.name]]
    if counted == [rule] and weights["rule"] == 1:
        return rule
    whole = all(one.score is not None for one in counted)
    components = {
        name if len(counted) == 1 else f"{one.name}/{name}": weights[one.name] * value
        for one in counted
        for name, value in one.components.items()
    }
    return rule.model_copy(
        update={
            "name": "+".join(one.name for one in counted),
            "score": sum(weights[one.name] * (one.score or 0.0) for one in counted) if whole else None,
            "components": components if whole else {},
            "explanation": " | ".join(f"{one.name} × {weights[one.name]:g}: {one.explanation}" for one in counted),
        }
    )


def tell(said: Sequence[Judgement], found: Mapping[str, float]) -> None:
    """For the person who watches: what was judged, what it cost, and the judge's faults."""
    cost = f", cost {found['judge_cost']:.4g}" if found["judge_cost"] else ""
    say(f"judge {said[0].judge}: {found['judge_groups']} groups, {found['judge_answers']} answers{cost}")
    for reason in list(dict.fromkeys(one.problem for one in said if one.problem))[:3]:
        say(f"not scored: {reason}")
    if cut := found["judge_groups_shortened"]:
        say(f"{cut} groups were longer than score.ruler.max_characters: their longest messages were shortened")
    names = {"tau_rule": "tau with the rule", "position_bias": "position bias", "retest_spread": "test-retest spread"}
    measured = [f"{text} {found[f'judge_{name}']:+.2f}" for name, text in names.items() if f"judge_{name}" in found]
    if measured:
        say(", ".join(measured))
    if (gain := found.get("judge_canary_gain", 0.0)) > CANARY_WARNING:
        say(
            f"WARNING: attempts that tell this judge to score them 1.0 gain {gain:.2f}: it can be talked to, and a policy "
            "will learn to; use another model, or mix in the rule (score.judges)"
        )


if __name__ == "__main__":
    main(score)
