"""The sections of params.yaml but `policy` and `update`: fields, defaults and ranges.

`policy` is in steps/core/params_policy.py, `update` in steps/core/params_update.py. The text under a field says what it does
and its unit. Everything else imports the sections from steps/core/params.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from steps.core.section import Section, opened


@opened("scenarios")
class Scenarios(Section):
    """How many scenarios each split has, and how much alike those of two splits may be (steps/data/contamination.py)."""

    train: int = Field(192, ge=1)
    """Scenarios to learn from."""
    val: int = Field(120, ge=1)
    """Scenarios by which the best iteration is chosen."""
    test: int = Field(540, ge=1)
    """Scenarios by which an adapter is judged in the end."""
    max_overlap: float = Field(0.8, gt=0, le=1)
    """Largest share of a held-out text's n-grams that one training scenario may have too; 1 allows any overlap."""


class SlowTools(Section):
    """Of tools that answer beside the engine: those of tasks with `overlap`, `async def` ones, and those of MCP servers."""

    tool_timeout: float = Field(60, gt=0)
    """Seconds after which a call's answer is the error that it took too long."""


class Episodes(SlowTools):
    """A batch of episodes."""

    max_tokens: int | None = Field(None, ge=1)
    """Most tokens of one turn. null: 64 for the small policies in tasks_data/, for others 512, or 2048 where the model
    reasons first, and at most a quarter of policy.context."""
    max_turns: int | None = Field(None, ge=1)
    """Most turns of an episode. null: the environment's own limit."""


Order = Literal["lockstep", "free"]


@opened("rollout")
class Rollout(Episodes):
    """One iteration's batch: `scenarios` × `attempts` episodes."""

    scenarios: int = Field(16, ge=1)
    """Scenarios that are drawn for an iteration."""
    attempts: int = Field(8, ge=2, le=256)
    """Episodes played at each of them (G, the group size); they are compared with each other."""
    temperature: float = Field(1.0, gt=0, le=2)
    """Sampling temperature."""
    order: Order = "lockstep"
    """Of the calls of your own agents. lockstep: the calls of all episodes under way are collected, and sampled in the order
    of their episodes, so that deterministic agents give the same bytes again. free: as they come, which is fastest; the
    journal is the record, and replayed. Also of the answers of slow tools (steps/sampling/episodes.py)."""


@opened("score.judges")
class Judges(Section):
    """Weight of each judge's score in the reward. A judge with weight 0 is not asked; the rule's score is always kept."""

    rule: float = Field(0.0, ge=0)
    """The environment's own reward."""

    @model_validator(mode="after")
    def check(self) -> Judges:
        if not any(self.model_dump().values()):
            raise ValueError(f"score.judges: one of {', '.join(type(self).model_fields)} must be above 0")
        return self


@opened("score")
class Score(Section):
    """Who judges, and how."""

    judges: Judges = Judges(rule=1.0)
    """What each judge counts."""

    @model_validator(mode="after")
    def check(self) -> Score:
        for name, weight in self.judges:
            if not weight and getattr(self, name, None) is not None:
                raise ValueError(f"score.{name} would have no effect: score.judges.{name} is 0; take it out")
        return self


@opened("evaluate")
class Evaluate(Episodes):
    """How a policy is evaluated: one attempt at each scenario, which decides, and more beside it if wanted."""

    temperature: float = Field(0.0, ge=0, le=2)
    """0 is greedy; above 0 the random draws are the same for every policy."""
    sampled_attempts: int = Field(0, ge=0, le=64)
    """More attempts at each scenario, at temperature 1. Their success is shown beside the greedy one, which can jump where a
    single token's probability crosses another's; it decides nothing, and takes as long. Only of a policy with an adapter."""

    @property
    def order(self) -> Order:
        """As rollout.order: the same policy gives the same bytes."""
        return "lockstep"


class Register(Section):
    """The registry's entry, for an adapter that is better than the base policy on the test split."""

    name: str | None = Field(None, pattern=r"^[^/:]+$")
    """The registered model's name, without / and :, as MLflow has them. null: the task's."""


@opened("promote")
class Promote(Section):
    """The gate that moves the alias `champion` (steps/registry/gate.py, flows/promote.py); no stage reads it."""

    margin: float = Field(0.0, ge=0, lt=1)
    """What the lower end of the interval of the gain in success must exceed; without a rule, of the share of scenarios
    that a judge finds better, minus 0.5."""
    max_slice_drop: float = Field(0.1, ge=0, le=1)
    """Largest loss of success on any slice, and on the regression set, that is allowed where it is beyond chance; without a
    rule, largest distance of that share below 0.5."""
    false_promotions: float = Field(0.05, gt=0, le=0.5)
    """Largest probability that any of the challengers judged on one test split is promoted and is no better."""


@opened("train")
class Train(Section):
    """The flow `make train`."""

    iterations: int = Field(14, ge=1, le=999)
    """Most iterations of a run."""
    patience: int = Field(14, ge=1)
    """Iterations without a better validation success, or share judged better, after which the run ends."""
