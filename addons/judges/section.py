"""What params.yaml holds for judges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from addons.models.section import Endpoint
from steps.core.section import MoreFields, Section, for_one_task

if TYPE_CHECKING:
    from steps.core.params import Params


class Criteria(Section):
    """Weights of the four parts of a score from 0 to 1; they sum to 1."""

    accuracy: float = Field(0.4, ge=0, le=1)
    """Weight of how near the result is to what is expected."""
    efficiency: float = Field(0.3, ge=0, le=1)
    """Weight of how few turns it took."""
    completeness: float = Field(0.2, ge=0, le=1)
    """Weight of the share of required actions that were taken."""
    satisfaction: float = Field(0.1, ge=0, le=1)
    """Weight of what remains after errors and a long response."""

    @model_validator(mode="after")
    def check(self) -> Criteria:
        total = self.accuracy + self.efficiency + self.completeness + self.satisfaction
        if abs(total - 1) > 1e-6:
            raise ValueError(f"score.criteria: the weights must sum to 1, not {total:g}")
        return self


OF_PAIRS: dict[str, Any] = {"orders": 2, "rubric_dropout": 0.0}


class Ruler(Section):
    """RULER: a model compares the attempts at one scenario, by the rubric in tasks_data/<task>/rubric.md."""

    endpoint: Endpoint
    """The model that judges, and its server."""
    orders: int = Field(4, ge=1, le=24)
    """Orders in which the attempts are shown. From 3 on, what the judge gives for each place is taken off the scores, from 4
    on also where one order is lost; with 2 only a linear preference cancels out (docs/judging.md#place-and-length). From 3
    on a copy of the shortest attempt is shown, too, that repeats its last words until it is as long as the longest, and what
    length alone earns is taken off; fewer cannot tell length from noise."""
    probes: float = Field(0.1, ge=0, le=1)
    """Share of groups that are judged twice more, to measure the judge: the same again, and with a canary."""
    rubric_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the rubric's points (its lines that begin with a dash) that are left out at random for each group, so that a
    policy cannot learn one wording of them by heart; one is always kept. Evaluations are judged by the whole rubric."""
    reasons: bool = True
    """Ask for a sentence with each score; without them answers are a tenth as long."""
    max_characters: int = Field(60_000, ge=2_000)
    """Most characters of the attempts in one call; longer ones are shortened, which the judgement records."""
    max_run_cost: float | None = Field(None, gt=0)
    """The most that a run's judgements may cost, kept ones included; scoring stops before it would pass that. Without a
    rule, each evaluation may cost as much once more."""

    @model_validator(mode="after")
    def check(self) -> Ruler:
        if self.max_run_cost is not None and not self.endpoint.price_in + self.endpoint.price_out:
            raise ValueError("score.ruler.max_run_cost needs price_in and price_out of its endpoint")
        return self

    def of_pairs(self) -> Ruler:
        """As evaluations are judged: two attempts in both orders and no more, by the whole rubric."""
        return self.model_copy(update=OF_PAIRS)

    @property
    def shows_longer_copy(self) -> bool:
        return self.orders > 2


class Weights(MoreFields):
    """Of the section `score.judges`."""

    criteria: float = Field(0.0, ge=0)
    """The weighted criteria of addons/judges/criteria.py."""
    ruler: float = Field(0.0, ge=0)
    """A model that compares the attempts (addons/judges/ruler.py)."""


class Scored(MoreFields):
    """Of the section `score`."""

    criteria: Criteria | None = None
    """Settings of the judge criteria. null: its defaults."""
    ruler: Ruler | None = None
    """Settings of the judge ruler, which needs its endpoint."""

    def check_with(self, params: Params) -> None:
        for_one_task(params, "score.ruler")
        if Weights.of(params.score.judges).ruler and self.ruler is None:
            raise ValueError("score.ruler is needed with score.judges.ruler above 0 (its endpoint.model, at least)")


class Referee(MoreFields):
    """Of the section `evaluate`."""

    judge: Ruler | None = None
    """A judge that training never asks, with the fields of score.ruler: it compares attempts with the base policy's. Without
    a rule its preference is the result, in place of score.ruler's. With a rule it stands beside success, and can refuse a
    promotion (docs/judging.md). null: without a rule score.ruler judges evaluations, too."""

    @model_validator(mode="after")
    def judge_pairs(self) -> Self:
        if self.judge is None:
            return self
        for name, value in OF_PAIRS.items():
            if name in self.judge.model_fields_set and getattr(self.judge, name) != value:
                raise ValueError(
                    f"evaluate.judge.{name} would have no effect: evaluations are judged in both orders of two attempts, by "
                    "the whole rubric; take it out"
                )
        object.__setattr__(self, "judge", self.judge.of_pairs())
        return self

    def check_with(self, params: Params) -> None:
        for_one_task(params, "evaluate.judge")
        ruler = Scored.of(params.score).ruler
        if self.judge is None or ruler is None:
            return
        own, other = self.judge.endpoint, ruler.endpoint
        if (own.model, own.base_url) == (other.model, other.base_url):
            raise ValueError(
                f"evaluate.judge is {own.model}, which scores the training, too (score.ruler): a judge that is held out "
                "must be another model; name another, or take evaluate.judge out"
            )
