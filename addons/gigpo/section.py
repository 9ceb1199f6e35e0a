"""What the section `update` of params.yaml holds for advantages of single turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from steps.core.section import MoreFields

if TYPE_CHECKING:
    from steps.core.params import Params


class ByTurn(MoreFields):
    """Of the section `update`."""

    advantages: Literal["grpo", "gigpo"] = "grpo"
    """grpo: all turns of an episode have its advantage. gigpo: each turn's is added, from turns of the scenario's other
    attempts that start from the same state (arXiv:2505.10978, addons/gigpo/credit.py; scale_rewards: group is the paper's
    division by the standard deviation, none its normaliser of 1). Not with ratios of whole episodes (gspo, luspo, vespo, and
    importance_sampling_level: sequence)."""

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
        if self.advantages == "gigpo" and update.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                "update.multi_objective_aggregation: normalize_then_sum does not go with update.advantages: gigpo, which "
                "compares turns by the score: take one of the two out"
            )
