"""Compares two policies by a judge, on the same held-out scenarios: for tasks without a rule, or beside the rule's success.

RULER (addons/judges/ruler.py) is shown both attempts at a scenario, in both orders. The policy wins the scenario where its
attempt scores higher in both orders, and loses it where the other's does. Where the orders disagree, the scores are equal or
the attempts read alike, it is a tie. An attempt that failed loses to one that did not, and the judge is not asked. The
interval of the share that was won is that of steps/registry/paired.py.

What a judge prefers need not be better. Its retest spread, what a canary gains, its position bias and how often the reversed
order reverses the result are measured and kept with the result; nothing here corrects for them but the tie.

A judge that scored the training has been optimised against; `evaluate.judge` names another one, which has not. Where the
task has a rule, that judge compares attempts all the same, beside success.

Left out: attempts at temperature 1 beside the greedy ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.judges.section import Referee, Ruler, Scored
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation, Judged
from steps.core.records import Judgement, Pair, Trajectory, read_records
from steps.judging.rule import NEEDED

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import EvaluateParams
    from steps.core.records import Reward

DISAGREE, UNJUDGED = "the orders disagree", "not judged"  # how the reasons of such ties begin


def rival_of(against: Path | None, adapter_hash: str | None = None) -> Path | None:
    """The folder of the evaluation to compare with; None where `against` is the file of initialise that names the base
    policy, which is this one. UserError where there is nothing to compare with, or the file names another adapter."""
    import json

    if against is None:
        raise UserError(
            "without a rule an evaluation is a comparison with the base policy: name its evaluation of the same split with "
            "--against (run/000/evaluation or run/000/test), or run/000/base.json where this is the base policy"
        )
    if against.is_dir():
        return against
    named = json.loads(against.read_text())["adapter_hash"]
    if adapter_hash is not None and named != adapter_hash:
        raise UserError(f"{against} names {named} as the base policy, and this is {adapter_hash}: give its evaluation")
    return None


def settings_of(params: EvaluateParams, why: str) -> Ruler:
    """The settings of the judge, which is the one that training does not ask where there is one. UserError, which begins
    with why it is needed, where there are none."""
    settings = Referee.of(params.evaluate).judge or Scored.of(params.score).ruler
    if settings is None:
        raise UserError(f"{why}, so only a judge can tell which attempt is better, and there is none: {NEEDED}")
    return settings


class Rival(NamedTuple):
    """The evaluation with whose attempts others are compared."""

    against: Path | None  # its folder, or the base.json that names its policy
    name: str  # of its policy, in words
    split: str
    by_rule: bool = False  # both evaluations have success by a rule


def judged(
    env: type[Env],
    data: Any,
    scenarios: Sequence[Scenario],
    played: Sequence[Trajectory],
    settings: Ruler,
    rubric: str,
    rival: Rival,
) -> tuple[Judged, list[Pair]]:
    """Compare attempts at N scenarios with those of another evaluation; the result, and a pair for each scenario.

    UserError where the two are not of the same scenarios, or only one has success by a rule.
    """
    import numpy as np

    from addons.judges import report, ruler
    from steps.core import alike
    from steps.registry import paired

    own = played[0].adapter_hash
    folder = rival_of(rival.against, own)
    groups, ids = alike.groups_of(env, scenarios, data), [scenario.id for scenario in scenarios]
    others = [] if folder is None else read_rival(folder, scenarios, rival.split, rival.by_rule)
    judge = f"{settings.endpoint.model} {ruler.identity(settings.of_pairs(), rubric.strip() or ruler.RUBRIC)}"
    if folder is None or others[0].adapter_hash == own:
        pairs = [Pair(scenario_id=scenario.id, score=0.5, reason="the policy itself") for scenario in scenarios]
        none = {"disagreements": 0, "unjudged": 0, "wins": 0, "ties": len(pairs), "losses": 0}
        named = {"rival": rival.name, "rival_hash": own, "judge": judge, "clusters": groups.count(ids)}
        return Judged(**named, share=0.5, ci95=(0.5, 0.5), **none), pairs
    pairs = compare(env, scenarios, played, others, settings, rubric)
    score_N = np.array([pair.score for pair in pairs])
    share, low, high = paired.judged_interval(score_N, paired.numbered(groups.of(ids)))
    ties = [pair.reason for pair in pairs if pair.score == 0.5]
    measured = report.report([pair.judgement for pair in pairs if pair.judgement is not None], [])
    result = Judged(
        rival=rival.name,
        rival_hash=others[0].adapter_hash,
        judge=judge,
        share=share,
        ci95=(low, high),
        clusters=groups.count(ids),
        wins=int((score_N == 1).sum()),
        ties=len(ties),
        losses=int((score_N == 0).sum()),
        disagreements=sum(reason == DISAGREE for reason in ties),
        unjudged=sum(reason.startswith(UNJUDGED) for reason in ties),
        measured={name: value for name, value in measured.items() if "tau" not in name},
    )
    return result, pairs


def read_rival(folder: Path, scenarios: Sequence[Scenario], split: str, by_rule: bool = False) -> list[Trajectory]:
    """The attempts of an evaluation at these scenarios, with or without a rule. UserError where it is of others, or of the
    other kind."""
    summary = Evaluation.model_validate_json((folder / "summary.json").read_text())
    if (summary.judged is None) != by_rule:
        here, there = ("none", "rewards") if by_rule else ("rewards", "none")
        raise UserError(
            f"the attempts in {folder} have {here}, and those of this policy have {there}: the two kinds cannot be "
            "compared; evaluate both again, with an agent that returns a reward always, or never"
        )
    trajectories = read_records(Trajectory, folder / "trajectories.parquet")
    if summary.split != split or [trajectory.scenario_id for trajectory in trajectories] != [s.id for s in scenarios]:
        raise UserError(
            f"{folder} is of the split {summary.split} and {len(trajectories)} scenarios, this evaluation of {split} and "
            f"{len(scenarios)}: only the same scenarios can be compared, evaluate both again (`.venv/bin/dvc repro`)"
        )
    return trajectories


def compare(
    env: type[Env],
    scenarios: Sequence[Scenario],
    played: Sequence[Trajectory],
    others: Sequence[Trajectory],
    settings: Ruler,
    rubric: str,
) -> list[Pair]:
    """A pair for each scenario: `played` beside `others`, which are attempts at the same scenarios in the same order."""
    from addons.judges import ruler
    from addons.judges.prompts import Group

    groups: list[Group] = []
    for scenario, own, other in zip(scenarios, played, others, strict=True):
        if "error" not in (own.stop_reason, other.stop_reason):
            groups.append(Group(scenario, [named(own), named(other)]))
    tools = [tool.schema for tool in env.tools().values()]
    answers = ruler.judge_all(groups, settings.of_pairs(), tools, rubric) if groups else []
    judgements = {judgement.scenario_id: judgement for judgement in answers}
    pairs = []
    for scenario, own, other in zip(scenarios, played, others, strict=True):
        judgement = judgements.get(scenario.id)
        score, reason = failed(own, other) if judgement is None else decided(judgement, named(own).id, named(other).id)
        pairs.append(Pair(scenario_id=scenario.id, score=score, reason=reason, judgement=judgement))
    return pairs


def unscored(reward: Reward, pair: Pair, rival: str) -> Reward:
    """The reward of an attempt without a rule: it has no score and no success, and says how it compares."""
    result = {1.0: "judged better than", 0.0: "judged worse than", 0.5: "a tie with"}[pair.score]
    why = f"{result} the attempt of the {rival}: {pair.reason}"
    return reward.model_copy(update={"name": "ruler", "success": None, "explanation": why})


def named(trajectory: Trajectory) -> Trajectory:
    """The trajectory under a name that no other policy's attempt at the same scenario has."""
    return trajectory.model_copy(update={"id": f"{trajectory.adapter_hash}/{trajectory.id}"})


