"""What the section `policy` of params.yaml holds for one copy of the base weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.section import MoreFields, at

if TYPE_CHECKING:
    from steps.core.params import Params


class Shared(MoreFields):
    """Of the section `policy`."""

    share_weights: bool = False
    """Trainer and engine compute with the same tensors of the base model, where each has a copy of its own otherwise
    (addons/sharing/weights.py). On a GPU they then stay on the card, and only keys and values leave it for the update. On a
    CPU the engine samples more slowly (docs/gpu.md) and rounds otherwise: the run gives other bytes. Of kind vllm alone,
    without `tensor_parallel` and `quantization`, and with an update in one process."""

    def check_with(self, params: Params) -> None:
        policy, processes, launcher = params.policy, at(params, "update.processes"), at(params, "update.launcher")
        others = {
            "kind": policy.kind if policy.kind != "vllm" else None,
            "tensor_parallel": cards if (cards := at(policy, "tensor_parallel") or 1) > 1 else None,
            "quantization": at(policy, "quantization"),
            "rollout_quantization": at(policy, "rollout_quantization"),
        }
        for name, value in others.items():
            if self.share_weights and value:
                raise ValueError(
                    f"policy.share_weights does not go with policy.{name}: {value}, because trainer and engine share whole "
                    "tensors in `dtype`, in one process; take one of the two out"
                )
        if self.share_weights and ((processes or 1) > 1 or launcher == "ray"):
            raise ValueError(
                f"policy.share_weights does not go with update.launcher: {launcher} and update.processes: {processes}: the "
                "update is then made in other processes than the engine's; take one out"
            )
