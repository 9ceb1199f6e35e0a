"""What the section `policy` of params.yaml holds for GPUs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from steps.core import ports
from steps.core.section import MoreFields, at

if TYPE_CHECKING:
    from steps.core.params import Params, Policy


class Cards(MoreFields):
    """Of the section `policy`."""

    deterministic: bool = False
    """Same inputs, same bytes on a GPU, too, at a price in speed: kernels whose sums have a fixed order. CPUs always compute
    so."""
    gpu_memory: float = Field(0.5, gt=0, lt=1)
    """Share of a GPU's memory that the engine takes; the rest is for training."""
    tensor_parallel: int = Field(1, ge=1, le=64)
    """GPUs among which the engine divides the model, for one that does not fit on one of them (vLLM's tensor_parallel_size).
    On a CPU 1 alone."""
    quantization: Literal["bnb-4bit"] | None = None
    """bnb-4bit: trainer and engine hold the base model's linear layers in 4 bits (NF4 with double quantisation, as QLoRA:
    Dettmers et al. 2023, arXiv:2305.14314) and compute in `dtype`. On a GPU alone."""
    rollout_quantization: Literal["fp8"] | None = None
    """fp8: the engine samples with the base model's linear layers and their inputs in 8 bits (vLLM scales them as it loads
    and as it computes); the trainer keeps `dtype`. What the two differ by is corrected, and limited by
    update.max_sampler_kl. On a GPU from compute capability 8.9 on, with dtype: bfloat16."""

    def check_with(self, params: Params) -> None:
        if not self.rollout_quantization:
            return
        if reason := self._why_not_in_8_bits(params.policy):
            raise ValueError(f"policy.rollout_quantization: {self.rollout_quantization} {reason}; take it out")
        if at(params.update, "vllm_importance_sampling_correction") is False:
            raise ValueError(
                "update.vllm_importance_sampling_correction: false does not go with policy.rollout_quantization: "
                f"{self.rollout_quantization}, which samples from rounded weights; take one of the two out"
            )

    def _why_not_in_8_bits(self, policy: Policy) -> str | None:
        if not policy.has_adapter:
            return f"would have no effect with policy.kind: {policy.kind}"
        if self.quantization:
            return f"does not go with policy.quantization: {self.quantization}"
        if not ports.names("term"):
            return "needs the add-on terms, which corrects the loss for it and is not there"
        return None if policy.dtype == "bfloat16" else f"needs policy.dtype: bfloat16, and it is {policy.dtype}"

    @property
    def needs_gpus(self) -> bool:
        """Whether the policy can be loaded on a GPU alone."""
        return self.tensor_parallel > 1 or self.engine_quantization is not None

    @property
    def engine_quantization(self) -> str | None:
        """How vLLM holds the base model's linear layers, by its own name for it."""
        return "bitsandbytes" if self.quantization else {None: None, "fp8": "fp8_per_tensor"}[self.rollout_quantization]