def failed(own: Trajectory, other: Trajectory) -> tuple[float, str]:
    """The score of a pair of which at least one failed."""
    if own.stop_reason == other.stop_reason:
        return 0.5, "both attempts failed"
    return (0.0, "this attempt failed") if own.stop_reason == "error" else (1.0, "the other attempt failed")


def decided(judgement: Judgement, own: str, other: str) -> tuple[float, str]:
    """(score, reason) of a judgement of two attempts, which are named by their ids."""
    from addons.judges.prompts import ALIKE

    if judgement.problem.startswith(ALIKE):
        return 0.5, "the attempts read alike"
    signs = []
    for order in judgement.orders:
        scores = dict(zip(order.attempts, order.scores, strict=True))
        mine, theirs = scores[own], scores[other]
        if mine is not None and theirs is not None:
            signs.append((mine > theirs) - (mine < theirs))
    if len(signs) < 2:
        problem = judgement.problem or "; ".join(order.problem for order in judgement.orders if order.problem)
        return 0.5, f"{UNJUDGED}: {problem}"
    if set(signs) == {1}:
        return 1.0, judgement.reasons.get(own, "")
    if set(signs) == {-1}:
        return 0.0, judgement.reasons.get(other, "")
    return 0.5, DISAGREE if set(signs) == {1, -1} else "the scores are equal, in one order at least"
