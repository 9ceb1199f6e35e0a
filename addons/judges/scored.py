"""The judges of a batch for the stage score: weighted criteria (criteria.py) and RULER (ruler.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from addons.judges import report, ruler
from addons.judges.criteria import criteria
from addons.judges.prompts import Group
from addons.judges.section import Criteria, Scored
from steps.judging.judge import Judge

if TYPE_CHECKING:
    from steps.core.records import Judgement, Reward, Trajectory

CANARY_WARNING = 0.1  # mean gain of a canary above which a person is warned


class ByCriteria(Judge):
    """The weighted criteria of each attempt."""

    def rewards(self) -> list[Reward]:
        env, scenarios = self.batch.env, self.batch.scenarios
        options = Scored.of(self.batch.score).criteria or Criteria()
        return [criteria(env, scenarios[attempt.scenario_id], attempt, options) for attempt in self.batch.played]


class ByRuler(Judge):
    """RULER's scores of each group; failed episodes are not shown to it."""

    is_comparing = True

    def rewards(self) -> list[Reward]:
        batch, settings = self.batch, Scored.of(self.batch.score).ruler
        assert settings is not None
        assert batch.rubric is not None
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in batch.played:
            if trajectory.stop_reason != "error":
                groups.setdefault(trajectory.scenario_id, []).append(trajectory)
        self.answers = ruler.judge_all(
            [Group(batch.scenarios[name], attempts) for name, attempts in groups.items()],
            settings,
            [tool.schema for tool in batch.env.tools().values()],
            batch.rubric.read_text(encoding="utf-8"),
            batch.spent,
        )
        return compared(self.answers, batch.played, batch.rules)

    def measured(self, scored: Sequence[Reward]) -> dict[str, float]:
        if not self.answers:
            return {}
        return {f"judge_{name}": value for name, value in report.report(self.answers, scored).items()}

    def lines(self, measured: Mapping[str, float]) -> list[str]:
        return described(self.answers, measured) if self.answers else []


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


def described(answers: Sequence[Judgement], measured: Mapping[str, float]) -> list[str]:
    """How many groups a model judged, what that cost, and the faults that were measured of it."""
    cost = f", cost {measured['judge_cost']:.4g}" if measured["judge_cost"] else ""
    lines = [f"judge {answers[0].judge}: {measured['judge_groups']} groups, {measured['judge_answers']} answers{cost}"]
    problems = list(dict.fromkeys(answer.problem for answer in answers if answer.problem))[:3]
    lines += [f"not scored: {reason}" for reason in problems]
    if cut := measured["judge_groups_shortened"]:
        lines.append(f"{cut} groups were longer than score.ruler.max_characters: their longest messages were shortened")
    names = {"tau_rule": "tau with the rule", "position_bias": "position bias", "length_gain": "gain by length"}
    names |= {"retest_spread": "test-retest spread"}
    faults = [f"{text} {measured[f'judge_{name}']:+.2f}" for name, text in names.items() if f"judge_{name}" in measured]
    if faults:
        lines.append(", ".join(faults))
    if places := [gain for name, gain in measured.items() if name.startswith("judge_place_")]:
        lines.append(f"by place, first to last (taken off): {' '.join(f'{gain:+.2f}' for gain in places)}")
    if (gain := measured.get("judge_canary_gain", 0.0)) > CANARY_WARNING:
        lines.append(
            f"WARNING: attempts that tell this judge to score them 1.0 gain {gain:.2f}: the judge can be influenced, and a "
            "policy will learn to do so; use another model, or mix in the rule (score.judges)"
        )
    return lines
