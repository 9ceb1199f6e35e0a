"""What the section `update` of params.yaml holds for other advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from pydantic import Field, model_validator

from steps.core.params_loss import settle
from steps.core.section import MoreFields

if TYPE_CHECKING:
    from steps.core.params import Params, Update


class Advantages(MoreFields):
    """Of the section `update`."""

    advantages: Literal["grpo", "gigpo"] = "grpo"
    """grpo: all turns of an episode have its advantage. gigpo: each turn's is added, from turns of the scenario's other
    attempts that start from the same state (arXiv:2505.10978; scale_rewards: group is the paper's division by the standard
    deviation, none its normaliser of 1). Not with ratios of whole episodes (gspo, luspo, vespo, and
    importance_sampling_level: sequence)."""

    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """sum_then_normalize: attempts at a scenario are compared by their scores. normalize_then_sum: by each named part of the
    reward, divided by its own standard deviation in the group, and their sum, with the weights of score.judges, by its own
    in the batch (GDPO, arXiv:2601.05242): parts of different scales then count as their weights say. A part that an attempt
    lacks is 0, and what a truncated one loses is a part, too."""
    max_completion_len: int | None = Field(None, ge=1)
    """Tokens of an episode from which on all of it is taken. Needed, and read, with truncated_completions: soft_overlong, as
    is the one below."""
    soft_punish_cache: int | None = Field(None, ge=0)
    """The last tokens before that, over which what is taken rises from 0."""

    @model_validator(mode="after")
    def check_lengths(self) -> Advantages:
        """ValueError for a field that nothing would read, or that is missing."""
        is_soft = cast("Update", self).truncated_completions == "soft_overlong"
        for name in ("max_completion_len", "soft_punish_cache"):
            settle(self, name, None, is_soft, "truncated_completions: soft_overlong")
        if (is_soft and (self.max_completion_len or 0) < (self.soft_punish_cache or 0)) or (
            is_soft and None in (self.max_completion_len, self.soft_punish_cache)
        ):
            raise ValueError(
                "update.truncated_completions: soft_overlong needs update.max_completion_len, tokens of an episode, and "
                "update.soft_punish_cache, at most as many: the reward falls over the last soft_punish_cache of them"
            )
        return self

    def check_with(self, params: Params) -> None:
        update = params.update
        if self.advantages == "gigpo" and (
            update.importance_sampling_level == "sequence" or update.loss_type == "vespo"
        ):
            raise ValueError(
                f"update.advantages: gigpo does not go with update.loss_type: {update.loss_type} and "
                f"update.importance_sampling_level: {update.importance_sampling_level}, whose ratio of a whole episode "
                "spreads each turn's advantage over all turns; take one of the two out"
            )
        if self.advantages == "gigpo" and self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                "update.multi_objective_aggregation: normalize_then_sum does not go with update.advantages: gigpo, which "
                "compares turns by the score: take one of the two out"
            )
