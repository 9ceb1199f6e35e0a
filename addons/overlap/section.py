"""What the section `train` of params.yaml holds for rollouts that run ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from addons.terms.section import Terms
from steps.core.section import MoreFields

if TYPE_CHECKING:
    from steps.core.params import Params


class Overlapped(MoreFields):
    """Of the section `train`."""

    overlap: int = Field(0, ge=0, le=4)
    """Iterations that sampling runs ahead of the updates, beside them: an iteration samples with an adapter that is so many
    iterations older than the one it continues. chain.yaml records it, and each token's weight in the loss is corrected for
    it (update.vllm_importance_sampling_correction). 0: sampling waits for each update."""

    def check_with(self, params: Params) -> None:
        if self.overlap and Terms.of(params.update).vllm_importance_sampling_correction is False:
            raise ValueError(
                f"update.vllm_importance_sampling_correction: false does not go with train.overlap: {self.overlap}, "
                "whose batches an older adapter samples; take one of the two out"
            )
