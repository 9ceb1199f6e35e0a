"""A faster LoRA adapter for vLLM on the CPU: one matrix product, where vLLM gathers a copy of the weights for each token.

vLLM serves many adapters at a time. Its CPU operators do that work even when all tokens have the same adapter, which is the
only case here, and take two thirds of an engine step. The mathematics is the same; mixed batches are left to vLLM. vLLM
imports this module by the name that `use` sets (vLLM 0.32).
"""

from __future__ import annotations

from typing import Any

from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class OneAdapter(PunicaWrapperCPU):
    """vLLM's wrapper, with a shortcut for batches whose tokens all have the adapter in slot 0."""

    is_single = False
    enabled = True

    def update_metadata(self, *arguments: Any, **more: Any) -> None:
        super().update_metadata(*arguments, **more)
        self.is_single = self.enabled and not bool(self.token_lora_indices.any())  # 0 is the slot, -1 no adapter

    def add_lora_linear(
        self,
        y: Any,  # [tokens, out], changed in place
        x: Any,  # [tokens, in]
        lora_a_stacked: tuple[Any, ...],  # [slots, 1, rank, in] for each slice of the output
        lora_b_stacked: tuple[Any, ...],  # [slots, 1, width of the slice, rank]
        scale: float,
        output_slices: tuple[int, ...],
        **more: Any,
    ) -> None:
        if not self.is_single:
            super().add_lora_linear(y, x, lora_a_stacked, lora_b_stacked, scale, output_slices, **more)
            return
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            y[:, start : start + width].addmm_(x @ a[0, 0].T, b[0, 0].T, alpha=scale)
            start += width


def use() -> None:
    """Let the CPU engines that this process starts from now on use the wrapper."""
    from vllm.platforms import current_platform

    type(current_platform).get_punica_wrapper = classmethod(lambda _: f"{__name__}.OneAdapter")
