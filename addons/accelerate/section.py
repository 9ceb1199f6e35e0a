"""What the section `update` of params.yaml holds for processes that share an update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from steps.core.section import MoreFields, at

if TYPE_CHECKING:
    from steps.core.params import Params


class Divided(MoreFields):
    """Of the section `update`."""

    launcher: Literal["none", "accelerate", "ray"] = "none"
    """none: one process updates. accelerate: `processes` of them on this machine share each optimiser step, with a GPU each
    where there are GPUs. ray: workers of the Ray cluster `policy.cluster` do, on as many machines as it takes; one alone
    is allowed, too."""
    processes: int = Field(1, ge=1, le=64)
    """How many. Sums are rounded otherwise than in one process, so the run gives other bytes."""
    shard: bool = False
    """Each process holds a part of the base model's layers, and gets the rest from the others when it computes (FSDP2), for
    a base model that does not fit on one card. Read with processes above 1."""

    def check_with(self, params: Params) -> None:
        if self.launcher == "none" and self.processes > 1:
            raise ValueError(
                f"update.processes: {self.processes} needs update.launcher: accelerate or ray, which starts them"
            )
        if self.shard and self.processes == 1:
            raise ValueError("update.shard would have no effect: it is read with update.processes above 1; take it out")
        if self.shard and (quantization := at(params, "policy.quantization")):
            raise ValueError(
                f"update.shard does not work with policy.quantization: {quantization}, whose weights are not "
                "divided; take one of the two out"
            )
